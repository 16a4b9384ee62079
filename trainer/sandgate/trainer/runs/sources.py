"""Sources of sessions: a job in a cluster, a gateway, or the --out directory of a run, all read alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sandgate.contract import control_api
from sandgate.contract.errors import Gone, InvalidBody, NotFound, SandgateError
from sandgate.contract.keys import Scope
from sandgate.contract.kinds import BASE_URL
from sandgate.contract.session import SessionState
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.trainer.client.cluster import (
    ClusterPlace,
    JobGateways,
    agent_session,
    agent_sessions,
    job_gateways,
)
from sandgate.trainer.runs import folder
from sandgate.trainer.runs.trees import Tree

if TYPE_CHECKING:
    from sandgate.trainer.client.blocking_client import RolloutClient

CANDIDATES = 6
"""Sessions that are named when the beginning of an id is not enough."""
ATTEMPTS = 2
"""A person is waiting: say soon that nobody answers."""


class Source(Protocol):
    """The interface of all sources: sessions, trees, trajectories; reading takes no lease."""

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        """Summaries in id order, of one job or ("") of all."""
        ...

    def paused(self, job: str) -> list[str]:
        """Gateways on hold: calls in flight wait there, for a weight update that goes on or was left half done."""
        ...

    def tree(self, session_id: str, *, text: bool) -> Tree:
        """Raises NotFound."""
        ...

    def named(self, beginning: str, limit: int) -> list[str]:
        """Ids of sessions that begin like that, in order, at most `limit`."""
        ...

    def trajectories(self, job: str) -> Iterator[Trajectory]:
        """Rows of sessions that are finalized and not retired, by session id; pictures and routing tables in
        them may be None. Looking takes no lease."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """Sessions of a running gateway."""

    url: str
    key: str

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        with self.client() as client:
            yield from client.sessions(job=job or None)

    def paused(self, job: str) -> list[str]:
        with self.client() as client:
            return [self.url] if client.status()["paused"] else []

    def tree(self, session_id: str, *, text: bool) -> Tree:
        with self.client() as client:
            return client.tree(session_id, text=text)

    def named(self, beginning: str, limit: int) -> list[str]:
        with self.client() as client:  # ids come in order: those that begin with the last one follow it
            page = client.call(control_api.sessions(after=beginning))
        found = [one["session_id"] for one in page.sessions if one["session_id"].startswith(beginning)]
        return found[:limit]

    def trajectories(self, job: str) -> Iterator[Trajectory]:
        with self.client() as client:
            for one in client.sessions(state=SessionState.FINALIZED.value, job=job or None):
                if one.get("retired"):
                    continue
                try:
                    yield from client.trajectories(one["session_id"])
                except Gone:  # retired since
                    continue

    def client(self) -> RolloutClient:
        from sandgate.gateway.client import Retries
        from sandgate.trainer.client.blocking_client import RolloutClient

        return RolloutClient(self.url, self.key, retries=Retries(attempts=ATTEMPTS))


@dataclass(frozen=True, slots=True)
class Stored:
    """Sessions in the directory of a run."""

    out: Path
    tokenizer: str = ""

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        from sandgate.gateway import offline  # loads the gateway; asking one over HTTP does not need it

        calls = self._in_flight(job)
        for one in offline.sessions(self.out, job):
            yield one | {"in_flight": calls[one["session_id"]]}

    def paused(self, job: str) -> list[str]:
        found: list[str] = []
        for name, live in self._gateways():
            with suppress(SandgateError):  # it starts, or ends
                found += [name] if live.paused(job) else []
        return found

    def _in_flight(self, job: str) -> Counter[str]:
        """Session -> its calls, as the run's gateways tell: a journal knows a turn when it is over."""
        found: Counter[str] = Counter()
        for _, live in self._gateways():
            with suppress(SandgateError):
                found.update({one["session_id"]: one["in_flight"] for one in live.sessions(job)})
        return found

    def _gateways(self) -> list[tuple[str, Live]]:
        """Of the run that goes on in this directory, if one does. To look is no trainer's sign of life."""
        from sandgate.trainer.client.attach import RunPlace

        place = RunPlace(self.out)
        try:
            if not place.alive() or (said := place.says()) is None:
                return []
            key = place.key(said.job, Scope.ADMIN)
        except (OSError, ValueError):  # another person's, or one that begins
            return []
        return [(name, Live(url, key)) for name, url in said.gateways.items()]

    def tree(self, session_id: str, *, text: bool) -> Tree:
        from sandgate.gateway import offline

        tokenizer = self.tokenizer or folder.used_tokenizer(self.out)
        return offline.tree(self.out, session_id, text=text, tokenizer=tokenizer)

    def named(self, beginning: str, limit: int) -> list[str]:
        from sandgate.gateway import offline

        return offline.named(self.out, beginning, limit)

    def trajectories(self, job: str) -> Iterator[Trajectory]:
        return (one for one in folder.trajectories(self.out, binary=False) if not job or one.job == job)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sessions at the gateways of a RolloutJob."""

    place: ClusterPlace

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        with self._gateways(job) as found:
            for live in _each(found):
                yield from live.sessions(job)

    def paused(self, job: str) -> list[str]:
        with self._gateways(job) as found:
            origins = {origin: name for name, origin in found.origins.items()}
            return [origins[live.url] for live in _each(found) if live.paused(job)]

    def trajectories(self, job: str) -> Iterator[Trajectory]:
        with self._gateways(job) as found:
            for live in _each(found):
                yield from live.trajectories(job)

    def tree(self, session_id: str, *, text: bool) -> Tree:
        """By its AgentSession, which knows job and gateway."""
        spec = agent_session(session_id, self.place)["spec"]
        with self.gateway(str(spec["jobName"]), str(spec["gateway"])) as live:
            return live.tree(session_id, text=text)

    def named(self, beginning: str, limit: int) -> list[str]:
        return agent_sessions(beginning, limit, self.place)

    @contextmanager
    def _gateways(self, job: str) -> Iterator[JobGateways]:
        if not job:
            raise InvalidBody("say which job; or where to look: --out DIR or --url URL", field="JOB")
        with job_gateways(job, self.place) as found:
            yield found

    @contextmanager
    def gateway(self, job: str, name: str) -> Iterator[Live]:
        """One of them. Raises NotFound."""
        with job_gateways(job, self.place) as found:
            if name not in found.origins:
                raise NotFound(f"job {job} has no gateway {name}; it has {', '.join(found.origins)}")
            yield Live(found.origins[name], found.key)


def tree_of(where: Source, session: str) -> Tree:
    """The tree, with text, of a session, by its id or by the beginning of it, if no other session begins like that.
    Raises NotFound, InvalidBody (several do: the first are named)."""
    if not session:
        raise InvalidBody("is empty; say a session's id or the beginning of one", field="SESSION")
    try:
        return where.tree(session, text=True)
    except NotFound:
        found = where.named(session, CANDIDATES + 1)
        if not found:
            raise
    return where.tree(only_one(session, found), text=True)


def only_one(session: str, found: Sequence[str]) -> str:
    """The only session of those that begin like that, of which there is one at least. Raises InvalidBody (there are
    several: the first are named)."""
    if len(found) > 1:
        more = ", ... and more" if len(found) > CANDIDATES else ""
        listed = ", ".join(found[:CANDIDATES]) + more
        raise InvalidBody(f"several sessions begin with {session!r}: {listed}", field="SESSION")
    return found[0]


def _each(found: JobGateways) -> Iterator[Live]:
    for origin in found.origins.values():
        yield Live(origin, found.key)


def source(
    out: Path | None, url: str | None, key: str | None, tokenizer: str = "", place: ClusterPlace | None = None
) -> Source:
    """`out`, `url` or, without both, the cluster at `place`. Raises InvalidBody."""
    if out is not None and url is not None:
        raise InvalidBody("say where to look once: --out DIR or --url URL", field="--out")
    if url is not None:
        if (wrong := BASE_URL.wrong(url)) is not None:
            raise InvalidBody(wrong, field="--url")
        return Live(url, key or "")
    if out is None:
        return Cluster(place or ClusterPlace())
    return Stored(out, tokenizer)
