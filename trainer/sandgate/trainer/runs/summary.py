"""Summary of a run in numbers: a fold over its trajectories. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandgate.contract.trajectory import Json, Trajectory

SOLVED = 1.0
"""A reward of at least this counts as solved."""


@dataclass(slots=True)
class Summary:
    """Sums over trajectories and, where a session is meant, over sessions: a session may give several trajectories,
    and its reward is that of the last one."""

    trajectories: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    """Tokens with mask 1: each sampled token once."""
    context_tokens: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    rewards: dict[str, tuple[tuple[bool, int], float | None]] = field(default_factory=dict)
    """Session -> (main, trajectory id) and reward of the row that stands for it; None too if it is masked."""
    failures: dict[str, str] = field(default_factory=dict)
    """Session -> `class/reason` of one that did not end well."""
    groups: set[tuple[str, str]] = field(default_factory=set)
    turn_ids: set[tuple[str, str]] = field(default_factory=set)
    """Of turns that are counted: trajectories of a session share their heads."""

    def add(self, one: Trajectory) -> None:
        """Count one trajectory."""
        self.trajectories += 1
        sampled = one.loss_mask.count(1)
        self.sampled_tokens += sampled
        self.context_tokens += len(one.response_ids) - sampled
        self.prompt_tokens += len(one.prompt_ids)
        self.groups.add((one.job, one.uid))
        self.turn_ids.update((one.session_id, turn) for turn in one.turn_ids)
        if one.fork_reason:
            self.forks[one.fork_reason] += 1
        if one.failure_class:
            self.failures[one.session_id] = f"{one.failure_class}/{one.failure_reason}"
        last, _ = self.rewards.get(one.session_id, ((False, -1), None))
        this = one.main, one.trajectory_id  # as of `contract.trajectory.main_row`, which trainers learn from
        if this > last:
            self.rewards[one.session_id] = this, None if one.masked else one.reward

    def numbers(self, wall_s: float) -> dict[str, Json]:
        """What `sandgate run` prints and `--json` gives. Rewards are over sessions that have one and are not
        masked; the deviation is the population's. `wall_s`: seconds the run took, 0 if nobody knows."""
        known = [reward for _, reward in self.rewards.values() if reward is not None]
        mean = math.fsum(known) / len(known) if known else None
        spread = (
            math.sqrt(math.fsum((one - (mean or 0.0)) ** 2 for one in known) / len(known)) if known else None
        )
        return {
            "groups": len(self.groups),
            "sessions": len(self.rewards),
            "trajectories": self.trajectories,
            "reward_mean": mean,
            "reward_std": spread,
            "scored": len(known),
            "solved": sum(reward >= SOLVED for reward in known) / len(known) if known else None,
            "turns": len(self.turn_ids),
            "sampled_tokens": self.sampled_tokens,
            "context_tokens": self.context_tokens,
            "prompt_tokens": self.prompt_tokens,
            "forks": dict(self.forks.most_common()),
            "failures": dict(Counter(self.failures.values()).most_common()),
            "wall_s": round(wall_s, 3),
            "tokens_per_s": round(self.sampled_tokens / wall_s, 1) if wall_s else None,
        }


def summarize(trajectories: Iterable[Trajectory]) -> Summary:
    """Consumes its input one by one."""
    found = Summary()
    for one in trajectories:
        found.add(one)
    return found
