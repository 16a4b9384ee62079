"""Do the labels of the engines' weights carry policy versions? Then one without a number is a replica that lost them.

An engine does not derive the label from its weights: it starts as "default", and is what the trainer sets. So a replica
that restarts, or joins, has the weights it was started with and a label without a number. Once the trainer is known to
number its weights, what such a replica samples is of no version that was told, and must not be recorded as one. (pure)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

INITIAL = 0
"""The version before any was told: the weights that engines are started with. Under it, no number is the truth."""

_NUMBER = re.compile(r"(\d+)\s*$")


def number_of(label: str | int) -> int | None:
    """ "step-7", "7" and 7 are 7; None for a label without a number at its end ("default")."""
    if isinstance(label, int):
        return label
    found = _NUMBER.search(label)
    return int(found[1]) if found else None


@dataclass(slots=True)
class Labels:
    """What one gateway knows of its engines' labels."""

    known: bool = False
    """They carry versions: the trainer said so, or a number was seen. False for engines whose labels nobody sets: then
    every token is of the version last told, which is all that anybody knows."""

    def heed(self, label: str | int) -> None:
        """A label was seen on an engine."""
        self.known = self.known or number_of(label) is not None

    def demanded(self, told: int) -> bool:
        """Must tokens be sampled under a number, now that version `told` is the last told?"""
        return self.known and told > INITIAL

    def against(self, label: str | int, told: int) -> str:
        """Why a replica with this label must not be used; empty if it may be. A number is the truth, old or new."""
        if not self.demanded(told) or number_of(label) is not None:
            return ""
        return (
            f"its weights are labelled {label!r}, which is no version, but version {told} was told and labels carry "
            "versions: it restarted or is new, and has the weights that it was started with; make the weight update "
            "again, or load the weights and set the label"
        )
