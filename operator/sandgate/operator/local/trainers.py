"""Follows the trainers of a local run: versions and heartbeats, leases of the dead, the wait at the end; and whether
engines take turns, which may want a trainer's weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sandgate.contract.attach import RunInfo, RunState
from sandgate.contract.errors import Conflict, NotFound
from sandgate.contract.job import RolloutJob, TrainerSpec
from sandgate.contract.trajectory import Json
from sandgate.operator.driver.engine_health import answering
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local import versions
from sandgate.operator.local.attendance import Attendance, Seen, look, waits
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.folder import replace as put
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.local.journals import Journals
from sandgate.operator.local.progress import Problem, Tell, TrainerNews
from sandgate.operator.observed.events import EnginesCounted, GatewayLooked, TrainerAwaited, TrainerHeard
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.observed.pace import Shelf
from sandgate.operator.plan.conditions import held_by_trainer

LOOK_S = 0.5
"""Between looks at the trainers' files and the gateways' statuses: a few small answers."""
HELD_S = 60.0
"""A trainer that is here may train for so long before anybody is told that all waits for it: most steps are shorter."""
BEATS = 4
"""Signs of life within `trainer.heartbeatSeconds`, so that a lost one is not missed."""
BEAT_S = 30.0
"""At most between two."""


@dataclass(slots=True)
class Desk:
    """Where trainers find the run: see `contract.attach`."""

    folder: Folder
    said: RunInfo

    @classmethod
    def of(cls, folder: Folder, job: RolloutJob) -> Desk:
        """For a run that starts; tells so."""
        beat = min(BEAT_S, (job.spec.trainer or TrainerSpec()).heartbeat_seconds / BEATS)
        desk = cls(folder, RunInfo(job=job.metadata.name, state=RunState.STARTING, heartbeat_s=beat))
        desk.say()
        return desk

    def say(self, **changes: Json) -> None:
        """From now on this stands there."""
        self.said = replace(self.said, **changes)
        put(self.folder.attach, self.said.text())

    def close(self) -> None:
        """Its gateways are gone. A run that was not over has stopped."""
        state = self.said.state if self.said.state is RunState.OVER else RunState.STOPPED
        self.say(state=state, gateways={})


@dataclass(slots=True)
class Trainers:
    """Of one run."""

    job: RolloutJob
    desk: Desk
    gateways: Mapping[str, LocalGateway]
    state: DriverState
    tell: Tell
    journals: Journals | None = None
    """Told how gateways stand, too."""
    seen: Attendance = field(default_factory=Attendance)
    ever: bool = False
    """One was here."""
    expected: bool = False
    """One is here, or may come back."""
    _left_at: float = 0.0
    """When the last one left with a word: what was heard before is over."""
    _over_at: float = 0.0
    """Since when nothing runs any more, or it was told to stop then."""
    _heard_at: float = 0.0
    """When gateways last heard of a trainer, as they say ..."""
    _moved: float = 0.0
    """... and by how much the clock was stepped since they did."""
    _files: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each trainer's file its time, and by how much the clock was stepped since it has that."""
    _given_back: set[str] = field(default_factory=set)
    """Dead trainers whose leases were."""
    _said: str = ""
    """What is waited for, without its numbers: told once."""
    _held_since: float | None = None
    """Since when nothing runs for the want of something from a trainer."""
    _held_told: set[str] = field(default_factory=set)
    """For the want of what, as people were told."""
    _kept: tuple[int, int, int | None] | None = None
    """What of versions stands in the folder."""
    _on_hold: bool = False
    _dry: str = ""
    """Why no engine takes turns."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def patience(self) -> TrainerSpec:
        """How long silence is borne."""
        return self.job.spec.trainer or TrainerSpec()

    @property
    def needed(self) -> bool:
        """Without a trainer not all of this job would ever run: it has tasks to give still."""
        return self.job.spec.tasks.queue is not None and self.state.observed.more

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Take in how things stand now."""
        async with self._looking:
            found = await asyncio.to_thread(lambda: list(look(self.desk.folder.trainers)))
            told = {name: await one.client.status() for name, one in self.gateways.items()}
            said = [*told.values()]
            if self.journals is not None:
                self.journals.look(told)
            now = (
                self.state.now()
            )  # before what it is compared with is dated: it may find that the clock was stepped
            files = self._dated(found)
            self._attended(files, now)
            for name, one in told.items():
                self.state.observe(GatewayLooked(name, Shelf.of(one)))
            await self._keep_versions()
            heard = self._heard(max((float(one["trainer_seen_at"] or 0.0) for one in said), default=0.0))
            owed = sum(int(one["groups"]["owed"]) for one in said)
            self.seen = Attendance(
                trainers=files,
                heard_at=heard if heard > self._left_at else None,
                owed=owed,
                leased=sum(int(one["groups"]["leased"]) for one in said),
                progress_at=self.seen.progress_at if owed == self.seen.owed else now,
            )
            if self.seen.heard_at is not None:
                self.state.observe(TrainerHeard(self.seen.heard_at, now))
            elif not files and not self.needed:
                self.state.observe(TrainerAwaited(None))  # the run goes on without one
            await self._bury(files)
            self._held_up(now)
            self._hold_told(any(one["paused"] for one in said))
            self._engines(said)
            expected = self.needed or self.seen.expected(self.patience, now)
            self.ever = self.ever or bool(files) or self.seen.heard_at is not None
            if expected != self.expected:
                self.expected = expected
                self.state.changed(JOB_KEY)

    async def _keep_versions(self) -> None:
        pace = self.state.observed.pace
        if pace.published is None or (kept := (pace.version, pace.published, pace.done)) == self._kept:
            return
        await asyncio.to_thread(versions.write, self.desk.folder.versions, *kept)
        self._kept = kept

    def _heard(self, at: float) -> float:
        """What gateways say, by the clock as it is now."""
        if at != self._heard_at:
            self._heard_at, self._moved = at, 0.0
        return at + self._moved if at else 0.0

    def _dated(self, files: Sequence[tuple[str, Seen]]) -> dict[str, Seen]:
        """What the files say, by the clock as it is now: those of the dead keep the time of their last sign of life."""
        known = self._files
        self._files = {
            name: known[name] if name in known and known[name][0] == one.seen_at else (one.seen_at, 0.0)
            for name, one in files
        }
        return {name: replace(one, seen_at=sum(self._files[name])) for name, one in files}

    def stepped(self, by: float) -> None:
        """The clock jumped: nobody was silent, and nothing waited, for so long."""
        self._moved += by
        self._files = {name: (at, moved + by) for name, (at, moved) in self._files.items()}
        self._left_at, self._over_at = self._left_at + by, self._over_at + by
        self._held_since = None if self._held_since is None else self._held_since + by
        heard = None if self.seen.heard_at is None else self.seen.heard_at + by
        self.seen = replace(
            self.seen,
            heard_at=heard,
            progress_at=self.seen.progress_at + by,
            trainers={
                name: replace(one, seen_at=one.seen_at + by) for name, one in self.seen.trainers.items()
            },
        )

    def _attended(self, files: Mapping[str, Seen], now: float) -> None:
        """Who came, who left, who died."""
        before = self.seen.trainers
        for name, one in files.items():
            if one.held and name not in before:
                self.tell(TrainerNews(text=f"a trainer is attached (process {name.split('-')[0]})"))
            elif not one.held and name in before and before[name].held:
                self.tell(TrainerNews(text=f"the trainer (process {name.split('-')[0]}) died"))
        gone = [name for name, one in before.items() if one.held and name not in files]
        for name in gone:
            self.tell(TrainerNews(text=f"the trainer (process {name.split('-')[0]}) left"))
        if gone and not files:
            self._left_at = now

    async def _bury(self, files: Mapping[str, Seen]) -> None:
        """What the dead were working on is offered again, at once. Their files go when another takes their place."""
        others = any(one.held for one in files.values())
        for name, one in files.items():
            if one.held:
                continue
            if name not in self._given_back:
                for lease in one.leases:
                    await self._give_back(lease)
                self._given_back.add(name)
            if others:
                with suppress(FileNotFoundError):
                    (self.desk.folder.trainers / name).unlink()

    async def _give_back(self, lease: str) -> None:
        for gateway in self.gateways.values():
            with suppress(NotFound, Conflict):  # of another gateway, or never made
                await gateway.client.nack(lease)

    def _held_up(self, now: float) -> None:
        """Said once of each cause; with a trainer here only after a while, as it may be training just now."""
        status = self.state.observed.status
        if not (why := held_by_trainer(status)):
            self._held_since = None
            return
        self._held_since = now if self._held_since is None else self._held_since
        kind = "" if status is None else status.reason
        if kind not in self._held_told and (not self.seen.here or now >= self._held_since + HELD_S):
            self._held_told.add(kind)
            self.tell(Problem(text=f"nothing runs until a trainer does something: {why}"))

    def _hold_told(self, paused: bool) -> None:
        stuck = paused and not self.seen.here
        if stuck and not self._on_hold:
            what = "agents are on hold: a trainer went in the middle of a weight update; the next one makes it again"
            self.tell(Problem(text=what))
        self._on_hold = stuck

    def _engines(self, said: Sequence[Mapping[str, Json]]) -> None:
        """While none takes turns no agent is begun, which would give up on it."""
        heard = [answering(one) for one in said]
        most = max((one.healthy for one in heard), default=0)
        why = "" if most else next((one.why for one in heard), "")
        self.state.observe(EnginesCounted(most, why))
        if why and why != self._dry:
            self.tell(Problem(text=f"no agent is begun, as no engine takes turns: {why}"))
        self._dry = why

    async def hand_over(self, stop: asyncio.Event, *, complete: bool) -> None:
        """Nothing runs any more: wait for the trainers, within bounds. Told to stop, then or meanwhile, it waits for
        what they work on, ACK_S from then on."""
        drained, self._over_at = stop.is_set(), self.state.now()
        while True:
            await self.look()
            if not drained and not self.seen.owed and self.desk.said.state is not RunState.OVER:
                self.desk.say(state=RunState.OVER, complete=complete)
            why = waits(self.seen, self.patience, self.state.now(), over_at=self._over_at, drained=drained)
            if not why:
                return
            if (kind := re.sub(r"\d+ groups?", "", why)) != self._said:
                self._said = kind
                self.tell(TrainerNews(text=why))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await (asyncio.Event() if drained else stop).wait()
                drained, self._over_at = True, self.state.now()

    def problems(self) -> tuple[str, ...]:
        """What a person should know of them at the end."""
        if not self.ever or not self.seen.owed:
            return ()
        many = "1 group was" if self.seen.owed == 1 else f"{self.seen.owed} groups were"
        return (
            f"{many} not acknowledged by the trainer; run it again with the trainer attached to have them",
        )
