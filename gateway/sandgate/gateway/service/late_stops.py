"""Stop strings that an engine does not find. (pure)

Those that lie across a cut: what takes up a generation looks for them in new text only. All of them, without a
tokenizer (vLLM with --skip-tokenizer-init takes them, and never looks). Texts are those without special tokens, as
engines have them: a stop string that is one ends the turn by its id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.api import GenerationResult


def may_have_missed(sample: GenerationResult, stops: Sequence[str]) -> bool:
    """Whether a stop string may stand in what was sampled without a break of the engine's there."""
    return bool(stops) and (sample.resumed > 0 or not isinstance(sample.stop_reason, str))


def ended_at_stop(
    sample: GenerationResult, stops: Sequence[str], decode: Callable[[Ids], str]
) -> GenerationResult:
    """The sample up to the token that completes the first of these stop strings: what an engine that had not been
    interrupted would have sampled. The same sample if there is none, or the engine stopped there."""
    found = _first(decode(sample.ids), stops)
    if found is None:
        return sample
    end = bisect_left(
        range(len(sample.ids)), True, key=lambda count: _first(decode(sample.ids[:count]), stops) is not None
    )
    if end == len(sample.ids) and sample.finish == "stop":  # there, or by a token that is spelt like it
        return sample
    return replace(
        sample,
        ids=sample.ids[:end],
        logprobs=sample.logprobs[:end],
        versions=tuple(replace(span, end=min(span.end, end)) for span in sample.versions if span.start < end),
        finish="stop",
        stop_reason=found,
        top=sample.top[:end],
    )


def _first(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that begins first."""
    places = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(places)[1] if places else None
