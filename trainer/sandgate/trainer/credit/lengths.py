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
    total: int | None = None
    """Of both, where the trainer bounds that too."""

    def __post_init__(self) -> None:
        for name in ("prompt", "response", "total"):
            if (most := getattr(self, name)) is not None and most < 1:
                raise InvalidBody(f"{name} length must be at least 1", field=name)

    def fits(self, row: Trajectory) -> bool:
        """Whether the row is within them. Nothing is ever cut to them: a row that lost its head is no row of the
        policy, whose logprobs are of the whole."""
        prompt, response = len(row.prompt_ids), len(row.response_ids)
        if self.total is not None and prompt + response > self.total:
            return False
        return prompt <= self.prompt and response <= self.response

    def limits(self) -> dict[str, Json]:
        """As a session's limits: its gateway then refuses, before it samples, what would not fit. `total` is none of
        them: make it the model's window (`model.maxModelLen`)."""
        return {"prompt_tokens": self.prompt, "response_tokens": self.response}
