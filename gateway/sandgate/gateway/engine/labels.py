"""Weight labels of engines: their policy version, and replicas that lost it and so must not be used. (pure)

An engine does not derive the label from its weights: the label starts as "default", and the trainer sets it. So a
replica that restarts, or joins, has the weights that it was started with and a label without a number. Once the trainer
is known to number its weights, the tokens of such a replica are of no known version, and must not be recorded as of
one."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field

from sandgate.contract.kinds import INT32_MAX

INITIAL = 0
"""The version before the trainer set any: the weights that engines are started with. Their label needs no number."""

VERSION_MAX = INT32_MAX
"""Versions are int32 in records and trajectories."""

_NUMBER = re.compile(r"(\d+)\s*$")
_DIGITS = len(str(VERSION_MAX))
_SHOWN = 60
"""Characters of a label that are repeated: it may be of any length."""


def number_of(label: str | int) -> int | None:
    """The version in a label: "step-7", "7" and 7 give 7; None for a label without a number at its end ("default"), and
    for one whose number no version can have (`beyond`)."""
    if isinstance(label, int):
        return label
    found = _NUMBER.search(label)
    digits = found[1].lstrip("0") or "0" if found else ""
    if not digits or len(digits) > _DIGITS:  # int() refuses some thousand digits
        return None
    number = int(digits)
    return number if number <= VERSION_MAX else None


def beyond(label: str) -> str:
    """Why the number at the end of a label, a time stamp say, is no version; empty if it is one, or there is none."""
    if number_of(label) is not None or not _NUMBER.search(label):
        return ""
    return (
        f"its weights are labelled {shown(label)}, whose number is over {VERSION_MAX}, so no version: it counts as a"
        " label without a number; label it with the version that is told"
    )


def shown(label: str | int) -> str:
    """A label for a message."""
    said = repr(label)
    return said if len(said) <= _SHOWN else said[:_SHOWN] + "..."


@dataclass(slots=True)
class Labels:
    """Whether the labels of a gateway's engines carry versions."""

    known: bool = False
    """Labels carry versions: the trainer said so, or a number was seen. False for engines whose labels nobody sets:
    then every token counts as of the version last set, which is all that anybody knows."""
    newest: int = INITIAL
    """The highest version in a label that was seen since this gateway started: a weight update that failed half-way
    leaves one that no gateway was told, and tokens of it."""

    def heed(self, label: str | int | None) -> None:
        """Takes note of a label that an engine has, or that tokens came with; None: they came with none."""
        if label is not None and (number := number_of(label)) is not None:
            self.known, self.newest = True, max(self.newest, number)

    def demanded(self, told: int) -> bool:
        """Whether labels need a number, now that the trainer has set version `told`."""
        return self.known and told > INITIAL

    def against(self, label: str | int, told: int) -> str:
        """Why a replica with this label must not be used; empty if it may be. Any number is right, old or new."""
        if not self.demanded(told) or number_of(label) is not None:
            return ""
        if isinstance(label, str) and (why := beyond(label)):
            return why
        return (
            f"its weights are labelled {shown(label)}, which is no version, but version {told} was told and labels "
            "carry versions: it restarted or is new, and has the weights that it was started with; make the weight "
            "update again, or load the weights and set the label"
        )


@dataclass(slots=True)
class SeenLabels:
    """The number in each replica's label, as last seen: the version of tokens for which the engine reports none, as of
    a stream that nobody read to its end."""

    _numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(number, version that was the last told when it was asked for or came)."""

    def heed(self, url: str, label: str | int, told: int) -> None:
        """A replica has this label. Without a number, nothing is known of it."""
        number = number_of(label)
        if number is None or not 0 <= number <= VERSION_MAX:
            self.forget(url)
        else:
            self._numbers[url] = number, told

    def forget(self, url: str) -> None:
        """It may have another label by now."""
        self._numbers.pop(url, None)

    def keep(self, urls: Container[str]) -> None:
        """Forgets all others."""
        for url in [url for url in self._numbers if url not in urls]:
            self.forget(url)

    def version(self, url: str, told: int) -> int | None:
        """Of what a replica samples now; None if it is not known. Another version was told since the label was seen:
        it may be of either, and is taken for the older, which `max_behind` may drop too early, never too late."""
        seen = self._numbers.get(url)
        if seen is None:
            return None
        number, then = seen
        return number if then == told else min(number, told)
