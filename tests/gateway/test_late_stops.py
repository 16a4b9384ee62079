"""Stop strings that an engine does not find: across a weight update, without a tokenizer, of special tokens."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.api import Finish, GenerationResult, VersionSpan
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.service.late_stops import ended_at_stop
from tests.support.gateway import engine, events, gateway, ids, said, text

STOP = "Observation:"
BEFORE, AFTER = "Act: buy\n", " sold 7\nObservation: sold 8\nDone"
ASKS: dict[str, dict[str, Any]] = {
    "a whole answer ends before it": {},
    "a stream ends before it": {"stream": True},
    "a whole answer with logprobs ends before it": {"logprobs": True},
}


def _words_only(some: Ids) -> str:
    return re.sub(r"<\|.*?\|>", "", text(some))


@pytest.mark.parametrize("cut", [1, 3, 7])
@pytest.mark.parametrize("asked", ASKS.values(), ids=ASKS)
async def test_a_stop_string_that_was_cut_in_two_ends_the_answer(asked: dict[str, Any], cut: int) -> None:
    reply = Reply(BEFORE + STOP + AFTER, fault=Fault("abort", after=len(ids(BEFORE)) + cut))
    async with gateway([reply]) as g:
        agent = await g.session()
        answer = await agent.post("go", stop=[STOP], **asked)
        told = said(answer.text) if "stream" in asked else answer.json()["choices"][0]["message"]["content"]
        (turn,) = await g.tree(agent)
        again = await agent.post("go", stop=[STOP], headers={"x-stainless-retry-count": "1"}, **asked)
        (row,) = await g.finalize(agent)
    assert (told, turn["finish"], turn["stop_reason"], turn["resumed"]) == (BEFORE, "stop", STOP, 1)
    assert text(row["response_ids"]) == BEFORE + STOP
    assert again.text == answer.text


WITHOUT_WORDS = {
    "an engine without a tokenizer": (None, STOP),
    "an engine that leaves special tokens out of its text": (_words_only, "<|im_start|>"),
}


@pytest.mark.parametrize(("decode", "stop"), WITHOUT_WORDS.values(), ids=WITHOUT_WORDS)
@pytest.mark.parametrize("asked", ASKS.values(), ids=ASKS)
async def test_a_stop_string_that_the_engine_does_not_see_ends_the_answer(
    asked: dict[str, Any], decode: Callable[[Ids], str] | None, stop: str
) -> None:
    """vLLM 0.32 takes stop strings with --skip-tokenizer-init, too, and goes on to the end."""
    async with gateway(engine([BEFORE + stop + AFTER], decode=decode)) as g:
        agent = await g.session()
        answer = await agent.post("go", stop=[stop], **asked)
        told = said(answer.text) if "stream" in asked else answer.json()["choices"][0]["message"]["content"]
        (turn,) = await g.tree(agent)
        (row,) = await g.finalize(agent)
    assert (told, turn["finish"], turn["stop_reason"], turn["resumed"]) == (BEFORE, "stop", stop, 0)
    assert text(row["response_ids"]) == BEFORE + stop


@pytest.mark.parametrize("stop", ["im_start", "<|", "|>"])
async def test_a_stop_string_within_the_spelling_of_a_special_token_ends_nothing(stop: str) -> None:
    """Engines look for it in a text without these; of gpt-oss each turn has some."""
    async with gateway(engine([BEFORE + "<|im_start|>" + AFTER], decode=_words_only)) as g:
        agent = await g.session()
        answer = await agent.post("go", stop=[stop])
        (row,) = await g.finalize(agent)
    assert answer.json()["choices"][0]["message"]["content"] == BEFORE + AFTER
    assert text(row["response_ids"]).startswith(BEFORE + "<|im_start|>" + AFTER)


async def test_what_a_stream_told_token_by_token_stays() -> None:
    reply = Reply(BEFORE + STOP + " Done", fault=Fault("abort", after=len(ids(BEFORE)) + 1))
    async with gateway([reply]) as g:
        agent = await g.session()
        answer = await agent.post("go", stop=[STOP], stream=True, logprobs=True)
        told = [
            entry["token"]
            for event in events(answer.text)
            for choice in event["choices"]
            if choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
        (row,) = await g.finalize(agent)
    assert "".join(told) == text(row["response_ids"])
    assert STOP + " Done" in "".join(told)


SAMPLES: dict[str, tuple[str, Finish, str | None, tuple[str, ...], int, str | None]] = {
    "text behind it goes": ("a STOP b", "stop", None, ("STOP",), 6, "STOP"),
    "the first of several counts": ("a END b STOP c", "stop", "STOP", ("STOP", "END"), 5, "END"),
    "an answer that the engine ended there stays": ("a STOP", "stop", "STOP", ("STOP",), 6, "STOP"),
    "one that ended with a token of that spelling stays": ("a STOP", "stop", None, ("STOP",), 6, None),
    "one that ends there with its last token allowed was stopped": (
        "a STOP", "length", None, ("STOP",), 6, "STOP",
    ),
    "an answer without it stays": ("a b", "length", None, ("STOP",), 3, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "finish", "reason", "stops", "kept", "found"), SAMPLES.values(), ids=SAMPLES
)
def test_a_sample_ends_at_its_first_stop_string(
    words: str, finish: Finish, reason: str | None, stops: tuple[str, ...], kept: int, found: str | None
) -> None:
    letters = array("i", list(words.encode()))
    sample = GenerationResult(
        ids=letters,
        logprobs=array("f", [-1.0] * len(letters)),
        versions=(
            VersionSpan(1, 0, 1),
            VersionSpan(2, 1, len(letters) - 1),
            VersionSpan(3, len(letters) - 1, len(letters)),
        ),
        finish=finish,
        stop_reason=reason,
        top=(b"t",) * len(letters),
    )
    ended = ended_at_stop(sample, stops, lambda some: bytes(list(some)).decode())
    assert (bytes(list(ended.ids)).decode(), ended.stop_reason) == (words[:kept], found)
    assert len(ended.logprobs) == len(ended.top) == ended.versions[-1].end == kept
    assert all(span.start < span.end for span in ended.versions)
    assert (ended is sample) == (found == reason and kept == len(words))
