"""The three books: what agents were told, what the trainer has, what the engine sampled."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.engine.scripted.script import logprob_of
from tests.cluster.e2e.chaos.agent import TURNS
from tests.e2e.truth import TOLERANCE, Parity

Asked = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


class Truth(Protocol):
    """Who knows what was sampled."""

    def check(
        self, turn: str, context: list[int], sampled: list[int], logprobs: list[float], text: str
    ) -> None:
        """One turn of a row, and what its agent was told. Raises AssertionError."""


def check(rows: Sequence[Trajectory], samples: set[tuple[str, int]], truth: Truth) -> int:
    """Every sample once and well ended; every told turn once, as told and as sampled. Gives the number of turns."""
    assert Counter((row.uid, row.sample_index) for row in rows) == Counter(samples)
    ended = {(row.session_id, row.failure_reason, row.reward) for row in rows}
    assert {(reason, reward) for _, reason, reward in ended} == {(None, 1.0)}, ended
    assert max(Counter(turn for row in rows for turn in row.turn_ids).values()) == 1, "a turn in two rows"
    for row in rows:
        book = row.reward_info["book"]
        assert [turn for turn, _ in book] == list(row.turn_ids), f"{row.session_id}: told and kept differ"
        begin = 0
        for (turn, text), end in zip(book, row.turn_ends, strict=True):
            start = begin + next(at for at, mask in enumerate(row.loss_mask[begin:end]) if mask)
            assert set(row.loss_mask[begin:start]) <= {0}
            assert set(row.loss_mask[start:end]) == {1}
            context = [*row.prompt_ids, *row.response_ids[:start]]
            truth.check(
                turn, context, list(row.response_ids[start:end]), list(row.response_logprobs[start:end]), text
            )
            begin = end
        assert not any(row.loss_mask[begin:])
    return len(rows) * TURNS


class Script:
    """The scripted engine's book."""

    def __init__(self, asked: Sequence[Asked], decode: Decode) -> None:
        self._decode = decode
        self._by_turn: dict[str, list[Asked]] = {}
        for one in asked:
            self._by_turn.setdefault(one["id"].split("-")[0], []).append(one)

    def check(
        self, turn: str, context: list[int], sampled: list[int], logprobs: list[float], text: str
    ) -> None:
        assert sampled_so(context, sampled, self._by_turn.get(turn, [])), f"{turn}: not as sampled"
        assert logprobs == [logprob_of(token, len(context) + at) for at, token in enumerate(sampled)]
        assert self._decode(sampled[:-1]) == text, f"{turn}: not as told"


class Policy:
    """Of a real engine: the model itself."""

    def __init__(self, parity: Parity, decode: Decode, temperature: float) -> None:
        self._parity, self._decode, self._temperature = parity, decode, temperature

    def check(
        self, turn: str, context: list[int], sampled: list[int], logprobs: list[float], text: str
    ) -> None:
        ours = self._parity.logprobs(array("i", context), array("i", sampled), self._temperature)
        assert max(abs(a - b) for a, b in zip(logprobs, ours, strict=True)) < TOLERANCE
        assert text.strip() in self._decode(sampled), f"{turn}: not as told"


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
