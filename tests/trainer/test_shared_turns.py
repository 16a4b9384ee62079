"""What a row that is left out shares with others of its session is trained in one of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.trajectories.linearize import linearize
from sandgate.trainer.credit.batches import kept_in_place, taught
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.credit.shared_turns import trained
from tests.gateway.trajectories.forest import T, seen

MASKED = CreditRules(truncated="mask")
SHORT = CreditRules(lengths=Lengths(10, 22))
A, B = T("a"), T("b", "a")
CASES: dict[str, tuple[CreditRules, list[T], str]] = {
    "an answer that was cut and asked for again takes nothing along": (
        MASKED, [A, B, T("c", "b", finish="length"), T("d", "b", fork="retry_resampled"), T("e", "d")], "abde",
    ),
    "a branch that is too long takes nothing along": (
        SHORT, [A, B, T("c", "b", made=30), T("d", "b", fork="retry_resampled"), T("e", "d")], "abde",
    ),
    "of several that go on the first has it": (
        MASKED, [A, B, T("c", "b", finish="length"), T("d", "b", fork="x"), T("e", "b", fork="x")], "abde",
    ),
    "of several that were cut each hands on its own": (
        MASKED,
        [A, T("b", "a", finish="length"), T("c", "a", fork="x"), T("d", "c", finish="length"), T("e", "c", fork="x")],
        "ace",
    ),
    "a side call that is left out has nothing of it": (
        CreditRules(), [A, T("b", "a", role="side"), T("c", "a")], "ac",
    ),
    "where the answer itself was cut nothing teaches": (MASKED, [A, T("b", "a"), T("c", "b", finish="length")], ""),
}  # fmt: skip


@pytest.mark.parametrize("shared", ["once", "every"])
@pytest.mark.parametrize(("rules", "turns", "found"), CASES.values(), ids=CASES)
def test_each_turn_of_rows_that_teach_is_trained(
    rules: CreditRules, turns: list[T], found: str, shared: str
) -> None:
    rows = linearize(
        turns,
        session_id="s",
        spec={"uid": "u"},
        sealed=Sealed(at=1.0, reward=1.0, shared_nodes=shared),
        delivered=seen(turns),
    )
    group = prepare(rows, lengths=rules.lengths, truncated=rules.truncated)
    kept, whys = kept_in_place(rows, rules)
    ways: list[Sequence[Trajectory]] = [
        [row.trajectory for row in group.taught],
        taught(rows, rules)[0],
        [row for row, why in zip(kept, whys, strict=True) if why is None],
    ]
    for way in ways:
        times = Counter(turn for row in way for turn in trained(row))
        assert "".join(sorted(times)) == found
        assert shared == "every" or set(times.values()) <= {1}
        for row in way:
            sampled = [token % 1000 >= 500 for token in row.response_ids]
            assert all(not mask or made for mask, made in zip(row.loss_mask, sampled, strict=True))
            assert [version == 1 for version in row.versions] == [mask == 1 for mask in row.loss_mask]
            assert [logprob < 0 for logprob in row.response_logprobs] == [mask == 1 for mask in row.loss_mask]


def test_rows_that_all_teach_are_as_they_were() -> None:
    turns = [A, B, T("c", "a", fork="x")]
    rows = linearize(
        turns, session_id="s", spec={"uid": "u"}, sealed=Sealed(at=1.0, reward=1.0), delivered=seen(turns)
    )
    assert [row.trajectory for row in prepare(rows).rows] == rows
