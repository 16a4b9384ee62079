"""Logs of a session's agent and verifier: files of a run on this machine, or of pods in a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

from sandgate.contract.errors import Gone, NotFound
from sandgate.contract.names import pod_name, verifier_name
from sandgate.trainer.client.cluster import ClusterPlace, agent_session, agent_sessions, pod_log
from sandgate.trainer.runs.sources import CANDIDATES, only_one

CHUNK = 65536
LOOK_S = 0.2
"""Between looks at a file that is followed."""


class Program(StrEnum):
    """Whose log."""

    AGENT = "agent"
    VERIFIER = "verifier"


SUFFIXES = {Program.AGENT: ".log", Program.VERIFIER: ".verifier.log"}
"""Of files in `logs/` of a run."""


def of_run(
    out: Path,
    session: str,
    program: Program,
    *,
    follow: bool,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """Reads the file, and with `follow` waits for more, for ever. Raises NotFound now, InvalidBody for the beginning of
    several names."""
    return _read(_file(out, session, program), follow=follow, wait=wait)


def _file(out: Path, session: str, program: Program) -> Path:
    suffix, folder = SUFFIXES[program], out / "logs"
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such directory")
    names = sorted(path.name.removesuffix(suffix) for path in folder.iterdir() if path.name.endswith(suffix))
    known = [name for name in names if program is Program.VERIFIER or not name.endswith(".verifier")]
    if session in known:
        return folder / f"{session}{suffix}"
    found = [name for name in known if name.startswith(session)]
    if not found:
        raise NotFound(f"{folder}: no log of {program} of a session {session}: did it start?")
    return folder / f"{only_one(session, found[: CANDIDATES + 1])}{suffix}"


def _read(path: Path, *, follow: bool, wait: Callable[[float], None]) -> Iterator[bytes]:
    with path.open("rb") as file:
        while True:
            if chunk := file.read(CHUNK):
                yield chunk
            elif follow:
                wait(LOOK_S)
            else:
                return


def of_cluster(session: str, program: Program, place: ClusterPlace, *, follow: bool) -> Iterator[bytes]:
    """Reads the log of the session's pod; with `follow` until its program ends. A pod is there until the session is
    committed, and longer where it failed; when it is gone its AgentSession says how it ended: raises Gone with that.
    NotFound: no such session, or its program has not begun."""
    name = _name(session, place)
    pod = pod_name(name) if program is Program.AGENT else verifier_name(name)
    try:
        yield from pod_log(pod, place, follow=follow)
    except NotFound:
        status = agent_session(name, place).get("status") or {}
        if ended := _ended(status):
            raise Gone(f"the pod of {name} is gone, and its log with it. {ended}") from None
        raise NotFound(f"{name} has no {program} yet") from None


def _name(session: str, place: ClusterPlace) -> str:
    try:
        agent_session(session, place)
    except NotFound:
        found = agent_sessions(session, CANDIDATES + 1, place)
        if not found:
            raise
        return only_one(session, found)
    return session


def _ended(status: dict[str, object]) -> str:
    """In the operator's words; empty while it runs."""
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if one.get("type") == "Finished" and one.get("status") == "True":
            return f"It ended: {one.get('reason', '')} {one.get('message', '')}".strip()
    return ""
