"""The three books: what agents were told, what the trainer has, what the engine sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.engine.script import logprob_of
from tests.cluster.e2e.chaos.agent import TURNS

Asked = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


def check(
    rows: Sequence[Trajectory], asked: Sequence[Asked], samples: set[tuple[str, int]], decode: Decode
) -> int:
    """Every sample once and well ended; every told turn once, as told and as sampled. Gives the number of turns."""
    assert Counter((row.uid, row.sample_index) for row in rows) == Counter(samples)
    ended = {(row.session_id, row.failure_reason, row.reward) for row in rows}
    assert {(reason, reward) for _, reason, reward in ended} == {(None, 1.0)}, ended
    assert max(Counter(turn for row in rows for turn in row.turn_ids).values()) == 1, "a turn in two rows"
    by_turn: dict[str, list[Asked]] = {}
    for one in asked:
        by_turn.setdefault(one["id"].split("-")[0], []).append(one)
    for row in rows:
        book = row.reward_info["book"]
        assert [turn for turn, _ in book] == list(row.turn_ids), f"{row.session_id}: told and kept differ"
        begin = 0
        for (turn, text), end in zip(book, row.turn_ends, strict=True):
            start = begin + next(at for at, mask in enumerate(row.loss_mask[begin:end]) if mask)
            assert set(row.loss_mask[begin:start]) <= {0}
            assert set(row.loss_mask[start:end]) == {1}
            sampled = list(row.response_ids[start:end])
            context = [*row.prompt_ids, *row.response_ids[:start]]
            assert sampled_so(context, sampled, by_turn.get(turn, [])), (
                f"{row.session_id} {turn}: not as sampled"
            )
            assert list(row.response_logprobs[start:end]) == [
                logprob_of(token, len(context) + at) for at, token in enumerate(sampled)
            ]
            assert decode(sampled[:-1]) == text, f"{row.session_id} {turn}: not as told"
            begin = end
        assert not any(row.loss_mask[begin:])
    return len(rows) * TURNS


def sampled_so(context: list[int], sampled: list[int], pieces: Sequence[Asked]) -> bool:
    """Whether the engine sampled this for this turn: in one piece, or cut and gone on with where it was cut, each piece
    with everything before it as its prompt."""
    known = {0}
    """Up to where the turn is explained by what was asked: the start of each next piece."""
    for piece in sorted(pieces, key=lambda one: len(one["prompt"])):
        start = len(piece["prompt"]) - len(context)
        if start in known and piece["prompt"] == [*context, *sampled[:start]]:
            plan = piece["plan"]
            agreed = 0
            while agreed < min(len(plan), len(sampled) - start) and plan[agreed] == sampled[start + agreed]:
                agreed += 1
            known |= set(range(start, start + agreed + 1))
    return len(sampled) in known
