"""Who is live: open, look up, seal, restore by replay. The only owner of Session objects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.errors import JournalUnavailable, LimitReached, NotFound, Overloaded, SandgateError
from sandgate.contract.session import CURSOR_STEPS_S
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.config import SessionLimits
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.journal.records import (
    TASKS,
    Acked,
    CapacityChanged,
    Delivered,
    EnginesLabelled,
    EnginesSet,
    Intent,
    Opened,
    PolicyVersion,
    Record,
    Sealed,
    TasksForgotten,
    TasksPushed,
    TurnCommitted,
    TurnsHeld,
    size,
)
from sandgate.gateway.journal.store import Store
from sandgate.gateway.journal.top_logprobs import parted
from sandgate.gateway.service.session import Session, SessionPhase
from sandgate.gateway.service.session_tree import trajectories_from, trajectories_of
from sandgate.gateway.service.task_queue import Pushed, TaskQueue
from sandgate.gateway.trajectories.leases import LeaseBook
from sandgate.gateway.trajectories.linearize import Facts

UNSURE_S = 60.0
"""A turn committed this long before the journal's last record, and told, would have its note there."""
COMMITTED = "committed"
"""What events call a session whose trajectories were all acknowledged."""
EVENTS_KEPT = 10_000
"""State changes a slow poller may lag behind; beyond it the poller lists sessions again."""


LIMITS = ("turns", "total_tokens", "journal_bytes")
"""What a session's creator may say of it, instead of the gateway's own."""

_Said = PolicyVersion | EnginesSet | EnginesLabelled | TurnsHeld
"""What a process is told, or finds out, beside its sessions."""


@dataclass(slots=True)
class Event:
    """A session changed state, or was committed."""

    cursor: int
    session_id: str
    state: str
    job: str


@dataclass(slots=True)
class Sessions:
    """All sessions of this process, over one journal."""

    store: Store
    now: Callable[[], float]
    limit: int = 20_000
    live: dict[str, Session] = field(default_factory=dict)
    book: LeaseBook = field(default_factory=LeaseBook)
    tasks: TaskQueue = field(default_factory=TaskQueue)
    pushing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the task queue is being changed."""
    version: int = 0
    labels: Labels = field(default_factory=Labels)
    """What is known of the engines' labels; the engine adds what it sees."""
    labelled: bool = False
    """Labels carry versions, and the journal says so."""
    paused: bool = False
    """A weight update holds new turns."""
    capacity: int = 0
    """Sessions that AReaL's trainer granted and nobody started yet."""
    engines: tuple[str, ...] | None = None
    """Where the engines are, if that was told after the start."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    cursor: int = 0
    opening: dict[str, asyncio.Future[Session]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    open_count: int = 0
    first_cursor: int = 0
    doubts: dict[str, list[str]] = field(default_factory=dict)
    """Session -> turns that `replay` found to be unsure and the journal does not call so yet."""
    compacted: int = 0
    """Tasks up to this number are gone from the journal, too."""
    tail: asyncio.Future[None] | None = None
    """Done when the newest synced append is folded into memory, or failed."""
    settling: int = 0
    """Records of no session that are being written: not in the book yet, so its snapshot would lose them."""

    def __post_init__(self) -> None:
        self.cursor = self.first_cursor = int(self.now() * CURSOR_STEPS_S)

    def replay(self) -> None:
        """Fold the whole journal. Called once, before anything is served."""
        last = 0.0
        for _, session_id, record in self.store.scan():
            self._fold(session_id, record)
            last = max(last, record.at)
        for session in self.live.values():
            if not session.ended:
                session.restarted_at = self.now()
                self.open_count += 1
                told = {turn.id for turn in session.tree.turns if turn.at >= last - UNSURE_S}
                if fresh := told - session.delivered - session.unsure:
                    self.doubts[session.session_id] = sorted(fresh)
                session.unsure |= told
                session.unsure -= session.delivered

    async def keep_doubts(self) -> None:
        """After `replay`, before anything is served: what this replay is unsure of, later ones must be too. They could
        not tell, as this life's records move the end of the journal away from the kill."""
        doubts, self.doubts = self.doubts, {}
        for session_id, turns in doubts.items():
            notes = [Delivered(at=self.now(), turn=turn, unsure=True) for turn in turns]
            await self.store.append(session_id, *notes, sync=False)

    def _fold(self, session_id: str, record: Record) -> None:
        if isinstance(record, PolicyVersion):
            self.version = record.version
        elif isinstance(record, EnginesLabelled):
            self.labelled = self.labels.known = record.labelled
        elif isinstance(record, TurnsHeld):
            self.paused = record.paused
        elif isinstance(record, EnginesSet):
            self.engines = record.urls
        elif isinstance(record, CapacityChanged):
            self.capacity += record.by
        elif isinstance(record, TasksPushed | TasksForgotten):
            self.tasks.fold(record)
        elif session_id:
            session = self.live.get(session_id)
            if session is None:
                session = self.live[session_id] = Session(session_id)
            session.apply(record)
            if isinstance(record, Opened | Sealed):
                self.book.fold(session_id, record)
                if isinstance(record, Sealed):
                    session.evict()
        else:
            self.book.fold(session_id, record)

    def get(self, session_id: str) -> Session:
        """Raises NotFound."""
        session = self.live.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id[:200]!r}")
        return session

    async def open(self, session_id: str, spec: dict[str, Any]) -> tuple[Session, bool]:
        """Create it, or return the same one again: (session, created). Raises Conflict, Overloaded.

        Reserved before the await and rolled back on failure, so that concurrent creations of one id are one.
        """
        known = self.live.get(session_id)
        if known is not None:
            known.same_spec(spec)
            return known, False
        if (pending := self.opening.get(session_id)) is not None:
            session = await asyncio.shield(pending)
            session.same_spec(spec)
            return session, False
        if self.open_count + len(self.opening) >= self.limit:
            raise Overloaded(f"{self.open_count} sessions open, limit {self.limit}", retry_after=5.0)
        done: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.opening[session_id] = done
        try:
            session = Session(session_id)
            await self.record(session, Opened(at=self.now(), spec=spec))
        except BaseException as error:
            told = error if isinstance(error, SandgateError) else JournalUnavailable("not written")
            done.set_exception(told)
            done.exception()  # retrieved: whoever waits gets it, nobody is warned if none does
            raise
        finally:
            del self.opening[session_id]
        done.set_result(session)
        return session, True

    async def record(self, session: Session, *records: Record) -> None:
        """Make durable, then visible, then known to pollers. Raises JournalUnavailable; then nothing changed.

        Once begun it is carried through, even if the caller is cancelled: what is durable is visible.
        """
        await _carried_through(self._record(session, records))

    async def _record(self, session: Session, records: tuple[Record, ...]) -> None:
        await self._append(session.session_id, *records)
        before = session.phase
        for record in records:
            session.apply(record)
            if isinstance(record, Opened):
                self.live[session.session_id] = session
                self.open_count += 1
            if isinstance(record, Opened | Sealed):
                self.book.fold(session.session_id, record)
        if session.ended and before not in (SessionPhase.FINALIZED, SessionPhase.ABORTED):
            self.open_count -= 1
        if session.phase is not before or isinstance(records[0], Opened):
            self.tell(session)

    async def _append(self, session_id: str, *records: Record) -> None:
        """Durable when this returns, and in the journal's own order: what the caller folds right after it, without an
        await between, is folded as a replay will fold it, whoever the store wakes first."""
        before = self.tail
        mine = self.tail = asyncio.get_running_loop().create_future()
        try:
            try:
                await self.store.append(session_id, *records)
            finally:
                if before is not None and not before.done():
                    await before
        finally:
            if not mine.done():  # cancelled, if the loop is being torn down
                mine.set_result(None)

    async def intend(self, session: Session, *intents: Intent) -> None:
        """Begin generations: in the journal with the next group, so that a kill is known to have cut them."""
        await self.store.append(session.session_id, *intents, sync=False)
        session.journalled += sum(map(size, intents))

    async def note(self, session: Session, *records: Record) -> None:
        """Visible now, durable with the next group: for what may be lost in a crash."""
        await self.store.append(session.session_id, *records, sync=False)
        for record in records:
            session.apply(record)

    def tell(self, session: Session, news: str = "") -> None:
        """Wake pollers: this session changed state, or has other `news`."""
        self.cursor += 1
        job = str(session.spec.get("job", ""))
        self.events.append(Event(self.cursor, session.session_id, news or session.phase.value, job))
        self.wake()

    def refuse_over_limits(self, session: Session, limits: SessionLimits, asked: int) -> None:
        """Raises LimitReached for `asked` more turns, by the session's own limits or else these."""
        own = session.spec.get("limits") or {}
        said = {name: getattr(limits, name) if own.get(name) is None else own[name] for name in LIMITS}
        before = session.limit_reached
        try:
            session.refuse_over_limits(asked=asked, **said)
        except LimitReached:
            if session.limit_reached and not before:  # once: pollers need not hear of every refusal
                self.tell(session)
            raise

    def committed(self, session: Session) -> bool:
        """Were all its trajectories acknowledged? Attempts that do not count for their group never are."""
        member = self.book.members.get(session.session_id)
        return member is not None and bool(member.acked)

    def summary(self, session: Session, *, whole: bool = True) -> dict[str, Any]:
        """What GET /v1/sessions/{id} says; not `whole`: as a line of a listing."""
        return {**session.summary(whole=whole), "committed": self.committed(session)}

    def wake(self) -> None:
        """Pollers look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def restored(self, session: Session) -> Session:
        """The session with its whole tree, read back from the journal if it was evicted."""
        if not session.evicted:
            return session
        full = Session(session.session_id)
        for _, _, record in self.store.scan(session.session_id):
            full.apply(record)
        return full

    def whole(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        """Committed turns with the alternatives of their tokens, which only the journal has. Blocks."""
        wanted, tops = {turn.id for turn in turns}, {}
        for _, _, record in self.store.scan(session_id):
            if isinstance(record, TurnCommitted) and record.turn in wanted:
                tops[record.turn] = parted(record.top)
        return [replace(turn, top=tops[turn.id]) for turn in turns]

    def trajectories(self, session: Session, facts: Facts) -> list[Trajectory]:
        """Rows of an ended session; from the journal if it was evicted."""
        if not session.evicted:
            return trajectories_of(session, facts)
        records = (record for _, _, record in self.store.scan(session.session_id))
        return trajectories_from(session.session_id, records, facts)

    async def set_version(self, version: int, labelled: bool | None = None) -> None:
        """The trainer's weights advanced; durable, so that a restart does not mislabel tokens. `labelled`: the labels
        of the engines' weights carry versions, or do not; None: as before."""
        now = self.now()
        said: list[_Said] = [PolicyVersion(at=now, version=version)]
        if labelled is not None and (labelled, labelled) != (self.labelled, self.labels.known):
            said.append(EnginesLabelled(at=now, labelled=labelled))
        await _carried_through(self._told(*said))

    async def keep_labels(self) -> None:
        """If labels were seen to carry versions: durable, before anything that was sampled under one."""
        if self.labels.known and not self.labelled:
            await _carried_through(self._told(EnginesLabelled(at=self.now(), labelled=True)))

    async def set_paused(self, paused: bool) -> None:
        """Turns are held, or go on; durable, so that a restart in the middle of a weight update holds them too."""
        await _carried_through(self._told(TurnsHeld(at=self.now(), paused=paused)))

    async def set_engines(self, urls: tuple[str, ...]) -> None:
        """Where the engines are from now on; durable, so that a restart finds them without being told again."""
        await _carried_through(self._told(EnginesSet(at=self.now(), urls=urls)))

    async def _told(self, *records: _Said) -> None:
        self.settling += 1
        try:
            await self._append("", *records)
            for record in records:
                self._fold("", record)
        finally:
            self.settling -= 1

    async def change_capacity(self, by: int) -> None:
        """In memory at once, so that two never take the same place; durable when this returns, undone if it fails."""
        self.capacity += by
        await _carried_through(self._change_capacity(by))

    async def _change_capacity(self, by: int) -> None:
        self.settling += 1
        try:
            await self._append("", CapacityChanged(at=self.now(), by=by))
        except BaseException:
            self.capacity -= by
            raise
        finally:
            self.settling -= 1

    async def push(self, tasks: Sequence[Pushed], *, last: bool) -> None:
        """To the task queue, durably (see TaskQueue.push)."""
        async with self.pushing:
            if (record := self.tasks.push(tasks, self.now(), last=last)) is not None:
                await _carried_through(self._queue(record))

    async def forget_tasks(self, upto: int) -> None:
        """See TaskQueue.forget. The log is compacted when half of it is dead."""
        async with self.pushing:
            if (record := self.tasks.forget(upto, self.now())) is not None:
                await _carried_through(self._queue(record))
                if upto - self.compacted >= len(self.tasks.held):
                    await self.store.replace(TASKS, *self.tasks.snapshot(self.now()))
                    self.compacted = upto

    async def _queue(self, record: TasksPushed | TasksForgotten) -> None:
        await self._append(TASKS, record)
        self.tasks.fold(record)
        self.wake()

    async def settle(self, record: Record | None) -> None:
        """A decision of the lease book: durable, then so; undone if it cannot be made durable. Carried through even if
        the caller is cancelled."""
        if record is not None:
            await _carried_through(self._settle(record))

    async def _settle(self, record: Record) -> None:
        self.settling += 1
        try:
            await self._append("", record)
        except BaseException:
            self.book.undo(record)
            raise
        else:
            self.book.fold("", record)
            for session_id in record.sessions if isinstance(record, Acked) else ():
                if (session := self.live.get(session_id)) is not None:
                    self.tell(session, COMMITTED)
        finally:
            self.settling -= 1

    async def retire(self, age_s: float) -> int:
        """Forget sessions whose groups were acknowledged, sealed more than `age_s` ago; how many went.

        The log of leases is compacted with them, unless one of its records is being written just now.
        """
        now = self.now()
        gone = [one for one in self.book.disposable() if self._sealed_before(one, now - age_s)]
        if not gone:
            return 0
        await self.store.retire(gone)  # first: what a bad disk still has, is tried again
        for session_id in gone:
            self.live.pop(session_id, None)
        self.book.forget(gone)
        if not self.settling:
            await self.store.replace("", *self._process(now), *self.book.snapshot(now))
        return len(gone)

    def _process(self, now: float) -> list[Record]:
        """What the process was told, as records."""
        said: list[Record] = [PolicyVersion(at=now, version=self.version)]
        if self.labelled:
            said.append(EnginesLabelled(at=now, labelled=True))
        if self.paused:
            said.append(TurnsHeld(at=now, paused=True))
        if self.engines is not None:
            said.append(EnginesSet(at=now, urls=self.engines))
        if self.capacity:
            said.append(CapacityChanged(at=now, by=self.capacity))
        return said

    def _sealed_before(self, session_id: str, when: float) -> bool:
        session = self.live.get(session_id)
        return session is not None and session.sealed is not None and session.sealed.at < when

    def listing(self, state: str | None, job: str | None, after: str) -> Iterable[Session]:
        """Sessions in id order after `after`."""
        for session_id in sorted(self.live):
            session = self.live[session_id]
            wanted = (not state or session.phase == state) and (not job or session.spec.get("job") == job)
            if wanted and session_id > after:
                yield session


async def _carried_through(change: Coroutine[Any, Any, None]) -> None:
    """What is durable must be visible: a cancelled caller is told so only after the change is done."""
    work = asyncio.ensure_future(change)
    cancelled = False
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled = True
        except SandgateError:
            break
    if cancelled:
        work.exception()  # nobody is left to be told
        raise asyncio.CancelledError
    work.result()
