"""A sealed forest -> rows: which leaves, which tokens, which masks, where it forked."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Rewarded, Sealed
from sandgate.gateway.trajectories.linearize import Facts, leaves, linearize, newest_in_rows
from tests.gateway.trajectories.forest import T, seen

SPEC: dict[str, Any] = {
    "job": "shop",
    "uid": "q1",
    "sample_index": 2,
    "attempt": 1,
    "model": "tiny",
    "metadata": {"k": [1]},
}


def rows(
    turns: list[T], *, delivered: set[str] | None = None, sealed: Sealed | None = None, **more: Any
) -> list[Trajectory]:
    return linearize(
        turns,
        session_id="s",
        spec=SPEC | more.pop("spec", {}),
        sealed=sealed or Sealed(at=9.0),
        delivered=seen(turns) if delivered is None else delivered,
        **more,
    )


LEAVES: dict[str, tuple[list[T], set[str], list[str]]] = {
    "nothing said, no row": ([], set(), []),
    "one conversation is one row": ([T("a"), T("b", "a"), T("c", "b")], {"a", "b", "c"}, ["abc"]),
    "rows stand in order of their leaf's commit": (
        [T("a"), T("b", "a"), T("c", "a"), T("d", "b"), T("e")],
        set("abcde"),
        ["ac", "abd", "e"],
    ),
    "a leaf the agent never saw is left out": ([T("a"), T("b", "a")], {"a"}, ["a"]),
    "its parent was extended, so it was seen": ([T("a"), T("b", "a")], set(), ["a"]),
    "a turn never delivered but extended stays": ([T("a"), T("b", "a")], {"b"}, ["ab"]),
    "of two siblings the undelivered one is left out": (
        [T("a"), T("b", "a"), T("c", "a")],
        {"a", "c"},
        ["ac"],
    ),
    "an only turn stays although it was never delivered": ([T("a")], set(), ["a"]),
    "if nothing was delivered the newest leaf stays": ([T("a"), T("b")], set(), ["b"]),
    "a turn the engine aborted is left out": ([T("a"), T("b", "a", finish="abort")], {"a", "b"}, ["a"]),
    "an aborted turn alone is no row": ([T("a", finish="abort")], {"a"}, []),
    "a turn the agent cut is a row: it may have chosen by it": (
        [T("a"), T("b", "a", finish="cut"), T("c", "a")],
        set("ac"),
        ["ab", "ac"],
    ),
    "a cut turn alone is a row": ([T("a", finish="cut")], set(), ["a"]),
    "an aborted turn that was extended stays": (
        [T("a", finish="abort"), T("b", "a")],
        {"a", "b"},
        ["ab"],
    ),
}


@pytest.mark.parametrize(("turns", "delivered", "paths"), LEAVES.values(), ids=LEAVES)
def test_leaves(turns: list[T], delivered: set[str], paths: list[str]) -> None:
    assert ["".join(turn.id for turn in path) for path in leaves(turns, delivered)] == paths
    assert ["".join(row.turn_ids) for row in rows(turns, delivered=delivered)] == paths
    newest = newest_in_rows(turns, delivered)
    assert (newest.id if newest else "") == (paths[-1][-1] if paths else ""), "the end of the newest row"


PARTLY: dict[str, tuple[list[T], str, list[str]]] = {
    "what was partly delivered is a row: it may have chosen by it": (
        [T("a"), T("b", "a"), T("c", "a")],
        "train",
        ["ab", "ac"],
    ),
    "unless the job leaves it": ([T("a"), T("b", "a"), T("c", "a")], "leave", ["ac"]),
    "what it went on from stays": ([T("a"), T("b", "a"), T("c", "b")], "leave", ["abc"]),
    "what the engine aborted is left out": (
        [T("a"), T("b", "a", finish="abort"), T("c", "a")],
        "train",
        ["ac"],
    ),
}


@pytest.mark.parametrize(("turns", "cut", "paths"), PARTLY.values(), ids=PARTLY)
def test_b_whose_stream_was_let_go_of_too_late_to_cut_it(turns: list[T], cut: str, paths: list[str]) -> None:
    found = rows(turns, delivered={"a", "c"}, partly={"b"}, spec={"cut_turns": cut})
    assert ["".join(row.turn_ids) for row in found] == paths
    newest = newest_in_rows(turns, {"a", "c"}, {"b"}, cut)
    assert newest is not None
    assert newest.id == paths[-1][-1]


NEWEST: dict[str, tuple[list[T], str, str, str]] = {
    "its answer, not what it had let go of before": ([T("a"), T("b", finish="cut")], "", "train", "a"),
    "nor if that was whole by then": ([T("a"), T("b")], "b", "train", "a"),
    "nor if it went on from the same": ([T("a"), T("b", "a"), T("c", "a", finish="cut")], "", "train", "b"),
    "what it cut behind its newest answer": ([T("a"), T("b", "a", finish="cut")], "", "train", "b"),
    "what it was sent in part behind it": ([T("a"), T("b", "a")], "b", "train", "b"),
    "unless the job leaves that": ([T("a"), T("b", "a", finish="cut")], "", "leave", "a"),
    "of several the newest": (
        [T("a"), T("b", "a", finish="cut"), T("c", "a", finish="cut"), T("d", finish="cut")], "", "train", "c",
    ),
    "what it cut, if it was sent nothing": ([T("a", finish="cut")], "", "train", "a"),
    "of several the newest of all": ([T("a", finish="cut"), T("b", finish="cut")], "", "train", "b"),
    "what it cut behind what it cut": (
        [T("a"), T("b", finish="cut"), T("c", "b", finish="cut")], "", "train", "c",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("turns", "partly", "cut", "newest"), NEWEST.values(), ids=NEWEST)
def test_the_newest_turn_of_an_agent(turns: list[T], partly: str, cut: str, newest: str) -> None:
    delivered = {turn.id for turn in turns if turn.finish != "cut"} - set(partly)
    found = newest_in_rows(turns, delivered, set(partly), cut)
    assert found is not None
    assert found.id == newest
    assert newest in {
        row.turn_ids[-1]
        for row in rows(turns, delivered=delivered, partly=set(partly), spec={"cut_turns": cut})
    }


LEFT: dict[str, tuple[list[T], list[str]]] = {
    "what the agent cut is left out": ([T("a"), T("b", "a", finish="cut"), T("c", "a")], ["ac"]),
    "what it cut and went on from stays": ([T("a"), T("b", "a", finish="cut"), T("c", "b")], ["abc"]),
    "its parent was extended, so it was seen": ([T("a"), T("b", "a", finish="cut")], ["a"]),
    "a cut turn alone is no row": ([T("a", finish="cut")], []),
}


@pytest.mark.parametrize(("turns", "paths"), LEFT.values(), ids=LEFT)
def test_where_the_job_wants_cut_turns_left(turns: list[T], paths: list[str]) -> None:
    delivered = {turn.id for turn in turns if turn.finish != "cut"}
    found = rows(turns, delivered=delivered, spec={"cut_turns": "leave"})
    assert ["".join(row.turn_ids) for row in found] == paths


def test_one_conversation_to_the_token() -> None:
    turns = [T("a", given=2, made=2), T("b", "a", given=1, made=3, spans=((4, 0, 1), (5, 1, 3)))]
    (row,) = rows(turns)
    assert row.prompt_ids == array("i", [1000, 1001])
    assert row.response_ids == array("i", [1500, 1501, 2000, 2500, 2501, 2502])
    assert row.loss_mask == array("b", [1, 1, 0, 1, 1, 1])
    assert row.versions == array("i", [1, 1, -1, 4, 5, 5])
    assert row.response_logprobs == array(
        "f", [-1000 / 8192, -1001 / 8192, 0.0, -2000 / 8192, -2001 / 8192, -2002 / 8192]
    )
    assert (row.turn_ids, row.turn_ends) == (("a", "b"), (2, 6))


def test_a_shared_node_is_trained_once() -> None:
    turns = [T("a", given=1, made=1), T("b", "a", given=1, made=1), T("c", "a", given=1, made=1)]
    first, second = rows(turns)
    assert first.loss_mask == array("b", [1, 0, 1])
    assert second.loss_mask == array("b", [0, 0, 1])
    assert second.versions == array("i", [-1, -1, 1])
    assert list(second.response_logprobs)[:2] == [0.0, 0.0]
    assert second.response_ids[0] == first.response_ids[0] == 1500, "the ids stay: they are the context"
    assert second.turn_ends == (1, 3)


def test_or_in_every_row_if_asked() -> None:
    turns = [T("a", made=1), T("b", "a", given=1, made=1), T("c", "a", given=1, made=1)]
    for row in rows(turns, sealed=Sealed(at=0.0, shared_nodes="every")):
        assert row.loss_mask == array("b", [1, 0, 1])


FORKS: dict[str, tuple[list[T], list[tuple[str, str]]]] = {
    "the first conversation is no fork": ([T("a"), T("b", "a")], [("", "")]),
    "a later root says why and left no turn": (
        [T("a"), T("b", fork="new_root")],
        [("", ""), ("new_root", "")],
    ),
    "a branch says why and what it left": (
        [T("a"), T("b", "a"), T("c", "a", "assistant_edited"), T("d", "c")],
        [("", ""), ("assistant_edited", "a")],
    ),
    "the fork is named although its row came first": (
        [T("a"), T("b", "a"), T("c", "a", "tools_changed"), T("d", "b")],
        [("tools_changed", "a"), ("", "")],
    ),
    "of two forks on a path the last one": (
        [T("a"), T("b", fork="compaction"), T("c", "b"), T("d", "b", "retry_resampled")],
        [("", ""), ("compaction", ""), ("retry_resampled", "b")],
    ),
}


@pytest.mark.parametrize(("turns", "forks"), FORKS.values(), ids=FORKS)
def test_forks(turns: list[T], forks: list[tuple[str, str]]) -> None:
    assert [(row.fork_reason, row.parent_turn) for row in rows(turns)] == forks


def test_what_a_row_says_beside_its_tokens() -> None:
    half = {"temperature": 0.5}
    turns = [T("a", sampling=half), T("b", "a", finish="length", sampling=half)]
    sealed = Sealed(
        at=9.0,
        failure_class="policy",
        failure_reason="TurnLimit",
        complete=False,
        reward=0.5,
        discount=0.5,
        info={"who": "seal"},
    )
    facts = Facts(
        model="m", renderer="r", engine="vllm", logprobs_mode="processed_logprobs", tokenizer_digest="d"
    )
    given_ = Rewarded(at=8.0, turn=None, reward=1.0, info={"who": "reward", "why": "half"})
    (row,) = rows(
        turns, sealed=sealed, rewarded=[given_], completed={"who": "agent", "score": 1}, facts=facts
    )
    assert row == Trajectory(
        **{name: SPEC[name] for name in ("job", "uid", "sample_index", "attempt", "metadata")},
        session_id="s",
        trajectory_id=0,
        role="main",
        main=True,
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_logprobs=row.response_logprobs,
        loss_mask=row.loss_mask,
        versions=row.versions,
        turn_ids=("a", "b"),
        turn_ends=(3, 8),
        reward=0.5,
        turn_rewards=(0.25, 0.5),
        reward_info={"who": "seal", "why": "half", "score": 1},
        finish_reason="length",
        failure_class="policy",
        failure_reason="TurnLimit",
        complete=False,
        model="m",
        renderer="r",
        engine="vllm",
        logprobs_mode="processed_logprobs",
        sampling={"temperature": 0.5},
        tokenizer_digest="d",
        created_at=9.0,
    )


def test_a_spec_that_says_nothing_is_enough() -> None:
    (row,) = linearize(
        [T("a")], session_id="s", spec={"uid": None}, sealed=Sealed(at=0.0), delivered=(), facts=None
    )
    assert (row.uid, row.sample_index, row.reward, row.turn_rewards) == ("", 0, None, ())


def test_nothing_of_an_aborted_session_is_trained_on() -> None:
    assert rows([T("a")], sealed=Sealed(at=0.0, aborted=True)) == []


REFUSED: dict[str, tuple[list[T], Sealed, type[Exception], str]] = {
    "a parent that is unknown": ([T("b", "a")], Sealed(at=0.0), CorruptRecord, "turn b: its parent a"),
    "a parent that came later": ([T("b", "a"), T("a")], Sealed(at=0.0), CorruptRecord, "turn b"),
    "versions with a hole": ([T("a", spans=((1, 0, 2),))], Sealed(at=0.0), CorruptRecord, "turn a"),
    "shared nodes some other way": (
        [T("a")],
        Sealed(at=0.0, shared_nodes="never"),
        InvalidBody,
        "once or every",
    ),
    "a reward that is no number": ([T("a")], Sealed(at=0.0, reward=float("nan")), InvalidBody, "finite"),
}


@pytest.mark.parametrize(("turns", "sealed", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(turns: list[T], sealed: Sealed, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rows(turns, sealed=sealed)


@st.composite
def forests(draw: st.DrawFn) -> list[T]:
    """Up to 12 turns, each below any earlier one or a root."""
    turns: list[T] = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([None, *(turn.id for turn in turns)]))
        turns.append(
            T(
                chr(ord("a") + number),
                parent,
                given=draw(st.integers(0, 3)),
                made=draw(st.integers(0, 3)),
                finish=draw(st.sampled_from(["stop", "stop", "length", "abort"])),
                version=number,
            )
        )
    return turns


@given(turns=forests(), data=st.data())
def test_every_seen_token_is_trained_exactly_once(turns: list[T], data: st.DataObject) -> None:
    delivered = data.draw(st.sets(st.sampled_from([turn.id for turn in turns])))
    out = rows(turns, delivered=delivered)
    by_id = {turn.id: turn for turn in turns}
    trained: list[int] = []
    for row in out:
        path = [by_id[name] for name in row.turn_ids]
        told = [token for at, turn in enumerate(path) for part in _parts(at, turn) for token in part]
        assert list(row.response_ids) == told
        assert row.prompt_ids == path[0].context
        for token, mask, logprob, version in zip(
            row.response_ids, row.loss_mask, row.response_logprobs, row.versions, strict=True
        ):
            if mask:
                trained.append(token)
                made_by = by_id[chr(ord("a") + token // 1000 - 1)]
                assert logprob == made_by.logprobs[token % 1000 - 500]
                assert version == made_by.version
            else:
                assert (logprob, version) == (0.0, -1)
    on_rows = {name for row in out for name in row.turn_ids}
    assert sorted(trained) == sorted(token for name in on_rows for token in by_id[name].ids)
    extended = {turn.parent for turn in turns}
    must = {turn.id for turn in turns if turn.finish != "abort" and turn.id in delivered} | (
        extended - {None}
    )
    assert must <= on_rows, "what the agent saw is in some row"
    assert [row.trajectory_id for row in out] == list(range(len(out)))


def _parts(at: int, turn: T) -> tuple[Any, ...]:
    return (turn.context, turn.ids) if at else (turn.ids,)


@pytest.mark.parametrize(
    ("source", "info"),
    [
        ("exitCode", {"complete": {"exit_code": 0, "correct": True}, "exit_code": 1}),
        ("verifier", {"exit_code": 1, "correct": True}),
    ],
)
def test_where_exit_codes_are_the_reward_an_agent_s_words_stand_apart_from_what_was_seen(
    source: str, info: dict[str, Any]
) -> None:
    sealed = Sealed(at=9.0, reward=0.0, info={"exit_code": 1})
    said = {"exit_code": 0, "correct": True}
    (row,) = rows([T("a")], sealed=sealed, completed=said, spec={"reward_source": source})
    assert row.reward_info == info
    (silent,) = rows([T("a")], sealed=sealed, completed={}, spec={"reward_source": source})
    assert silent.reward_info == {"exit_code": 1}


def test_what_turns_have_in_common_stands_once_and_the_rest_with_each() -> None:
    new: dict[str, Any] = {"build": "vllm 2", "logprobs_mode": "raw_logprobs", "renderer": "r2"}
    turns = [
        T("a", sampling={"temperature": 1.0, "top_k": 5, "seed": 1}),
        T("b", "a", sampling={"temperature": 0.5, "top_k": 5, "seed": 1, "stop": ["x"]}, **new),
        T("c", "a", sampling={"temperature": 1.0, "top_k": 5, "seed": 2}),
    ]
    facts = Facts(renderer="r1", engine="vllm 1", logprobs_mode="processed_logprobs")
    changed, seeded = rows(turns, facts=facts)
    assert (changed.engine, changed.logprobs_mode, changed.renderer) == ("", "", "")
    assert changed.sampling == {"top_k": 5, "seed": 1}
    assert changed.settings(0) == ("vllm 1", "processed_logprobs", "r1", turns[0].sampling)
    assert changed.settings(1) == ("vllm 2", "raw_logprobs", "r2", turns[1].sampling)
    assert (seeded.engine, seeded.logprobs_mode, seeded.renderer) == ("vllm 1", "processed_logprobs", "r1")
    assert seeded.sampling == {"temperature": 1.0, "top_k": 5}
    assert seeded.turn_settings == ({"sampling": {"seed": 1}}, {"sampling": {"seed": 2}})


SAMPLED = st.fixed_dictionaries(
    {}, optional={"temperature": st.sampled_from([0.5, 1.0]), "seed": st.integers(0, 2)}
)


@given(turns=st.lists(st.tuples(SAMPLED, *[st.sampled_from(["", "1", "2"])] * 3), min_size=1, max_size=4))
def test_the_settings_of_each_turn_are_its_own(turns: list[tuple[dict[str, Any], str, str, str]]) -> None:
    """Whatever they have in common; where a turn does not say, as in an old journal, the exporter's are taken."""
    path = [
        T(name, parent, sampling=sampling, build=build, logprobs_mode=mode, renderer=renderer)
        for name, parent, (sampling, build, mode, renderer) in zip(
            "abcd", (None, *"abc"), turns, strict=False
        )
    ]
    (row,) = rows(path, facts=Facts(engine="e", logprobs_mode="m", renderer="r"))
    for number, turn in enumerate(path):
        told = (turn.build or "e", turn.logprobs_mode or "m", turn.renderer or "r", turn.sampling)
        assert row.settings(number) == told
