"""Names of a training run's groups, so that a trainer that was killed finds its own again. (pure)"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sandgate.contract.errors import InvalidBody
from sandgate.contract.job import Task
from sandgate.contract.names import UID_CHARS_MAX

RUN = re.compile(r"[A-Za-z0-9-]{1,40}")
_UID = re.compile(
    r"(?P<run>[A-Za-z0-9-]{1,40})\.(?P<kind>[te])(?P<step>\d{1,9})\.(?P<call>\d{1,12})\.\d{1,6}\..+",
    re.DOTALL,
)
_HEAD_CHARS = len(".t") + 9 + len(".") + 12 + len(".") + 6 + len(".")
"""The most that a round puts between a run's name and a task's, as `_UID` has it."""


@dataclass(frozen=True, slots=True, order=True)
class Round:
    """One call of the rollout_func: the optimizer steps done before it, and which call at that count it is. Both come
    again after a resume, and with them the uids of its groups."""

    step: int
    call: int = 0
    training: bool = True
    """Not an evaluation."""

    def tasks(self, run: str, wanted: list[Task]) -> list[Task]:
        """The same tasks under the names of their groups, each different."""
        head = f"{run}.{'t' if self.training else 'e'}{self.step}.{self.call}"
        return [
            Task(uid=f"{head}.{at}.{task.uid}", prompt=task.prompt, data=task.data)
            for at, task in enumerate(wanted)
        ]

    @classmethod
    def of(cls, run: str, uid: str) -> Self | None:
        """The round of a group; None if it is not this run's."""
        found = _UID.fullmatch(uid)
        if found is None or found["run"] != run:
            return None
        return cls(int(found["step"]), int(found["call"]), found["kind"] == "t")


def check_run(run: str) -> str:
    """`run`, if it may stand in names. Raises InvalidBody."""
    if not RUN.fullmatch(run):
        raise InvalidBody(f"run: {run!r} is not 1 to 40 of A-Z a-z 0-9 -", field="run")
    return run


def check_tasks(run: str, tasks: Iterable[Task]) -> None:
    """Raises InvalidBody for a task whose uid leaves no room for the names of all its rounds."""
    room = UID_CHARS_MAX - len(run) - _HEAD_CHARS
    for task in tasks:
        if len(task.uid) > room:
            raise InvalidBody(
                f"task {task.uid[:40]!r}...: a uid of {len(task.uid)} characters leaves no room for the name of its"
                f" round; with the run's name there are {room}",
                field="uid",
            )
