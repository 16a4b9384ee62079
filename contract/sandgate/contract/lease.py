"""A lease: whole groups of trajectories on loan to a trainer, until it acknowledges them or the time is over. (pure)"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from sandgate.contract.trajectory import Trajectory, from_json

LEASE_TTL_S: Final = 300.0
"""How long a trainer has unless it says otherwise: a step on one batch of groups, with room."""
ARROW: Final = "application/vnd.apache.arrow.stream"
"""Media type of a lease's rows as columns; the other is JSON."""
LEASE_HEADER: Final = "x-sandgate-lease"
"""Where an Arrow answer says the lease's id; without it there was nothing to lease."""
UNTIL_HEADER: Final = "x-sandgate-lease-until"
"""Where it says `until`."""
LEASES_HEADER: Final = "x-sandgate-leases"
"""Where an Arrow answer says how many of its rows each lease has, if several were asked for: "8,8,0"."""
LEASES_MAX: Final = 256
"""Leases of one request."""
FAILED_HEADER: Final = "x-sandgate-lease-failed"
"""Where it names the sessions whose rows it is without, because they cannot be given."""
EMPTY_HEADER: Final = "x-sandgate-lease-empty"
"""Where it names the groups of leases without a row: what JSON has under `empty`, percent-encoded."""
EMPTY_BYTES_MAX: Final = 6_000
"""Of that header, which clients bound; the leases beyond are not named."""


def lease_name(lease_id: str, number: int) -> str:
    """The id of one of several leases that were asked for by one id; the first has that."""
    return f"{lease_id}.{number}" if number else lease_id


@dataclass(frozen=True, slots=True)
class Lease:
    """Whole groups on loan: acknowledge them, or they are offered again after `until` (unix seconds)."""

    lease_id: str
    until: float
    sessions: tuple[str, ...]
    """All of them; one that never took a turn has no trajectory."""
    trajectories: tuple[Trajectory, ...]
    """By group, sample and trajectory id."""
    job: str = ""
    """Of the one group of a lease without a row; otherwise its rows say so."""
    uid: str = ""
    """The same: its task."""

    @classmethod
    def several_of(cls, answer: Any) -> list[Lease]:
        """From the gateway's JSON when several leases were asked for. A gateway that knows of one only gives that."""
        if "leases" not in answer:
            one = cls.of(answer)
            return [] if one is None else [one]
        rows, found = [from_json(row) for row in answer["trajectories"]], []
        names = empty_names(answer.get("empty"))
        for said in answer["leases"]:
            mine, rows = tuple(rows[: said["rows"]]), rows[said["rows"] :]
            sessions, lease_id = tuple(map(str, said["sessions"])), str(said["lease_id"])
            until = float(answer["until"])
            found.append(cls(lease_id, until, sessions, mine, *names.get(lease_id, ())))
        return found

    @classmethod
    def of(cls, answer: Any) -> Lease | None:
        """From the gateway's JSON; None if there was nothing to lease. Raises what missing or wrong fields raise."""
        if answer["lease_id"] is None:
            return None
        return cls(
            str(answer["lease_id"]),
            float(answer["until"]),
            tuple(str(session) for session in answer["sessions"]),
            tuple(from_json(row) for row in answer["trajectories"]),
            *empty_names(answer.get("empty")).get(str(answer["lease_id"]), ()),
        )

    def groups(self) -> dict[tuple[str, str], list[Trajectory]]:
        """(job, task uid) -> its rows. A session without a task is a group of its own, named by its id."""
        groups: dict[tuple[str, str], list[Trajectory]] = {}
        for row in self.trajectories:
            groups.setdefault((row.job, row.uid or row.session_id), []).append(row)
        return groups


def empty_header(empty: Iterable[Mapping[str, str]]) -> str:
    """For EMPTY_HEADER; as many as it has room for."""
    found: list[str] = []
    left = EMPTY_BYTES_MAX - len(quote("[]"))
    for one in empty:
        text = quote(json.dumps(one, separators=(",", ":")) + ",")
        if (left := left - len(text)) < 0:
            break
        found.append(text)
    return quote("[") + "".join(found).removesuffix(quote(",")) + quote("]") if found else ""


def empty_names(said: Any) -> dict[str, tuple[str, str]]:
    """Lease -> (job, task uid), of what JSON has under `empty`, or of the text of EMPTY_HEADER. What is neither, as of
    an older gateway, names nothing."""
    try:
        listed = json.loads(unquote(said)) if isinstance(said, str) else said or ()
        return {str(one["lease_id"]): (str(one["job"]), str(one["uid"])) for one in listed}
    except (TypeError, ValueError, KeyError):
        return {}
