"""Trajectories as verl wants them: what its record carries beside the tokens. (pure)

verl pads and never truncates: a prompt longer than `rollout.prompt_length`, or a response longer than
`rollout.response_length`, makes a `torch.cat` fail steps later. Its own agent loops cut such rows; here gateways refuse
what would not fit before it is sampled, and a row that is longer all the same is left out and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.lengths import Lengths as Lengths

SCALARS = (bool, int, float, str)
"""What verl can make a column of."""
VERSIONS = "sandgate_versions"
"""Column: the policy version of each token of the response; -1 for context. verl itself reads the oldest and newest."""
UID_HASH_CHARS = 8
"""Keeps `a_b` and `a-b` apart; 32 bits are plenty for the tasks of one step."""


def usable(rows: Iterable[Trajectory], lengths: Lengths) -> list[Trajectory]:
    """Those that fit, and have something to train on: verl writes the score of an empty response to the wrong place."""
    return [row for row in rows if lengths.fits(row) and 1 in row.loss_mask]


def num_turns(row: Trajectory) -> int:
    """As verl counts: one of the assistant and one before it, for each."""
    return 2 * len(row.turn_ids)


def steps(row: Trajectory) -> tuple[int | None, int | None]:
    """Oldest and newest policy version of the sampled tokens, which is what verl knows of versions."""
    seen = np.frombuffer(row.versions, np.int32)[np.frombuffer(row.loss_mask, np.int8) == 1]
    return (int(seen.min()), int(seen.max())) if seen.size else (None, None)


def extra_info(row: Trajectory) -> dict[str, Any]:
    """verl's reward_extra_info: the scalars of reward_info."""
    return {name: value for name, value in row.reward_info.items() if isinstance(value, SCALARS)}


def extra_fields(row: Trajectory) -> dict[str, Any]:
    """verl's extra_fields of a row; the same keys for every row."""
    oldest, newest = steps(row)
    return {
        "min_global_steps": oldest,
        "max_global_steps": newest,
        "reward_extra_info": extra_info(row),
        "turn_scores": list(row.turn_rewards),
        "tool_rewards": [],
        "sandgate_uid": row.uid,
        "sandgate_session": row.session_id,
        "sandgate_trajectory": row.trajectory_id,
        "sandgate_main": row.main or not row.role,
        "sandgate_finish": row.finish_reason,
        "sandgate_failure": row.failure_reason,
    }


def uid_key(uid: str) -> str:
    """A uid that may stand in TransferQueue keys: verl takes everything before the first `_` for the uid. Others are
    renamed, unlike any other; the row keeps the original in extra_fields["sandgate_uid"]."""
    if uid and "_" not in uid:
        return uid
    digest = hashlib.sha256(uid.encode()).hexdigest()[:UID_HASH_CHARS]
    return f"{uid.replace('_', '-')}-{digest}".lstrip("-")


def all_or_none(rows: Sequence[Trajectory]) -> bool:
    """Has every row a score? verl keeps scores only then."""
    return bool(rows) and all(row.reward is not None for row in rows)


def agent_loop_output(row: Trajectory) -> Any:
    """verl's `AgentLoopOutput`: what its own post-processing starts from."""
    from verl.experimental.agent_loop.agent_loop import (  # type: ignore[import-not-found]
        AgentLoopMetrics,
        AgentLoopOutput,
    )

    return AgentLoopOutput(
        prompt_ids=row.prompt_ids.tolist(),
        response_ids=row.response_ids.tolist(),
        response_mask=row.loss_mask.tolist(),
        response_logprobs=row.response_logprobs.tolist(),
        reward_score=row.reward,
        num_turns=num_turns(row),
        metrics=AgentLoopMetrics(),
        extra_fields=extra_fields(row),
    )
