"""One generation over several pieces: what was sampled stays, exactly."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt, VersionSpan
from sandgate.gateway.engine.generation import OVER_SAMPLED, RESUMES_MAX, Generation
from sandgate.gateway.engine.responses import Step, Unlabelled
from sandgate.gateway.engine.sglang.engine import SGLANG
from sandgate.gateway.engine.sse import EVENT_BYTES_MAX, Events
from sandgate.gateway.journal.top_logprobs import unpacked


def begin(*, streams: bool = True, **more: Any) -> Generation:
    base: dict[str, Any] = {
        "request_id": "r",
        "ids": array("i", [1, 2]),
        "sampling": SamplingParams(),
        "max_tokens": 10,
    }
    return Generation(Prompt(**{**base, **more}), told=3, streams=streams)


def step(*ids: int, finish: Any = None, labels: Any = None) -> Step:
    return Step(array("i", ids), array("f", [-0.5] * len(ids)), finish=finish, labels=labels)


def test_a_cut_generation_asks_for_the_rest_and_keeps_each_pieces_version() -> None:
    made = begin()
    made.take(step(7, 8))
    made.take(step(finish="abort", labels=(("step-3", 0, 2),)))
    assert made.cut("aborted", told=4)
    assert made.asks() == (array("i", [1, 2, 7, 8]), 8)
    made.take(step(9, finish="stop", labels=(("step-4", 0, 1),)))
    sample = made.sample("e")
    assert sample.ids == array("i", [7, 8, 9])
    assert sample.versions == (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))
    assert (sample.finish, sample.resumed) == ("stop", 1)


def test_a_lost_piece_has_the_version_that_was_told_when_it_began() -> None:
    made = begin()
    made.take(step(7, 8))
    made.cut("lost", told=5)
    made.take(step(9, finish="stop"))
    assert made.sample("e").versions == (VersionSpan(3, 0, 2), VersionSpan(5, 2, 3))


UPDATED: dict[str, tuple[Any, tuple[VersionSpan, ...]]] = {
    "the engine reports none": (None, (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3), VersionSpan(6, 3, 5))),
    "its labels are nobody's": (
        (("default", 0, 5),),
        (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3), VersionSpan(6, 3, 5)),
    ),
    "the engine reports them": ((("step-3", 0, 4), ("step-4", 4, 5)), (VersionSpan(3, 0, 4), VersionSpan(4, 4, 5))),
    "its first label with a number comes in the middle": (
        (("default", 0, 4), ("4", 4, 5)),
        (VersionSpan(3, 0, 4), VersionSpan(4, 4, 5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "versions"), UPDATED.values(), ids=UPDATED)
def test_tokens_that_come_after_a_version_was_told_are_of_it_unless_the_engine_knows_better(
    labels: Any, versions: tuple[VersionSpan, ...]
) -> None:
    made = begin()
    made.ask(3, numbered=False)
    deltas = [made.take(step(7)), made.take(step(8))]
    for version in (4, 4):
        made.tell(version)
    deltas.append(made.take(step(9)))
    for version in (5, 6):
        made.tell(version)
    deltas += [made.take(step(10)), made.take(step(11, finish="stop", labels=labels))]
    assert made.sample("e").versions == versions
    assert [delta.version for delta in deltas if delta is not None] == [3, 3, 4, 6, 6]


def test_what_was_told_in_one_piece_is_nothing_to_the_next() -> None:
    made = begin()
    made.ask(3, numbered=False)
    made.take(step(7))
    made.tell(4)
    made.take(step(8))
    made.cut("lost", told=4)
    made.ask(5, numbered=False)
    made.take(step(9, finish="stop"))
    assert made.sample("e").versions == (VersionSpan(3, 0, 1), VersionSpan(4, 1, 2), VersionSpan(5, 2, 3))


def test_what_an_attempt_that_was_refused_in_its_middle_had_told_is_of_its_own_version() -> None:
    made = begin()
    made.ask(3, numbered=False)
    made.take(step(7, 8))
    made.ask(4, numbered=False)
    made.take(step(9, finish="stop", labels=(("4", 0, 1),)))
    assert made.sample("e").versions == (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))


def test_pieces_of_one_version_are_one_span() -> None:
    made = begin()
    made.take(step(7))
    made.cut("lost", told=3)
    made.take(step(9, finish="stop"))
    assert made.sample("e").versions == (VersionSpan(3, 0, 2),)


def test_a_generation_cut_at_its_last_token_is_done() -> None:
    made = begin(max_tokens=2)
    made.take(step(7, 8, finish="abort"))
    assert not made.cut("aborted", told=3)
    assert made.sample("e").finish == "length"


def test_a_generation_cut_after_a_stop_id_is_done() -> None:
    made = begin(stop_ids=(8,))
    made.take(step(7, 8))
    assert not made.cut("lost", told=3)
    assert (made.sample("e").finish, made.sample("e").stop_reason) == ("stop", 8)


def test_a_generation_whose_last_token_is_a_stop_id_has_stopped() -> None:
    made = begin(stop_ids=(8,), max_tokens=2)
    made.take(step(7, 8))
    assert not made.cut("lost", told=3)
    assert (made.sample("e").finish, made.sample("e").stop_reason) == ("stop", 8)


def test_it_is_not_cut_for_ever() -> None:
    made = begin()
    for _ in range(RESUMES_MAX):
        made.take(step(finish="abort"))
        assert made.cut("aborted", told=3)
    made.take(step(finish="abort"))
    with pytest.raises(EngineUnavailable, match="cut 16 times"):
        made.cut("aborted", told=3)


def test_a_grammar_starts_again_if_nothing_was_told() -> None:
    made = begin(streams=False, constraint={"regex": "a+"})
    made.take(step(7, 8, finish="abort"))
    assert made.cut("aborted", told=4)
    assert made.asks() == (array("i", [1, 2]), 10)
    made.take(step(9, finish="stop", labels=(("4", 0, 1),)))
    assert (made.sample("e").ids, made.sample("e").versions) == (array("i", [9]), (VersionSpan(4, 0, 1),))


def test_a_grammar_that_was_told_in_part_fails() -> None:
    made = begin(constraint={"regex": "a+"})
    made.take(step(7))
    with pytest.raises(EngineUnavailable, match="grammar"):
        made.cut("aborted", told=4)


PENALTIES: dict[str, tuple[dict[str, float], tuple[str, ...], bool]] = {
    "a presence penalty counts sampled tokens": ({"presence_penalty": 0.5}, OVER_SAMPLED, False),
    "a frequency penalty counts sampled tokens": ({"frequency_penalty": -0.5}, OVER_SAMPLED, False),
    "a repetition penalty counts the prompt, too": ({"repetition_penalty": 1.3}, OVER_SAMPLED, True),
    "SGLang's repetition penalty counts sampled tokens": ({"repetition_penalty": 1.3}, SGLANG.over_sampled, False),
    "penalties that are off": (
        {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}, SGLANG.over_sampled, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sampling", "over_sampled", "goes_on"), PENALTIES.values(), ids=PENALTIES)
def test_a_penalty_that_would_count_anew_behind_a_cut_starts_again_or_fails(
    sampling: dict[str, float], over_sampled: tuple[str, ...], goes_on: bool
) -> None:
    made = begin(streams=False, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    made.over_sampled = over_sampled
    made.take(step(7, 8, finish="abort"))
    assert made.cut("aborted", told=4)
    assert made.asks() == ((array("i", [1, 2, 7, 8]), 8) if goes_on else (array("i", [1, 2]), 10))
    told = begin(streams=True, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    told.over_sampled = over_sampled
    told.take(step(7))
    if goes_on:
        assert told.cut("aborted", told=4)
    else:
        with pytest.raises(
            EngineUnavailable, match=f"{next(iter(sampling))}, which .* in the middle; aborted"
        ):
            told.cut("aborted", told=4)


def test_a_piece_of_unknown_weights_is_forgotten_and_what_went_before_it_stays() -> None:
    made = begin(streams=False, top_logprobs=1)
    made.take(Step(array("i", [7]), array("f", [-0.5]), (((7, -0.5),),), "abort", None, (("3", 0, 1),)))
    made.cut("aborted", told=4)
    made.numbered = True
    bad = Step(
        array("i", [8, 9]), array("f", [-0.5] * 2), (((8, -0.5),),) * 2, "stop", None, (("default", 0, 2),)
    )
    with pytest.raises(Unlabelled, match="tokens 1:3 were sampled by weights labelled 'default'") as caught:
        made.take(bad)
    made.forget(caught.value)
    assert made.asks() == (array("i", [1, 2, 7]), 9)
    made.take(Step(array("i", [6]), array("f", [-0.25]), (((6, -0.25),),), "stop", None, (("4", 0, 1),)))
    sample = made.sample("e")
    assert (sample.ids, sample.logprobs) == (array("i", [7, 6]), array("f", [-0.5, -0.25]))
    assert ([unpacked(top) for top in sample.top], sample.versions) == (
        [((7, -0.5),), ((6, -0.25),)],
        (VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)),
    )


def test_a_piece_of_unknown_weights_that_was_told_fails() -> None:
    made = begin(streams=True)
    made.numbered = True
    made.take(step(7))
    with pytest.raises(Unlabelled) as caught:
        made.take(step(8, finish="stop", labels=(("default", 0, 2),)))
    with pytest.raises(EngineFailed, match="labelled 'default'"):
        made.forget(caught.value)


def test_more_than_asked_for_is_refused() -> None:
    with pytest.raises(EngineFailed, match="3 tokens of 2"):
        begin(max_tokens=2).take(step(7, 8, 9))


def test_tokens_after_the_end_are_refused() -> None:
    made = begin()
    made.take(step(7, finish="stop"))
    with pytest.raises(EngineFailed, match="after the end"):
        made.take(step(8))


@given(
    pieces=st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=8),
    versions=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_however_it_is_cut_the_sample_is_the_pieces_joined(
    pieces: list[list[int]], versions: list[int]
) -> None:
    made = begin(max_tokens=100)
    for at, piece in enumerate(pieces):
        last = at == len(pieces) - 1
        labels = ((str(versions[at]), 0, len(piece)),)
        made.take(step(*piece, finish="stop" if last else "abort", labels=labels))
        if not last:
            made.cut("aborted", told=0)
    sample = made.sample("e")
    per_token = [span.version for span in sample.versions for _ in range(span.start, span.end)]
    assert sample.ids.tolist() == [token for piece in pieces for token in piece]
    assert len(sample.logprobs) == len(sample.ids)
    assert per_token == [versions[at] for at, piece in enumerate(pieces) for _ in piece]
    edges = [0, *(span.end for span in sample.versions)]
    assert [span.start for span in sample.versions] == edges[:-1]


STREAM = b': hello\n\nevent: x\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\ndata: [DONE]\n\n'


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    events = Events()
    got = [e for a, b in pairwise(edges) for e in events.feed(STREAM[a:b])]
    assert got == [b'{"a":1}', b'{"b":2}']
    assert events.done


def test_an_endless_event_is_refused() -> None:
    events = Events()
    with pytest.raises(EngineFailed, match="larger than"):
        events.feed(b"data: " + b"x" * EVENT_BYTES_MAX)
