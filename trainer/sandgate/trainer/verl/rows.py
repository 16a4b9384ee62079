"""Trajectories as verl wants them: cut to its lengths, and with what its record carries beside the tokens. (pure)

verl pads and never truncates: a prompt longer than `rollout.prompt_length`, or a response longer than
`rollout.response_length`, makes a `torch.cat` fail steps later. So rows are cut first, the way verl's own agent loops
do: the prompt loses its beginning, the response its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory

SCALARS = (bool, int, float, str)
"""What verl can make a column of."""
UID_HASH_CHARS = 8
"""Keeps `a_b` and `a-b` apart; 32 bits are plenty for the tasks of one step."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """`rollout.prompt_length` and `rollout.response_length`, in tokens."""

    prompt: int
    response: int

    def __post_init__(self) -> None:
        for name in ("prompt", "response"):
            if getattr(self, name) < 1:
                raise InvalidBody(f"{name} length must be at least 1", field=name)


def cut(row: Trajectory, lengths: Lengths) -> Trajectory:
    """The row within the lengths; the same object if it fits. Raises InvalidBody for a row with images that does not:
    its placeholders must stay one to one with the features."""
    prompt, response = lengths.prompt, lengths.response
    if len(row.prompt_ids) <= prompt and len(row.response_ids) <= response:
        return row
    if row.multimodal is not None:
        raise InvalidBody(
            f"session {row.session_id}: {len(row.prompt_ids)} + {len(row.response_ids)} tokens with images do not fit"
            f" {prompt} + {response}, and cannot be cut",
            field="multimodal",
        )
    turns = sum(start < response for start in (0, *row.turn_ends[:-1])) if row.turn_ends else 0
    return replace(
        row,
        prompt_ids=row.prompt_ids[max(0, len(row.prompt_ids) - prompt) :],
        response_ids=row.response_ids[:response],
        response_logprobs=row.response_logprobs[:response],
        loss_mask=row.loss_mask[:response],
        versions=row.versions[:response],
        turn_ids=row.turn_ids[:turns],
        turn_ends=tuple(min(end, response) for end in row.turn_ends[:turns]),
        turn_rewards=row.turn_rewards[:turns],
    )


def usable(rows: Iterable[Trajectory], lengths: Lengths) -> list[Trajectory]:
    """Cut, and without those that have nothing to train on: verl writes the score of an empty response to the wrong
    place, and a row whose sampled tokens were all cut away only dilutes the loss."""
    return [row for row in (cut(one, lengths) for one in rows) if any(row.loss_mask)]


def num_turns(row: Trajectory) -> int:
    """As verl counts: one of the assistant and one before it, for each."""
    return 2 * len(row.turn_ids)


def steps(row: Trajectory) -> tuple[int | None, int | None]:
    """Oldest and newest policy version of the sampled tokens; verl knows no version per token."""
    seen = {version for version, mask in zip(row.versions, row.loss_mask, strict=True) if mask}
    return (min(seen), max(seen)) if seen else (None, None)


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
