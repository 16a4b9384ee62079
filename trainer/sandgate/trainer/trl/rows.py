"""Turns trajectories into what a `rollout_func` of TRL's GRPOTrainer returns: one completion per prompt entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sandgate.contract.choices import TurnRole
from sandgate.contract.errors import Conflict, InvalidBody
from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.batches import emptied
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, Truncated
from sandgate.trainer.credit.samples import by_sample

NO_BOUND = 2**31 - 1
"""Tokens; TRL has no bound of prompts."""
Pick = Callable[[Sequence[Trajectory]], Trajectory]
"""Of a session's trajectories, the one that is trained on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a group."""

    trajectory: Trajectory | None
    """None: its session sampled nothing, or there is none."""
    left_out: int = 0
    """Further trajectories of its session."""
    why: LeftOut | None = None
    """It teaches nothing, and why (`prepare`'s reasons)."""

    @property
    def trained(self) -> bool:
        """It teaches."""
        return self.trajectory is not None and self.why is None


def final(rows: Sequence[Trajectory]) -> Trajectory:
    """The one that an agent's answer and reward belong to: the main one, not a title that was asked after it."""
    return main_row(rows)


def group_rows(
    trajectories: Sequence[Trajectory], n: int, pick: Pick = final, rules: CreditRules | None = None
) -> list[Row]:
    """One Row for each sample 0..n-1, with all that was sampled on its path: of the session that counts, as `by_sample`
    says, not of an attempt that failed before it. `rules`: which teach.
    Raises Conflict for a sample beyond: the job's groups are larger than the trainer's; InvalidBody for images, which
    TRL's rollout_func cannot carry, and for numbers that are none."""
    sessions = by_sample(trajectories, range(n), "num_generations")
    taught = replace(rules or CreditRules(), roles=tuple(TurnRole))  # the one that was picked, whatever it is
    found = []
    for sample in range(n):
        rows = [row for row in sessions.get(sample, ()) if row.response_ids]
        if not rows:
            found.append(Row(None, why=LeftOut.NOTHING_SAMPLED))
            continue
        own = alone(rows, pick(rows))
        found.append(Row(own, len(rows) - 1, taught.why(own)))
    return found


def rules_of(args: Any, *, training: bool = True) -> CreditRules:
    """What a GRPOConfig takes: `max_completion_length` tokens after the prompt, and episodes that a limit ended unless
    `mask_truncated_completions`. In an evaluation those count: one that was cut short did not solve its task."""
    most = getattr(args, "max_completion_length", None)
    mask = bool(getattr(args, "mask_truncated_completions", False))
    truncated: Truncated = "mask" if mask and training else "score"
    return CreditRules(lengths=Lengths(NO_BOUND, int(most)) if most else None, truncated=truncated)


def pad_of(trainer: Any) -> int:
    """The padding token of GRPOTrainer's tokenizer, which is that of its processor for a model that takes images, too.
    Raises InvalidBody if there is none."""
    given = trainer.processing_class
    for found in (getattr(trainer, "_tokenizer", None), given, getattr(given, "tokenizer", None)):
        if (pad := getattr(found, "pad_token_id", None)) is not None:
            return int(pad)
    raise InvalidBody(f"{type(given).__name__} has no padding token", field="processing_class")


def rollout(rows: Sequence[Row], pad_token_id: int) -> dict[str, list[Any]]:
    """TRL's dict: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask` (per row a list, unpadded, the last three of
    one length; context has mask 0 and logprob 0.0), `env_reward` (float, None for a masked row), and for reward
    functions `uid`, `sandgate_session`, `sandgate_trajectory`, `sandgate_sample`, `sandgate_reward_info`,
    `sandgate_versions` (per completion id, -1 for context), `sandgate_failure` (the reason, None for a session that
    ended well), `sandgate_masked` (why the row teaches nothing, None if it does) and `sandgate_left_out` (further rows
    of its session).

    A row without tokens, or with more than the trainer takes, is one token under mask 0: TRL takes no empty completion,
    and a row that was cut would be none of the policy's.
    """
    rows = [_within(row) for row in rows]
    return {
        "prompt_ids": [_ids(row, "prompt_ids", pad_token_id) for row in rows],
        "completion_ids": [_ids(row, "response_ids", pad_token_id) for row in rows],
        "logprobs": [row.trajectory.response_logprobs.tolist() if row.trajectory else [0.0] for row in rows],
        "env_mask": [_mask(row) for row in rows],
        "env_reward": [row.trajectory.reward if row.trajectory and row.trained else None for row in rows],
        "uid": [row.trajectory.uid if row.trajectory else None for row in rows],
        "sandgate_session": [row.trajectory.session_id if row.trajectory else None for row in rows],
        "sandgate_trajectory": [row.trajectory.trajectory_id if row.trajectory else None for row in rows],
        "sandgate_sample": [row.trajectory.sample_index if row.trajectory else None for row in rows],
        "sandgate_reward_info": [row.trajectory.reward_info if row.trajectory else {} for row in rows],
        "sandgate_versions": [row.trajectory.versions.tolist() if row.trajectory else [-1] for row in rows],
        "sandgate_failure": [row.trajectory.failure_reason if row.trajectory else "NoTurns" for row in rows],
        "sandgate_left_out": [row.left_out for row in rows],
        "sandgate_masked": [None if row.why is None else row.why.value for row in rows],
    }


def _within(row: Row) -> Row:
    if row.trajectory is None or row.why is not LeftOut.TOO_LONG:
        return row
    return replace(row, trajectory=emptied(row.trajectory))


def _ids(row: Row, name: str, pad_token_id: int) -> list[int]:
    return (getattr(row.trajectory, name).tolist() if row.trajectory else None) or [pad_token_id]


def _mask(row: Row) -> list[int]:
    """As long as the completion: TRL pads a shorter one with 1, and would train on what the environment said."""
    if row.trajectory is None:
        return [0]
    return row.trajectory.loss_mask.tolist() if row.trained else [0] * len(row.trajectory.loss_mask)


def env_reward(
    prompts: Sequence[Any], env_reward: Sequence[float | None], **columns: Any
) -> list[float | None]:
    """A reward function for GRPOTrainer that passes on what agents, verifiers and trainers gave the sessions. Logs, by
    TRL's own means, the share of masked rows and how far behind the trainer tokens were sampled."""
    if len(env_reward) != len(prompts):
        raise InvalidBody(f"{len(env_reward)} rewards for {len(prompts)} prompts", field="env_reward")
    if (log := columns.get("log_metric")) is not None:
        for name, value in _metrics(env_reward, columns).items():
            log(name, value)
    return list(env_reward)


def _metrics(rewards: Sequence[float | None], columns: Mapping[str, Any]) -> dict[str, float]:
    found = {"rollout/masked": sum(one is None for one in rewards) / len(rewards)}
    if (masked := columns.get("sandgate_masked")) is not None:
        found |= {f"rollout/masked/{why.value}": masked.count(why.value) / len(rewards) for why in LeftOut}
    now, versions = columns.get("sandgate_version"), columns.get("sandgate_versions")
    if now is not None and versions is not None:
        behind = [now[0] - least for row in versions if (least := _oldest(row)) is not None]
        if behind:
            found["rollout/versions_behind_mean"] = sum(behind) / len(behind)
            found["rollout/versions_behind_max"] = float(max(behind))
    return found


def _oldest(versions: Sequence[int]) -> int | None:
    """Of the tokens that were sampled: context has -1."""
    seen = np.asarray(versions, np.int64)
    sampled = seen[seen >= 0]
    return int(sampled.min()) if sampled.size else None


def check_sampling(rows: Sequence[Row], temperature: float) -> None:
    """Are captured logprobs those of the policy that TRL computes? Raises Conflict: an importance ratio of logprobs at
    different temperatures is wrong for every token."""
    for row in rows:
        if (one := row.trajectory) is None:
            continue
        for turn in range(len(one.turn_ids)):
            settings = one.settings(turn)
            told = settings.sampling.get("temperature")
            if told is not None and abs(float(told) - temperature) > 1e-6:
                raise Conflict(
                    f"session {one.session_id}, turn {one.turn_ids[turn]}, was sampled at temperature {told},"
                    f" GRPOConfig.temperature is {temperature}: make the job's spec.sampling.temperature the same"
                )
            if settings.logprobs_mode == "raw_logprobs" and temperature != 1.0:
                raise Conflict(
                    f"the engine reports raw_logprobs, which are not those of temperature {temperature}: start it"
                    " with --logprobs-mode processed_logprobs"
                )
