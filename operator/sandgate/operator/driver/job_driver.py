"""JobDriver: carries out every action of a job's plan, wherever agents run; it decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from sandgate.contract.errors import NotFound, Overloaded, SandgateError, Unavailable, Unsupported
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import Task
from sandgate.contract.session import SessionOutcome, SessionSummary
from sandgate.operator.driver.backend import (
    Gateways,
    JobObjects,
    JobWatcher,
    SandboxBackend,
    SessionClient,
)
from sandgate.operator.driver.lost_groups import knows, tell_lost
from sandgate.operator.driver.reconcile import RETRIED
from sandgate.operator.driver.sealing import seal
from sandgate.operator.driver.session_spec import session_spec
from sandgate.operator.driver.state import DriverState
from sandgate.operator.observed import events
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan import actions
from sandgate.operator.plan.actions import Action, Exit, Ref, Stop, Told
from sandgate.operator.plan.session import plan_session

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class JobDriver:
    """Of one job."""

    state: DriverState
    backend: SandboxBackend
    gateways: Gateways
    watcher: JobWatcher
    forget_timers: Callable[[str], None]
    """Drops those of a key."""
    cluster: JobObjects | None = None
    """None where there are no objects."""

    @property
    def observed(self) -> Observed:
        """What is observed now."""
        return self.state.observed

    def plan_session(self, name: str) -> list[Action]:
        """What is to be done for a session now; a stop whose call failed is done again."""
        now = self.state.now()  # first: if it was stepped, what is remembered moves along
        seen = self.observed.sessions[name]
        plan = plan_session(self.state.job.spec, seen, now, gated=self.cluster is not None)
        if name in self.state.unstopped and seen.stop is not None and not _ends(plan):
            return [actions.StopAttempt(seen.ref, seen.stop), *plan]
        return plan

    async def carry_out(self, key: str, action: Action) -> None:  # noqa: C901 - one case per kind of action
        """Idempotent: names are derived, and gateways know sessions by id. Raises what passes by itself; Unsupported
        for what only a cluster can do."""
        match action:
            case actions.OpenSession(ref, gateway):
                await self._open(ref, gateway)
            case actions.StartAttempt(ref):
                await self._start(ref)
            case actions.StopAttempt(ref, stop):
                await self._stop(ref, stop)
            case actions.KillAttempt(ref):
                await self.backend.kill(ref)
                self.state.observe(events.AgentKilled(ref))
            case actions.StopSideCars(ref):
                await self.backend.stop(ref)
                self.state.observe(events.SideCarsStopping(ref, self.state.now()))
            case actions.AbortSession(ref):
                await self._abort(ref)
            case actions.LookSession(ref):
                await self.look(ref)
            case actions.StartVerifier(ref):
                await self._start_verifier(ref)
            case actions.StopVerifier(ref):
                await self.backend.stop_verifier(ref)
                self.state.observe(events.VerifierStopping(ref, self.state.now()))
            case actions.KillVerifier(ref):
                await self.backend.kill_verifier(ref)
                self.state.observe(events.VerifierKilled(ref))
            case actions.SealSession(ref, outcome):
                await self._seal(ref, outcome)
            case actions.CloseGroup(uid, gateway):
                await self._close_group(uid, gateway)
            case actions.Forget(ref):
                await self._forget(key, ref)
            case actions.WriteStatus(status):
                self.state.observe(events.StatusWritten(status))
                self.watcher.wrote(status)
            case actions.WakeAt(at):
                self.state.observe(events.TimerSet(key, at))
            case actions.OpenRemote(ref, gateway):
                await self._objects(action).open_remote(ref, gateway)
            case actions.HoldRemote(ref, why, final):
                await self._objects(action).hold_remote(ref, why, final=final)
            case actions.WriteSession(ref):
                await self._objects(action).write_session(ref)
            case actions.Provide(what):
                await self._objects(action).provide(what)
            case actions.TendWorkload(step):
                await self._objects(action).tend_workload(step)
            case actions.DeleteJob():
                await self._objects(action).delete_job()
            case _:
                assert_never(action)

    def _objects(self, action: Action) -> JobObjects:
        if self.cluster is None:
            raise Unsupported(f"{type(action).__name__}: there are no objects without a cluster")
        return self.cluster

    # -- its begin ----------------------------------------------------------------------------------------------------

    async def _open(self, ref: Ref, gateway: str) -> None:
        """What a session needs, then the session. Siblings stay together, and a gateway that is away begins nothing. A
        task that is not here yet is waited for: a session is never opened without it, and planned again when it comes.
        """
        if ref.name in self.observed.sessions or (task := self.state.tasks.get(ref.uid)) is None:
            return
        if ref.uid in self.observed.groups:
            gateway = self.observed.gateway_of(ref.uid)
        self.gateways.client(gateway)
        # From now on: what is prepared next may say so, whatever fails after it.
        self.state.observe(events.GroupBegun(ref.uid, gateway))
        home = await self._at_gateway(ref, task, gateway)
        told = None if self.cluster is None else Told.NOTHING
        self.state.observe(events.SessionOpened(ref, home, self.state.now(), told))

    async def _at_gateway(self, ref: Ref, task: Task, gateway: str) -> str:
        """Where it is. A driver that died may have come to any step of this."""
        home = await self.backend.prepare(ref, gateway)
        if ref.name not in self.state.opened:
            spec = session_spec(
                self.state.job.spec,
                ref,
                task,
                metadata=self.backend.metadata(task),
                task_chars_max=self.backend.task_chars_max,
            )
            try:
                handle = await self.gateways.client(home).create(spec)
            except SandgateError as error:
                if not isinstance(error, RETRIED):
                    self.backend.refused(ref, str(error))
                raise
            self.backend.opened(ref, handle)
            self.state.opened[ref.name] = None
        return home

    async def _start(self, ref: Ref) -> None:
        task = self.state.tasks.get(ref.uid)
        if task is None:
            raise Unavailable(f"task {ref.uid!r} is not known yet")
        await self._at_gateway(ref, task, self.gateways.gateway_of(ref))
        await self.backend.start(ref, task)

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _stop(self, ref: Ref, stop: Stop) -> None:
        """What fails of it is done again (`plan_session`)."""
        self.state.observe(events.AgentStopping(ref, stop, self.state.now()))
        self.state.unstopped[ref.name] = None
        await self.backend.stop(ref)
        self.state.unstopped.pop(ref.name, None)

    async def _start_verifier(self, ref: Ref) -> None:
        task = self.state.tasks.get(ref.uid) or Task(uid=ref.uid)  # of an agent elsewhere there is none
        await self.backend.start_verifier(ref, task, self._end_of(ref))

    def _end_of(self, ref: Ref) -> Exit | None:
        seen = self.observed.sessions.get(ref.name)
        return seen.sandbox.exit if seen is not None and seen.sandbox is not None else None

    async def look(self, ref: Ref) -> None:
        """How it stands at its gateway; and, for an agent that failed, whether that was there all the time."""
        asked, gateway, end = self.state.now(), self.gateways.gateway_of(ref), self._end_of(ref)
        if end is not None and end.code != 0:
            away = await self.gateways.absence(gateway, asked)
            if away is not None:
                self.state.observe(events.OutageSeen(gateway, away))
        await self._ask(ref, gateway, asked)

    async def _ask(self, ref: Ref, gateway: str, asked: float) -> SessionSummary | None:
        try:
            said = await self.gateways.client(gateway).get(ref.name)
        except NotFound:
            self.state.observe(events.SessionVanished(ref, asked))
            return None
        self.watcher.stands(gateway, said)
        self.state.observe(events.SessionReported(said, asked))
        return said

    async def _abort(self, ref: Ref) -> None:
        gateway = self.gateways.gateway_of(ref)
        with suppress(NotFound):  # the look says so
            await self.gateways.client(gateway).abort(ref.name)
        await self._ask(ref, gateway, self.state.now())

    async def _seal(self, ref: Ref, outcome: SessionOutcome) -> None:
        gateway = self.gateways.gateway_of(ref)
        client = self.gateways.client(gateway)
        if outcome.failure_reason is FailureReason.DRIVER_LOST and self.cluster is not None:
            await self._make_known(ref, client)
        with suppress(NotFound):  # the look says so
            await seal(client, ref.name, outcome)
        seen = self.observed.sessions.get(ref.name)
        said = await self._ask(ref, gateway, self.state.now())
        if seen is not None and said is not None:
            self.watcher.sealed(seen, said, outcome)

    async def _make_known(self, ref: Ref, client: SessionClient) -> None:
        """One of an operator before this one, of which the gateway may not know: a call of that one may come yet, and
        is not to open what nobody will end."""
        if ref.name in self.state.opened:
            return
        try:
            await client.create(session_spec(self.state.job.spec, ref, Task(uid=ref.uid)))
        except SandgateError as error:
            if isinstance(error, RETRIED) and not isinstance(error, Overloaded):
                raise
            # Nor will it take that call. Where it is full, what is given up is not to wait for room.
            log.info("session %s, which is given up: %s", ref.name, error)
            return
        self.state.opened[ref.name] = None

    async def _close_group(self, uid: str, gateway: str) -> None:
        client, job, group = self.gateways.client(gateway), self.state.job, self.observed.groups.get(uid)
        if uid not in self.state.lost:
            try:
                await client.close_group(uid, job=job.metadata.name)
            except NotFound:  # it has no session of it
                if group is not None and not await knows(client, job, group):
                    self.state.lost[uid] = None
        if uid in self.state.lost and group is not None:
            await tell_lost(client, job, group)
        self.state.lost.pop(uid, None)
        self.state.observe(events.GroupCloseConfirmed(uid))

    async def _forget(self, key: str, ref: Ref) -> None:
        await self.backend.forget(ref)
        self.state.observe(events.SessionForgotten(ref))
        self.state.opened.pop(ref.name, None)
        self.forget_timers(key)
        if ref.name in self.observed.remotes.asked:  # another of that name came meanwhile
            self.state.changed(ref.name)


def _ends(plan: list[Action]) -> bool:
    """The agent is over already: there is nothing left to stop."""
    return any(isinstance(one, actions.SealSession | actions.Forget | actions.StopAttempt) for one in plan)
