"""What OpenAI's chat completions and completions ask alike: sampling, stop strings, choices, stream; and what no
dialect takes. (pure)

A known field that would change what is sampled, and cannot be honoured, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.protocols.wire import bounded, brief, limited, unused

MODEL_CHARS_MAX = 1_024
"""Answers say it again, each chunk of a stream too."""
CHOICES_MAX = 8
"""Each choice is a generation of its own."""
STOPS_MAX, STOP_CHARS_MAX = 16, 256
"""Each stop string is searched for in every delta."""
TOP_LOGPROBS_MAX = 20
"""As OpenAI."""
MAX_TOKENS_CLAMP = 2**31 - 1
"""Larger limits mean 'as much as fits' anyway, and every later int is 32 bits."""
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1

_NONE = msgspec.Raw(b"")


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class SamplingFields(Protocol):
    """The fields of a body that sampling is asked with; Responses has them, too."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | list[str] | None


class NotTaken(msgspec.Struct, kw_only=True):
    """Fields of OpenAI's, vLLM's and SGLang's that every dialect refuses where they ask for anything: each would change
    what is sampled, or what comes back."""

    add_generation_prompt: bool | None = None
    allowed_token_ids: msgspec.Raw = _NONE
    audio: msgspec.Raw = _NONE
    bad_words: msgspec.Raw = _NONE
    chat_template: msgspec.Raw = _NONE
    continue_final_message: msgspec.Raw = _NONE
    custom_logit_processor: msgspec.Raw = _NONE
    documents: msgspec.Raw = _NONE
    ebnf: msgspec.Raw = _NONE
    echo: msgspec.Raw = _NONE
    function_call: msgspec.Raw = _NONE
    functions: msgspec.Raw = _NONE
    guided_choice: msgspec.Raw = _NONE
    guided_grammar: msgspec.Raw = _NONE
    guided_json: msgspec.Raw = _NONE
    guided_regex: msgspec.Raw = _NONE
    ignore_eos: msgspec.Raw = _NONE
    include_stop_str_in_output: msgspec.Raw = _NONE
    kv_transfer_params: msgspec.Raw = _NONE
    logit_bias: msgspec.Raw = _NONE
    logits_processors: msgspec.Raw = _NONE
    logprob_token_ids: msgspec.Raw = _NONE
    media_io_kwargs: msgspec.Raw = _NONE
    min_tokens: msgspec.Raw = _NONE
    mm_processor_kwargs: msgspec.Raw = _NONE
    prompt_logprob_token_ids: msgspec.Raw = _NONE
    prompt_logprobs: msgspec.Raw = _NONE
    regex: msgspec.Raw = _NONE
    repetition_detection: msgspec.Raw = _NONE
    stop_regex: msgspec.Raw = _NONE
    stop_token_ids: msgspec.Raw = _NONE
    structured_outputs: msgspec.Raw = _NONE
    thinking_token_budget: msgspec.Raw = _NONE
    trace_decode_token_ids: msgspec.Raw = _NONE
    truncate_prompt_tokens: msgspec.Raw = _NONE
    use_beam_search: msgspec.Raw = _NONE
    vllm_xargs: msgspec.Raw = _NONE
    watermarking: msgspec.Raw = _NONE
    web_search_options: msgspec.Raw = _NONE


class SamplingAsked(NotTaken, kw_only=True):
    """How to sample, in all of OpenAI's bodies."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class Asked(SamplingAsked, kw_only=True):
    """The fields of both bodies."""

    model: str
    max_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream tells its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


_INSTEAD = {
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "documents": "put their text into a message",
    "kv_transfer_params": "use /inference/v1/generate for a prompt of token ids",
}


def refused_fields(kind: type[NotTaken], read: frozenset[str]) -> tuple[str, ...]:
    """The fields of a body that are only taken where they ask for nothing: raw ones that nobody reads."""
    fields = msgspec.structs.fields(kind)
    return tuple(field.name for field in fields if field.type is msgspec.Raw and field.name not in read)


def refuse(
    body: NotTaken, model: str, fields: tuple[str, ...], instead: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises Unsupported for the first of these fields that asks for anything, InvalidBody for a model's name that is
    too long. `instead`: what to use in the place of some, in this dialect."""
    if len(model) > MODEL_CHARS_MAX:
        raise InvalidBody(
            f"model has {len(model)} characters; it must have at most {MODEL_CHARS_MAX}", field="model"
        )
    for field in fields:
        if (raw := getattr(body, field)) is not _NONE:
            unused(raw, field, instead.get(field) or _INSTEAD.get(field, ""))
    if body.add_generation_prompt is False:
        raise Unsupported(
            "add_generation_prompt must be true: what is sampled is the assistant's turn",
            field="add_generation_prompt",
        )


def sampling_of(body: SamplingFields, most: int | None, most_field: str) -> SamplingParams:
    """The sampling parameters; `most`: the limit of tokens, and the field that it came in. Raises InvalidBody."""
    bounded(body.temperature, 0, 2, "temperature")
    bounded(body.top_p, 0, 1, "top_p")
    bounded(body.top_k, -1, 2**31 - 1, "top_k")
    bounded(body.min_p, 0, 1, "min_p")
    bounded(body.presence_penalty, -2, 2, "presence_penalty")
    bounded(body.frequency_penalty, -2, 2, "frequency_penalty")
    bounded(body.repetition_penalty, 0.01, 10, "repetition_penalty")
    bounded(body.seed, SEED_MIN, SEED_MAX, "seed")
    if body.top_p == 0:
        raise InvalidBody(
            "top_p is 0, which leaves no token; use temperature 0 for greedy sampling", field="top_p"
        )
    if most is not None and most < 1:
        raise InvalidBody(f"{most_field} is {brief(most)}; it must be at least 1", field=most_field)
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        max_tokens=None if most is None else min(most, MAX_TOKENS_CLAMP),
        stop=stops_of(body.stop, "stop"),
    )


def stops_of(given: str | list[str] | None, field: str) -> tuple[str, ...]:
    """The stop strings. Raises InvalidBody."""
    if not given:
        return ()
    stops = (given,) if isinstance(given, str) else tuple(given)
    limited(len(stops), STOPS_MAX, "strings", field)
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            where = field if isinstance(given, str) else f"{field}[{index}]"
            raise InvalidBody(f"{where} must have 1 to {STOP_CHARS_MAX} characters", field=where)
    return stops


def choices_of(body: Asked) -> int:
    """How many answers are asked for."""
    bounded(body.n, 1, CHOICES_MAX, "n")
    return 1 if body.n is None else body.n
