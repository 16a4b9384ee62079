"""What an engine answers is read exactly, or refused with the reason."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import EngineFailed, TokenizerMismatch
from sandgate.gateway.engine.api import VersionSpan
from sandgate.gateway.engine.responses import (
    ErrorInAnswer,
    Step,
    Unlabelled,
    read,
    read_together,
    spans_of,
    version_of,
)
from sandgate.gateway.engine.wire import GenerateEndpoint

GENERATE, COMPLETIONS = GenerateEndpoint.GENERATE, GenerateEndpoint.COMPLETIONS


def entry(token: int, logprob: float | None, **more: Any) -> dict[str, Any]:
    return {"token_id": token, "logprob": logprob, "rank": 1, **more}


def old(token: int, logprob: float) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}


def generate(ids: list[int], content: list[dict[str, Any]] | None, **more: Any) -> bytes:
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}, **more}
    return json.dumps({"choices": [choice], "prompt_logprobs": None}).encode()


def completions(ids: list[int], logprobs: list[float | None], tops: Any = None, **more: Any) -> bytes:
    columns = {"token_logprobs": logprobs, "top_logprobs": tops, "tokens": [], "text_offset": []}
    choice = {"token_ids": ids, "finish_reason": "length", "logprobs": columns, "text": "", **more}
    return json.dumps({"choices": [choice]}).encode()


GOOD = {
    "integer token_id, as from 0.32": (GENERATE, generate([5, 9], [entry(5, -0.5), entry(9, -2.0)])),
    "token_id:N, as up to 0.31": (GENERATE, generate([5, 9], [old(5, -0.5), old(9, -2.0)])),
    "columns, as from completions": (COMPLETIONS, completions([5, 9], [-0.5, -2.0])),
}


@pytest.mark.parametrize(("door", "body"), GOOD.values(), ids=GOOD)
def test_every_shape_gives_the_same_arrays(door: GenerateEndpoint, body: bytes) -> None:
    step = read(body, door, vocab_size=10)
    assert (step.ids, step.logprobs) == (array("i", [5, 9]), array("f", [-0.5, -2.0]))
    assert step.finish == ("length" if door is COMPLETIONS else "stop")


BAD = {
    "a sentinel": (GENERATE, generate([5], [entry(5, -9999.0)]), "token 0 (id 5): logprob -9999 is the engine's mark"),
    "a null logprob": (COMPLETIONS, completions([5, 6], [-0.5, None]), "token 1 (id 6): its logprob is None"),
    "no logprob at all": (GENERATE, generate([5], [entry(5, None)]), "token 0 (id 5): its logprob is None"),
    "a logprob over float32": (GENERATE, generate([5], [entry(5, -1e300)]), "logprob -1e+300 is the engine's mark"),
    "NaN": (GENERATE, generate([5], [entry(5, math.nan)]), "cannot be read"),
    "a positive logprob": (GENERATE, generate([5], [entry(5, 0.25)]), "logprob 0.25 is positive"),
    "fewer logprobs than ids": (GENERATE, generate([5, 6], [entry(5, -1)]), "2 ids and 1 logprobs"),
    "no logprobs": (GENERATE, generate([5, 6], None), "2 ids and 0 logprobs"),
    "another id's logprob": (GENERATE, generate([5, 6], [entry(5, -1), entry(7, -1)]), "token 1: the id is 6"),
    "another id's logprob, old shape": (GENERATE, generate([5], [old(4, -1)]), "token 0: the id is 5"),
    "a decoded token instead of an id": (
        GENERATE,
        generate([5], [{"token": "hi", "logprob": -1.0}]),
        "its logprob is of id -1",
    ),
    "an id outside of the vocabulary": (GENERATE, generate([10], [entry(10, -1)]), "outside the vocabulary [0, 10)"),
    "a negative id": (COMPLETIONS, completions([-3], [-1.0]), "id -3 is outside the vocabulary"),
    "an id over int32": (COMPLETIONS, completions([2**40], [-1.0]), "outside the vocabulary"),
    "an end that is none": (GENERATE, generate([5], [entry(5, -1)], finish_reason="error"), "ended with 'error'"),
    "an error in a stream": (GENERATE, b'{"error":{"message":"CUDA error"}}', "the engine failed: CUDA error"),
    "no JSON": (GENERATE, b"<html>", "cannot be read"),
    "ids that are text": (GENERATE, b'{"choices":[{"token_ids":["a"]}]}', "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("door", "body", "why"), BAD.values(), ids=BAD)
def test_what_cannot_be_trusted_is_refused_by_name(door: GenerateEndpoint, body: bytes, why: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        read(body, door, vocab_size=10)
    assert why in str(caught.value)


MISMATCH = {
    "a sampled id that the tokenizer does not have": (generate([10], [entry(10, -1)]), TokenizerMismatch),
    "an id that no vocabulary has": (generate([-1], [entry(-1, -1)]), EngineFailed),
    "such an id with a logprob that is none": (generate([10], [entry(10, -9999.0)]), EngineFailed),
}


@pytest.mark.parametrize(("body", "kind"), MISMATCH.values(), ids=MISMATCH)
def test_another_vocabulary_has_a_name_of_its_own(body: bytes, kind: type[EngineFailed]) -> None:
    with pytest.raises(EngineFailed) as caught:
        read(body, GENERATE, vocab_size=10)
    assert type(caught.value) is kind


def plain(ids: list[int], **more: Any) -> bytes:
    """An event in the middle of a stream."""
    return generate(
        ids,
        [entry(token, -token / 8, top_logprobs=[entry(1, -0.5)]) for token in ids],
        finish_reason=None,
        **more,
    )


EVENTS = st.one_of(
    st.lists(st.integers(0, 9), max_size=4).map(plain),
    st.sampled_from([body for door, body in GOOD.values() if door is GENERATE]),
    st.sampled_from([body for door, body, _ in BAD.values() if door is GENERATE]),
    st.sampled_from(
        [
            plain([3], weight_versions=[{"version": 7, "start": 0, "end": 1}]),
            b'{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":5}}}',
            b'{"choices":[],"prompt_token_ids":[1,2]}',
            plain([4]).replace(b'"token_id"', b'"no_id"'),
        ]
    ),
)


def heard(steps: Iterator[Step]) -> tuple[Any, ...]:
    """All that a stream's steps say, and what ended it."""
    ids, logprobs, error = array("i"), array("f"), ""
    top: list[Any] = []
    others: list[Any] = []
    try:
        for step in steps:
            ids += step.ids
            logprobs += step.logprobs
            top += step.top
            others.append((step.finish, step.labels, step.cached_tokens, step.prompt))
    except (EngineFailed, ErrorInAnswer) as failed:
        error = f"{type(failed).__name__}: {failed}"
    return ids, logprobs, top, [other for other in others if any(other)], error


@given(st.lists(EVENTS, max_size=8), st.sampled_from([0, 2]))
@example([plain([1]), plain([2, 3]), generate([10], [entry(10, -1)], finish_reason=None), plain([4])], 0)
@example([plain([1]), plain([2]), plain([], stop_reason="x"), b"<html>"], 2)
def test_events_that_come_at_once_say_what_each_would_say_alone(events: list[bytes], top: int) -> None:
    alone = heard(read(event, GENERATE, top=top, vocab_size=10, telling=True) for event in events)
    assert heard(read_together(events, GENERATE, top=top, vocab_size=10)) == alone


def test_tokens_that_come_at_once_are_one_step() -> None:
    events = [plain([1, 2]), plain([3]), plain([4]), generate([5], [entry(5, -1)])]
    assert [step.ids.tolist() for step in read_together(events, GENERATE)] == [[1, 2, 3, 4], [5]]


def test_a_hair_above_zero_is_rounding() -> None:
    step = read(generate([5], [entry(5, 5e-7)]), GENERATE)
    assert step.logprobs[0] == array("f", [5e-7])[0]


TOPS = {
    "integer token_id": (
        GENERATE,
        generate([5], [entry(5, -3.0, top_logprobs=[entry(5, -3.0), entry(7, -0.5), entry(8, -1.0)])]),
    ),
    "token_id:N": (GENERATE, generate([5], [{**old(5, -3.0), "top_logprobs": [old(5, -3), old(7, -0.5), old(8, -1)]}])),
    "columns": (COMPLETIONS, completions([5], [-3.0], [{"token_id:5": -3.0, "token_id:7": -0.5, "token_id:8": -1.0}])),
}  # fmt: skip


@pytest.mark.parametrize(("door", "body"), TOPS.values(), ids=TOPS)
def test_top_logprobs_are_the_most_likely_first_and_as_many_as_asked(
    door: GenerateEndpoint, body: bytes
) -> None:
    assert read(body, door, top=2).top == (((7, -0.5), (8, -1.0)),)


def test_events_without_tokens_are_empty_steps() -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}'
    step = read(usage, GENERATE)
    assert (len(step.ids), step.finish, step.cached_tokens) == (0, None, 4)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 0, width=32)), max_size=40))
def test_ids_and_float32_logprobs_survive_the_wire(pairs: list[tuple[int, float]]) -> None:
    ids = [token for token, _ in pairs]
    step = read(generate(ids, [entry(token, logprob) for token, logprob in pairs]), GENERATE)
    assert step.ids.tolist() == ids
    assert step.logprobs == array("f", [logprob for _, logprob in pairs])


LABELS = {"step-7": 7, "7": 7, "v12 ": 12, 3: 3, "default": 42, "": 42}


@pytest.mark.parametrize(("label", "version"), LABELS.items())
def test_versions_are_the_number_at_the_end_of_a_label(label: str | int, version: int) -> None:
    assert version_of(label, told=42) == version


def test_a_version_that_is_no_int32_is_refused() -> None:
    with pytest.raises(EngineFailed, match="does not fit"):
        version_of(2**31, 0)


SPANS: dict[str, tuple[Any, int, list[tuple[int, int, int]]]] = {
    "none told: the trainer's word": (None, 3, [(42, 10, 13)]),
    "two versions": ([("step-7", 0, 2), ("step-8", 2, 5)], 5, [(7, 10, 12), (8, 12, 15)]),
    "one version in two spans is one": ([("a-7", 0, 2), ("b-7", 2, 5)], 5, [(7, 10, 15)]),
    "an empty span says nothing": ([("1", 0, 0), ("2", 0, 5)], 5, [(2, 10, 15)]),
    "more than what was sampled is cut": ([("1", 0, 9)], 5, [(1, 10, 15)]),
    "nothing sampled": ([("1", 0, 0)], 0, []),
}


@pytest.mark.parametrize(("labels", "count", "want"), SPANS.values(), ids=SPANS)
def test_spans(labels: Any, count: int, want: list[tuple[int, int, int]]) -> None:
    assert spans_of(labels, count, told=42, offset=10) == tuple(VersionSpan(*span) for span in want)


UNLABELLED: dict[str, tuple[Any, bool, int | None]] = {
    "needed, and none of the tokens has one": ([("default", 0, 5)], True, None),
    "needed, and the first tokens have none": ([("default", 0, 2), ("7", 2, 5)], True, None),
    "needed, and the last tokens have none": ([("7", 0, 2), ("default", 2, 5)], True, None),
    "not needed, but lost in the middle": ([("7", 0, 2), ("default", 2, 5)], False, None),
    "not needed, lost and found": ([("6", 0, 1), ("7", 1, 2), ("", 2, 3), ("8", 3, 5)], False, None),
    "needed, and all have one, older or newer than told": ([("41", 0, 2), (43, 2, 5)], True, 41),
    "not needed, and from before the first update": ([("default", 0, 2), ("43", 2, 5)], False, 42),
    "needed, and the span without one is empty": ([("default", 0, 0), ("43", 0, 5)], True, 43),
    "needed, but the engine reports none: the trainer's word": (None, True, 42),
}


@pytest.mark.parametrize(("labels", "numbered", "first"), UNLABELLED.values(), ids=UNLABELLED)
def test_a_label_without_a_version_is_not_the_told_one_where_it_should_have_one(
    labels: Any, numbered: bool, first: int | None
) -> None:
    if first is None:
        with pytest.raises(Unlabelled, match="which is no version, but version 42 was told"):
            spans_of(labels, 5, told=42, numbered=numbered)
    else:
        assert spans_of(labels, 5, told=42, numbered=numbered)[0].version == first


@pytest.mark.parametrize("labels", [[("1", 0, 2)], [("1", 1, 5)], [("1", 0, 3), ("2", 2, 5)]])
def test_spans_with_holes_are_refused(labels: Any) -> None:
    with pytest.raises(EngineFailed, match="weight_versions"):
        spans_of(labels, 5, told=0)
