"""GarbageCollector: deletes pods, keys and old AgentSessions that nobody needs any more, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import SandgateError
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.labels import JOB, SESSION
from sandgate.contract.names import group_name
from sandgate.operator.cluster.finished_tasks import FinishedTasks
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import SessionSeen, slim
from sandgate.operator.observed import events

log = logging.getLogger(__name__)

BATCH = 256
"""AgentSessions that become history at once."""
SELECTED = 16
"""Names in one selector. The API server deletes what is selected one after the other; a busy one takes 0.25 to 1 s for
each (measured)."""
AT_ONCE = 12
"""Requests for each kind at once. A busy API server gives each of those that wait its share: with hundreds of creates
under way, four for pods fell behind for good, and what is left over makes it slower still."""
LINGER_S = 2.0
"""How long a batch waits for more."""
AGAIN_S = 5.0
BACKLOG = 1000
"""If more pods, Secrets or AgentSessions are due than this and twice what runs at once, new groups wait until half of
them are gone. Each object more makes an API server slower, and its next deletion too: 400 sessions at once left five
times as many AgentSessions as are kept (measured)."""


WORTH_A_LOOK = frozenset(
    reason.value
    for reason, kind in FAILURE_CLASS.items()
    if kind is not FailureClass.POLICY and reason not in (FailureReason.ABORTED, FailureReason.STRAGGLER)
)
"""Failures whose pods are kept: not wrong answers, and not what the operator cut by itself."""


@dataclass(slots=True)
class GarbageCollector:
    """Of one job. `run` it as a task."""

    at: JobState
    ledger: FinishedTasks
    """What is remembered of AgentSessions that go."""
    pods: dict[str, None] = field(default_factory=dict)
    """Sessions whose pods may go."""
    failed: dict[str, None] = field(default_factory=dict)
    """Sessions whose pods stay for their logs, oldest first."""
    secrets: dict[str, None] = field(default_factory=dict)
    """Keys Secrets that may go. Each by its name: whoever may delete a collection of Secrets is told what was in it, so
    our role does not have that verb."""
    done: deque[str] = field(default_factory=deque)
    """Sessions that are over for good, oldest first: their AgentSessions are history."""
    _old: int = 0
    """AgentSessions that were due when they were last counted."""
    _refused: dict[str, str] = field(default_factory=dict)
    """Kind -> what the API server last answered instead."""
    _behind: bool = False
    _occasions: tuple[asyncio.Event, ...] = field(
        default_factory=lambda: tuple(asyncio.Event() for _ in range(3))
    )
    """Of pods, Secrets, AgentSessions: each goes on whatever holds up the others."""

    def forget(self, name: str) -> None:
        """Nothing of this session is needed any more but its record."""
        at = self.at
        if name in at.agents.held or name in at.verifiers.held:
            self._let_go(name)
        kept = at.sessions.held.get(name)
        if kept is not None and not kept.spec.remote:  # that one is its user's
            at.sessions.held[name] = slim(kept)
            self.done.append(name)
        self._look()

    def late(self, name: str) -> None:
        """A pod came of this session, of which nothing is needed any more."""
        self._let_go(name)
        self._look()

    def _let_go(self, name: str) -> None:
        """Its pods go: at once, or when there are enough failed ones that are newer."""
        if name in self.failed:
            return
        if not self._failed(name):
            self.pods[name] = None
            return
        self.failed[name] = None
        while len(self.failed) > self.at.settings.failed_pods:
            oldest = next(iter(self.failed))
            del self.failed[oldest]
            self.pods[oldest] = None

    def _failed(self, name: str) -> bool:
        """It failed, of what is nothing to learn from, and nothing of its pods runs or holds anything any more."""
        at = self.at
        seen, held = at.sessions.held.get(name), (at.agents.held.get(name), at.verifiers.held.get(name))
        reason = seen.status.failure_reason if seen is not None else None
        return reason in WORTH_A_LOOK and all(
            one.seen.over and not one.seen.deleting for one in held if one is not None
        )

    def settled(self, uids: Sequence[str]) -> None:
        """No session of these tasks will ever run again."""
        at = self.at
        for uid in uids:
            at.tasks.pop(uid, None)
        groups = {group_name(at.name, uid) for uid in uids} if at.keys else set()
        for name in [name for name in at.keys if name.rpartition("-keys-")[0] in groups]:
            del at.keys[name]
            self.secrets[name] = None
        self._look()

    def resume(self, *, pods: Iterable[str], sessions: Iterable[SessionSeen]) -> None:
        """What was over before this driver started: sessions with pods, AgentSessions."""
        for name in pods:
            self._let_go(name)
        for one in self.at.sessions.held.values():  # an AgentSession is made after its keys
            if one.spec.remote:
                continue
            name = self.at.keys_of(one.ref)
            if one.ref.uid in self.at.observed.settled:
                self.secrets[name] = None
            else:
                self.at.keys.setdefault(name, 0.0)
        known = set(self.done)
        self.done.extend(
            one.name
            for one in sorted(sessions, key=lambda one: one.version)
            if one.name not in known and not one.spec.remote
        )
        self._look()

    def _look(self) -> None:
        for occasion in self._occasions:
            occasion.set()
        self._tell()

    def _tell(self) -> None:
        """Whether new groups must wait for what is left of others."""
        due = {"pods": len(self.pods), "Secrets": len(self.secrets), "AgentSessions": self._old}
        most = BACKLOG + 2 * self.at.observed.want.spec.parallelism
        littered = [kind for kind, many in due.items() if many > (most // 2 if self._behind else most)]
        self._behind = bool(littered)
        why = f"more {' and '.join(littered)} of sessions that are over are left than are deleted in time"
        refused = "".join(f"; {kind}: {said}" for kind, said in self._refused.items())
        self.at.observe(events.CleaningLags(why + refused if littered else ""))

    async def run(self) -> None:
        """For ever."""
        sweeps = {
            "pods": self._sweep_pods,
            "Secrets": self._sweep_secrets,
            "AgentSessions": self._sweep_sessions,
        }
        async with asyncio.TaskGroup() as tasks:
            for occasion, (kind, sweep) in zip(self._occasions, sweeps.items(), strict=True):
                tasks.create_task(self._keep(kind, occasion, sweep))

    async def _keep(
        self, kind: str, occasion: asyncio.Event, sweep: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """For ever: everything of one kind that is due now, then what came meanwhile; what fails stays due."""
        while True:
            await occasion.wait()
            await asyncio.sleep(LINGER_S)
            occasion.clear()
            try:
                await sweep()
                self._refused.pop(kind, None)
                self._tell()
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: collection waits: %s", self.at.namespace, self.at.name, error)
                self._refused[kind] = str(error)
                self._tell()
                await asyncio.sleep(AGAIN_S)
                occasion.set()

    async def _sweep_pods(self) -> None:
        await self._delete("Pod", list(self.pods), self.pods)

    async def _sweep_secrets(self) -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        await whole(*(self._delete_secret(name, turn) for name in list(self.secrets)))

    async def _delete_secret(self, name: str, turn: asyncio.Semaphore) -> None:
        async with turn:
            await self.at.kube.delete("Secret", self.at.namespace, name)
        self.secrets.pop(name, None)
        self._tell()

    async def _sweep_sessions(self) -> None:
        at = self.at
        while batch := self._history():
            await self.ledger.keep(batch)
            due = dict.fromkeys(batch)
            try:
                await self._delete(AgentSession.KIND, batch, due)
            finally:  # also where one of its requests failed
                gone = set(batch) - due.keys()
                self.done = deque(name for name in self.done if name not in gone)
                for name in gone:
                    if (kept := at.sessions.held.get(name)) is not None:
                        at.sessions.pop(name, kept.uid)

    def _history(self) -> list[str]:
        """The oldest AgentSessions that are too many. Those of tasks that may be tried again still count attempts."""
        at = self.at
        many, held, groups = len(self.done) - at.settings.history, at.sessions.held, at.observed.groups
        old = (name for name in self.done if name not in held or held[name].spec.task_uid not in groups)
        due = list(islice(old, max(0, many)))
        self._old = len(due)
        self._tell()
        return due[:BATCH]

    async def _delete(self, kind: str, sessions: list[str], due: dict[str, None]) -> None:
        """Deletes what these sessions have of a kind, and takes them from `due`, some by some."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def some(part: list[str]) -> None:
            async with turn:
                labels = f"{JOB}={self.at.name},{SESSION} in ({','.join(part)})"
                await self.at.kube.delete_many(kind, self.at.namespace, labels=labels)
            for name in part:
                due.pop(name, None)
            self._tell()

        parts = range(0, len(sessions), SELECTED)
        await whole(*(some(sessions[start : start + SELECTED]) for start in parts))


async def whole(*parts: Coroutine[Any, Any, None]) -> None:
    """All of them to their ends; then raises what one of them raised."""
    for error in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(error, BaseException):
            raise error
