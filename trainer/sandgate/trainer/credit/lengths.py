"""The most tokens that a trainer takes of a row. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Json, Trajectory


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens. verl: `rollout.prompt_length` and `rollout.response_length`."""

    prompt: int
    response: int

    def __post_init__(self) -> None:
        for name in ("prompt", "response"):
            if getattr(self, name) < 1:
                raise InvalidBody(f"{name} length must be at least 1", field=name)

    def fits(self, row: Trajectory) -> bool:
        """Whether the row is within them. Nothing is ever cut to them: a row that lost its head is no row of the
        policy, whose logprobs are of the whole."""
        return len(row.prompt_ids) <= self.prompt and len(row.response_ids) <= self.response

    def limits(self) -> dict[str, Json]:
        """As a session's limits: its gateway then refuses, before it samples, what would not fit."""
        return {"prompt_tokens": self.prompt, "response_tokens": self.response}
