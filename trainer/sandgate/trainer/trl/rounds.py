"""Rounds: groups by name are started once, leased when whole, acknowledged when they are in a checkpoint."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import new_lease_id
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.lease_renewal import RenewedLease
from sandgate.trainer.trl.agents import Driver
from sandgate.trainer.trl.names import Round

log = logging.getLogger(__name__)

TTL_S = 300.0
"""Of a lease, which is renewed while this process lives; so long another trainer waits for the groups of a dead one."""
POLL_S = 0.5
"""Between two questions for a group while there is none; agents here say at once when one is whole."""
STOP_S = 10.0
"""For the answer to a lease that was asked for, at the end."""
STRANGERS_MAX = 64
"""Groups of other runs of the same job that are held; more means that two trainers share a job by mistake."""


@dataclass(slots=True)
class LeasedGroup:
    """A group on lease."""

    uid: str
    round: Round
    trajectories: tuple[Trajectory, ...]
    lease: Lease | None
    """None: no session of it counted, and nothing was offered."""
    hold: RenewedLease | None = None
    """Keeps the lease alive."""


@dataclass(slots=True)
class LeaseFile:
    """Leases of this process on disk, so that the next one need not wait for their end."""

    path: Path
    ids: dict[str, None] = field(default_factory=dict)

    def left(self) -> list[str]:
        """Of an earlier process."""
        try:
            return [str(one) for one in json.loads(self.path.read_text())]
        except (FileNotFoundError, ValueError):
            return []

    def change(self, *, add: str = "", drop: Iterable[str] = ()) -> None:
        """Write it whole."""
        if add:
            self.ids[add] = None
        for one in drop:
            self.ids.pop(one, None)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(json.dumps(list(self.ids)))
        os.replace(part, self.path)


class Rounds:
    """Belongs to one event loop.

    A group is trained on once: it is acknowledged only when a checkpoint holds its gradient, and one that is offered
    again after that, because the acknowledgement did not arrive, is acknowledged unseen.
    """

    def __init__(
        self,
        fleet: AsyncFleet,
        driver: Driver,
        *,
        job: str,
        run: str,
        leases: LeaseFile,
        ttl_s: float = TTL_S,
    ) -> None:
        self._fleet, self._driver, self._leases = fleet, driver, leases
        self._job, self._run, self._ttl_s = job, run, ttl_s
        self._begun = 0
        """Optimizer steps in the checkpoint that this process began with."""
        self._wanted: dict[str, Round] = {}
        """Started, and not leased yet."""
        self._ready: dict[str, LeasedGroup] = {}
        self._used: list[LeasedGroup] = []
        """Given to the trainer, in no checkpoint yet."""
        self._strangers: list[tuple[Lease, RenewedLease]] = []
        self._change = asyncio.Condition()
        self._nudge = asyncio.Event()
        self._error: BaseException | None = None
        self._over, self._stopped = asyncio.Event(), asyncio.Event()

    async def begin(self, step: int) -> None:
        """`step`: optimizer steps in the checkpoint. What a dead trainer had on lease is offered again at once."""
        self._begun = step
        for lease_id in self._leases.left():
            for client in self._fleet.clients.values():
                try:
                    await client.nack(Lease(lease_id, 0.0, (), ()))
                except (NotFound, Conflict):  # another gateway's, or settled
                    continue
        self._leases.change()

    async def start(self, tasks: Sequence[Task], n: int) -> None:
        """Groups of `n` sessions; those that are known already are not started again."""
        fresh = [task for task in tasks if task.uid not in self._ready and task.uid not in self._wanted]
        for task in fresh:
            found = Round.of(self._run, task.uid)
            assert found is not None, "named by this run"
            self._wanted[task.uid] = found
        if fresh:
            await self._driver.start(fresh, n)
            self._nudge.set()

    async def take(self, uids: Sequence[str], wait_s: float) -> list[tuple[Trajectory, ...]]:
        """The groups' trajectories, in order; waits for all of them. Raises Unavailable after `wait_s` seconds, and
        what ended the collection."""
        try:
            async with asyncio.timeout(wait_s), self._change:
                await self._change.wait_for(
                    lambda: self._error is not None or all(uid in self._ready for uid in uids)
                )
        except TimeoutError:
            missing = [uid for uid in uids if uid not in self._ready]
            raise Unavailable(
                f"{len(missing)} of {len(uids)} groups are not there after {wait_s:g} s; first: {missing[0]}"
            ) from None
        if self._error is not None:
            raise self._error
        taken = [self._ready.pop(uid) for uid in uids]
        self._used += taken
        return [one.trajectories for one in taken]

    async def commit(self, step: int, *, training: bool = True) -> None:
        """Acknowledge what rounds before `step` trained on (or what evaluations looked at), and what was made for them
        and not asked for. Raises Conflict if a lease ended and another trainer was given the group."""
        unused = [one for one in self._ready.values() if _before(one.round, step, training=training)]
        for one in unused:
            if one.lease is not None and one.hold is not None:
                await self._settle(one.lease, one.hold)
            self._ready.pop(one.uid, None)
        over = [one for one in self._used if _before(one.round, step, training=training)]
        for one in over:
            if one.lease is not None and one.hold is not None:
                await self._settle(one.lease, one.hold)
            self._used.remove(one)

    async def give_back(self) -> None:
        """What was leased and is in no checkpoint; nothing is leased any more."""
        self._over.set()
        self._nudge.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):  # a lease that is being made would be nobody's
                await self._stopped.wait()
        held = [one.lease for one in (*self._used, *self._ready.values()) if one.lease is not None]
        held += [lease for lease, _ in self._strangers]
        for lease in held:
            try:
                await self._fleet.nack(lease)
            except (NotFound, Conflict) as error:
                log.info("lease %s: %s", lease.lease_id, error)
            except Unavailable as error:  # they end by themselves
                log.warning("leases are not given back: %s", error)
                return
        self._leases.change(drop=list(self._leases.ids))

    async def nothing(self, uid: str) -> None:
        """No session of the group counted: it is empty, and will not be offered."""
        if (found := self._wanted.pop(uid, None)) is not None:
            await self._is_ready(LeasedGroup(uid, found, (), None))

    def look(self) -> None:
        """A group may just have become whole."""
        self._nudge.set()

    async def collect(self) -> None:
        """Lease what becomes whole, for as long as there is something to wait for. Runs until it is cancelled, or
        everything is given back."""
        name, asked_at, refused = "", 0.0, False
        try:
            while not self._over.is_set():
                if not self._wanted:
                    await self._nudge.wait()
                if self._over.is_set():
                    break
                self._nudge.clear()
                if (
                    not name
                ):  # written first: a trainer that is killed before the answer has leased all the same
                    name = new_lease_id()
                    self._leases.change(add=name)
                    asked_at = self._fleet.keeper.clock()
                try:
                    lease = await self._fleet.lease(
                        job=self._job, max_groups=1, ttl_s=self._ttl_s, lease_id=name
                    )
                except Conflict:
                    if refused:  # not because of this one
                        raise
                    # Its answer was lost, and it is over by now: its group is offered under another.
                    self._leases.change(drop=[name])
                    name, refused = "", True
                    continue
                refused = False
                if lease is not None:
                    name = ""
                    await self._took(lease, self._fleet.keeper.hold(lease.lease_id, self._ttl_s, asked_at))
                    self._nudge.set()
                else:
                    await self._rest()
        except Exception as error:  # noqa: BLE001 - raised to whoever waits for a group
            await self.fail(error)
        finally:
            self._stopped.set()

    async def fail(self, error: BaseException) -> None:
        """Nobody need wait any longer."""
        async with self._change:
            self._error = error
            self._change.notify_all()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._nudge.wait()
        except TimeoutError:
            return

    async def _took(self, lease: Lease, hold: RenewedLease) -> None:
        rows = lease.trajectories
        uid = rows[0].uid if rows else lease.uid or await self._unnamed()
        found = Round.of(self._run, uid)
        if found is not None and found.training and found.step < self._begun:
            log.info("group %s is in the checkpoint already", uid)
            await self._settle(lease, hold)
        elif found is not None:
            held = LeasedGroup(uid, found, rows, lease, hold)
            try:
                await self._driver.took(lease.sessions)
            except Conflict:
                self._strangers.append((lease, hold))  # to be given back
                raise
            self._wanted.pop(uid, None)
            if not self._held_again(held):
                await self._is_ready(held)
        elif not rows:
            await self._settle(lease, hold)  # of nobody, with nothing in it
        elif len(self._strangers) < STRANGERS_MAX:
            log.warning("group %r of job %s is not of run %s: held until the end", uid, self._job, self._run)
            self._strangers.append((lease, hold))
        else:
            raise Conflict(
                f"job {self._job} has more than {STRANGERS_MAX} groups that are not of run {self._run}:"
                " give each training run a job of its own, or the same `run` when it goes on"
            )

    def _held_again(self, held: LeasedGroup) -> bool:
        """Whether the trainer was given this group before: its lease ended while this machine slept, and nobody else
        was given it meanwhile. From now on it is held under the new lease, and not handed out twice."""
        used = next((one for one in self._used if one.uid == held.uid), None)
        if used is None:
            return False
        if used.lease is not None and used.hold is not None:
            used.hold.over = True
            self._leases.change(drop=[used.lease.lease_id])
        used.lease, used.hold = held.lease, held.hold
        return True

    async def _settle(self, lease: Lease, hold: RenewedLease) -> None:
        await self._fleet.ack(lease)
        hold.over = True
        self._leases.change(drop=[lease.lease_id])

    async def _is_ready(self, held: LeasedGroup) -> None:
        async with self._change:
            self._ready[held.uid] = held
            self._change.notify_all()

    async def _unnamed(self) -> str:
        """Which group a lease without any trajectory is, where the gateway is older and does not say so: one that is
        over, and whose sessions took no turn."""
        turns: dict[str, int] = {}
        async for one in self._fleet.sessions():
            uid = str(one.get("uid") or "")
            if uid in self._wanted:
                ended = one["state"] in ("finalized", "aborted")
                turns[uid] = turns.get(uid, 0) + (int(one.get("turns") or 0) if ended else 1)
        return next((uid for uid, count in turns.items() if count == 0), "")


def _before(round_: Round, step: int, *, training: bool) -> bool:
    return round_.training is training and round_.step < step
