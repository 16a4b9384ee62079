"""What a run on this machine says in its folder, for trainers that attach to it, and how they say that they are there.

`attach.json` is replaced whole by the run. A trainer holds a lock on a file of its own in `trainers/`, with the leases
that it has, one a line: gone with the file it left, there without a lock it died. (pure)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from sandgate.contract.errors import CorruptRecord, NewerRecord, Unavailable

FORMAT = 1
ATTACH, LOCK, SECRET, TRAINERS, JOB = "attach.json", ".lock", "secret", "trainers", "job.json"
"""In the folder of a run: what it says, what it locks while it lives, what signs its keys, who trains on it, and what
it was asked for."""


class NoRun(Unavailable):
    """The run of this machine that is talked to is not there, and was waited for: asking again at once is no use."""


class RunState(StrEnum):
    """Where a run stands. One that holds no lock is not there, whatever it said last."""

    STARTING = "starting"
    RUNNING = "running"
    """Its gateways answer."""
    OVER = "over"
    """Nothing will ever run again, and every group that a trainer was waited for is acknowledged. Its gateways answer
    until the trainers have left."""
    STOPPED = "stopped"
    """Before it was over: the same command goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run says."""

    job: str
    state: RunState
    complete: bool = False
    """It is over, and every group is there."""
    gateways: dict[str, str] = field(default_factory=dict)
    """Name -> origin, of those that answer."""
    engines: tuple[str, ...] = ()
    """Where they are, for a trainer that brings them new weights."""
    owed: int = 0
    """Groups that no trainer has acknowledged, when it ended."""
    missing: int = 0
    """Groups that are not there, when it was over."""
    heartbeat_s: float = 30.0
    """How often it wants a sign of life."""

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def of(cls, text: str) -> RunInfo:
        """Raises NewerRecord, CorruptRecord."""
        try:
            document = json.loads(text)
            if (seen := int(document["format"])) > FORMAT:
                raise NewerRecord(seen=seen, known=FORMAT)
            return cls(
                job=str(document["job"]),
                state=RunState(document["state"]),
                complete=bool(document["complete"]),
                gateways={str(name): str(origin) for name, origin in document["gateways"].items()},
                engines=tuple(map(str, document["engines"])),
                owed=int(document["owed"]),
                missing=int(document.get("missing", 0)),
                heartbeat_s=float(document["heartbeat_s"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptRecord(f"{ATTACH}: {error!r}") from error
