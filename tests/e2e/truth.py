"""Are trajectories what the engine sampled? Held against what went over its wire, and against a trainer's own forward
pass."""

from __future__ import annotations

import json
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sandgate.contract.trajectory import Trajectory
from tests.support.recorder import Generation

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parity_fp32.py"
TOLERANCE = 1e-4
"""Natural logs: two float32 implementations of one model differ by some 1e-5 (facts: 2.1e-5 over 40 GRPO steps)."""


class Parity:
    """transformers' float32 forward pass, in the engine's environment; one process for many questions."""

    def __init__(self, python: Path, model: Path) -> None:
        self.asked = 0
        """Tokens."""
        self.worst = 0.0
        """Largest difference seen."""
        self._process = subprocess.Popen(
            [python, SCRIPT, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its stdin, and with that it ends

    def logprobs(self, prompt: array[int], response: array[int], temperature: float) -> list[float]:
        """One natural log per response id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = {
            "prompt_ids": prompt.tolist(),
            "response_ids": response.tolist(),
            "temperature": temperature,
        }
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())["logprobs"]
        return found

    def check(self, generations: Iterable[Generation]) -> int:
        """Every token of them. How many that were."""
        before = self.asked
        for one in generations:
            ours = self.logprobs(one.prompt, one.ids, one.temperature)
            for captured, computed in zip(one.logprobs, ours, strict=True):
                self.asked += 1
                self.worst = max(self.worst, abs(captured - computed))
        assert self.worst < TOLERANCE
        return self.asked - before


def check(
    rows: Sequence[Trajectory], generations: Sequence[Generation], *, version: int = 0
) -> list[Generation]:
    """Every token of `rows` against the engine's books. The generations that are in them, each of which is so exactly
    once; what else the engine sampled is the caller's to explain."""
    by_turn = {one.turn: one for one in generations if one.passed_on}
    seen: Counter[str] = Counter()
    for row in rows:
        known = 0
        """Ids of the response that are explained."""
        for turn, end in zip(row.turn_ids, row.turn_ends, strict=True):
            made = by_turn[turn]
            known = _turn(row, made, known, end, version)
            seen[turn] += 1
        assert known == len(row.response_ids), "nothing comes after the last sampled token"
        _as_told(row, [by_turn[turn] for turn in row.turn_ids])
    assert set(seen.values()) <= {1}, "no turn is in two rows"
    sampled = sum(sum(row.loss_mask) for row in rows)
    assert sampled == sum(len(by_turn[turn].ids) for turn in seen), "as many as the engine counts"
    return [by_turn[turn] for turn in seen]


def _turn(row: Trajectory, made: Generation, known: int, end: int, version: int) -> int:
    """One turn of a row. Where its sampled ids end."""
    start = end - len(made.ids)
    assert start >= known, "a turn begins where its parent ended, or later"
    assert row.prompt_ids + row.response_ids[:start] == made.prompt, (
        "the engine was given its parent's prompt and response, id for id, and what is new"
    )
    assert row.response_ids[start:end] == made.ids, "ids are the engine's"
    assert row.response_logprobs[start:end].tobytes() == made.logprobs.tobytes(), "logprobs are, bit for bit"
    assert row.loss_mask[known:end].tolist() == [0] * (start - known) + [1] * len(made.ids)
    assert row.versions[known:end].tolist() == [-1] * (start - known) + [version] * len(made.ids)
    assert row.response_logprobs[known:start].tolist() == [0.0] * (start - known)
    return end


def _as_told(row: Trajectory, made: Sequence[Generation]) -> None:
    """What a row says about how its turns were sampled is what the engine was told for each."""
    assert row.finish_reason == made[-1].finish
    assert row.model == made[-1].asked["model"]
    for number, turn in enumerate(made):
        settings = row.settings(number)
        assert settings.logprobs_mode == "processed_logprobs"
        assert settings.engine.startswith("vllm ")
        told = turn.asked["sampling_params"]
        for name in ("temperature", "max_tokens", "seed"):
            assert settings.sampling.get(name) == told.get(name), name
