"""Sessions: all sessions of a process over one journal: open, record, replay at start, evict, retire; events.

It is the only owner of Session objects.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from msgspec import structs

from sandgate.contract.errors import (
    Conflict,
    JournalUnavailable,
    LimitReached,
    NotFound,
    Overloaded,
    SandgateError,
)
from sandgate.contract.session import CURSOR_STEPS_S
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.config import SessionLimits
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.engine.labels import INITIAL, Labels
from sandgate.gateway.journal.last_minute import LastMinute
from sandgate.gateway.journal.records import (
    CUT,
    RETIRED,
    TASKS,
    Acked,
    AdapterServed,
    CapacityChanged,
    Delivered,
    EnginesLabelled,
    EnginesSet,
    Intent,
    Opened,
    PolicyVersion,
    Record,
    Retired,
    Sealed,
    TasksForgotten,
    TasksPushed,
    TurnCommitted,
    TurnsHeld,
    size,
)
from sandgate.gateway.journal.store import Store
from sandgate.gateway.journal.top_logprobs import parted
from sandgate.gateway.service.process_state import ProcessRecord, ProcessState
from sandgate.gateway.service.retired import line_of
from sandgate.gateway.service.retired_lines import RetiredLines
from sandgate.gateway.service.session import JOURNAL_SHARE, Session, SessionPhase
from sandgate.gateway.service.session_tree import trajectories_from, trajectories_of
from sandgate.gateway.service.task_queue import Pushed, TaskQueue
from sandgate.gateway.service.waking import carried_through
from sandgate.gateway.trajectories.groups import ALONE, Place, place_of
from sandgate.gateway.trajectories.leases import LeaseBook
from sandgate.gateway.trajectories.linearize import Facts

log = logging.getLogger("sandgate.gateway")

GROUPS_AT_ONCE = 32
"""Groups whose deletion may share an fsync; each goes as one."""
COMMITTED = "committed"
"""The state that events give for a session whose trajectories were all acknowledged."""
EVENTS_KEPT = 10_000
"""State changes that are kept for slow pollers; a poller that lags further behind lists the sessions again."""


LIMITS = ("turns", "total_tokens", "journal_bytes")
"""Limits that a session's creator may set, instead of the gateway's own."""


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
    lease_now: Callable[[], float] | None = None
    """The time by which leases end; None: `now`."""
    live: dict[str, Session] = field(default_factory=dict)
    book: LeaseBook = field(default_factory=LeaseBook)
    tasks: TaskQueue = field(default_factory=TaskQueue)
    pushing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock for changes of the task queue."""
    process: ProcessState = field(default_factory=ProcessState)
    labels: Labels = field(default_factory=Labels)
    """Whether the engines' labels carry versions; the engine adds what it sees."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    cursor: int = 0
    opening: dict[str, asyncio.Future[Session]] = field(default_factory=dict)
    taken: dict[Place, str] = field(default_factory=dict)
    """What sessions stand for that are being made durable; the lease book lacks them yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    open_count: int = 0
    first_cursor: int = 0
    doubts: dict[str, list[str]] = field(default_factory=dict)
    """Session -> turns that `replay` found to be unsure and that the journal does not mark so yet."""
    behind_leases: float = 0.0
    """Seconds, at least, that passed behind the newest lease in the journal which `replay` read."""
    _versions: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock for changes of the policy version."""
    tail: asyncio.Future[None] | None = None
    """Done when the newest synced append is folded into memory, or failed."""
    retired: RetiredLines = field(init=False)
    recorded: dict[str, asyncio.Event] = field(default_factory=dict)
    """Session -> told when none of its records is on its way to the disk any more; of those that are to be sealed."""
    settling: int = 0
    """Records of the process that are being written: the lease book lacks them yet, so its snapshot would lose them."""
    large: set[str] = field(default_factory=set)
    """Sessions in `live`, ended ones too, that have more of the journal's volume than `Space.large`: a few, as together
    they cannot have more than all of it."""

    def __post_init__(self) -> None:
        self.retired = RetiredLines(self.store)
        self.cursor = self.first_cursor = int(self.now() * CURSOR_STEPS_S)

    def by_leases(self) -> float:
        """The time by which leases end: unix seconds that are not set while this process lives."""
        return self.now() if self.lease_now is None else self.lease_now()

    def replay(self) -> None:
        """Folds the whole journal. Called once, before anything is served."""
        minute = LastMinute()
        for _, session_id, record in self.store.scan():
            self._fold(session_id, record)
            minute.seen(session_id, record)
        recent, self.behind_leases = minute.by_session(), minute.behind_leases or 0.0
        for session in self.live.values():
            if not session.ended:
                session.restarted_at, session.heard_at = self.now(), self.by_leases()
                self.open_count += 1
                late = _perhaps_delivered(session, recent.get(session.session_id, frozenset()))
                if fresh := late - session.delivered - session.unsure:
                    self.doubts[session.session_id] = sorted(fresh)
                session.unsure |= late
                session.unsure -= session.delivered
        self._note_large(*self.live.values())

    def _note_large(self, *sessions: Session) -> None:
        bound = self.store.space.large
        self.large.update(one.session_id for one in sessions if one.journalled > bound)

    async def keep_doubts(self) -> None:
        """Marks the turns that `replay` is unsure of in the journal; called after it, before anything is served. Later
        replays could not find them: this life's records move the end of the journal away from the kill."""
        doubts, self.doubts = self.doubts, {}
        for session_id, turns in doubts.items():
            notes = [Delivered(at=self.now(), turn=turn, unsure=True) for turn in turns]
            await self.store.append(session_id, *notes, sync=False)

    async def keep_leases(self) -> None:
        """Gives the leases that `replay` found what time they had left; called after it, before anything is served.
        Written down, as the next life has to count by the same clock."""
        if renewed := self.book.resumed(self.by_leases(), self.behind_leases):
            await self.store.append("", *renewed, sync=False)
            for record in renewed:
                self.book.fold("", record)

    def _fold(self, session_id: str, record: Record) -> None:
        if isinstance(record, ProcessRecord):
            self.process = self.process.apply(record)
            if isinstance(record, EnginesLabelled):
                self.labels.known = record.labelled
        elif isinstance(record, TasksPushed | TasksForgotten):
            self.tasks.fold(record)
        elif isinstance(record, Retired):
            self.retired.count += 1
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
        """The session with this id, unless it was retired. Raises NotFound."""
        session = self.live.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id[:200]!r}")
        return session

    async def find(self, session_id: str) -> Session:
        """The session with this id; of one that was retired, what its line says. Raises NotFound."""
        if session_id in self.live or (session := await self.retired.find(session_id)) is None:
            return self.get(session_id)
        return session

    async def open(self, session_id: str, spec: dict[str, Any]) -> tuple[Session, bool]:
        """Creates a session, or returns the one that was created before: (session, created). Raises Conflict,
        Overloaded.

        The id is reserved before the await and released on failure, so that concurrent creations of one id are one.
        """
        existing = self.live.get(session_id)
        if existing is not None:
            existing.same_spec(spec)
            return existing, False
        if (pending := self.opening.get(session_id)) is not None:
            session = await asyncio.shield(pending)
            session.same_spec(spec)
            return session, False
        if self.open_count + len(self.opening) >= self.limit:
            raise Overloaded(f"{self.open_count} sessions open, limit {self.limit}", retry_after=5.0)
        done: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.opening[session_id] = done
        try:
            known = await self.retired.find(session_id)
            session = known or Session(session_id)
            if known is not None:
                known.same_spec(spec)
            else:
                await self._open(session, spec)
        except BaseException as error:
            failure = error if isinstance(error, SandgateError) else JournalUnavailable("not written")
            done.set_exception(failure)
            done.exception()  # retrieved: whoever waits gets it, nobody is warned if none does
            raise
        finally:
            del self.opening[session_id]
        done.set_result(session)
        return session, known is None

    async def _open(self, session: Session, spec: dict[str, Any]) -> None:
        """Raises Conflict where another session stands for what this one would, and a whole group is asked for: of the
        two a trainer would get one. One that is to be no part of a group becomes a group of its own."""
        place = place_of(session.session_id, spec)
        holder = self.book.holder(place) or self.taken.get(place)
        if holder is not None:
            if int(spec.get("group_size") or 1) > 1:
                raise Conflict(_of_one_place(place, holder), field="sample_index")
            spec = {**spec, ALONE: True}
            place = place_of(session.session_id, spec)
        self.taken[place] = session.session_id
        try:
            await self.record(session, Opened(at=self.now(), spec=spec))
        finally:
            del self.taken[place]

    async def record(self, session: Session, *records: Record) -> None:
        """Makes records durable, then visible, then wakes pollers. Raises JournalUnavailable; then nothing changed.

        Once begun it is carried through, even if the caller is cancelled: what is durable is visible. A seal is told
        first what the rewards of turns come to (`Sealed.turns_worth`): those too that are on their way to the disk.
        """
        if isinstance(records[-1], Sealed):
            while session.recording:
                await self.recorded.setdefault(session.session_id, asyncio.Event()).wait()
            at = self.now()  # a replay takes one that is written late for a clock that was set back
            records = await _with_worth(session, tuple(structs.replace(one, at=at) for one in records))
        session.recording += 1
        try:
            await carried_through(self._record, session, records)
        finally:
            session.recording -= 1
            if not session.recording and (told := self.recorded.pop(session.session_id, None)) is not None:
                told.set()

    async def _record(self, session: Session, records: tuple[Record, ...]) -> None:
        await self._append(session.session_id, *records)
        before, session.heard_at = session.phase, self.by_leases()
        for record in records:
            session.apply(record)
            if isinstance(record, Opened):
                self.live[session.session_id] = session
                self.open_count += 1
            if isinstance(record, Opened | Sealed):
                self.book.fold(session.session_id, record)
        self._note_large(session)
        if session.ended and before not in (SessionPhase.FINALIZED, SessionPhase.ABORTED):
            self.open_count -= 1
        if session.phase is not before or isinstance(records[0], Opened):
            self.tell(session)

    async def _append(self, session_id: str, *records: Record) -> None:
        """Makes records durable, and returns in the journal's own order, whichever caller the store wakes first. A
        caller that folds them next, without an await between, folds them as a replay will."""
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
        """Writes down that generations begin, with the next group commit: a replay then knows which of them a kill
        cut."""
        await self.store.append(session.session_id, *intents, sync=False)
        session.journalled += sum(map(size, intents))

    async def note(self, session: Session, *records: Record) -> None:
        """Makes records visible now and durable with the next group commit: for what may be lost in a crash."""
        await self.store.append(session.session_id, *records, sync=False)
        session.heard_at = self.by_leases()
        for record in records:
            session.apply(record)

    def tell(self, session: Session, news: str = "") -> None:
        """Adds an event and wakes pollers: the session changed its state, or has other `news`."""
        self.cursor += 1
        job = str(session.spec.get("job", ""))
        self.events.append(Event(self.cursor, session.session_id, news or session.phase.value, job))
        self.wake()

    def refuse_over_limits(self, session: Session, limits: SessionLimits, asked: int) -> None:
        """Raises LimitReached if `asked` more turns are too many for the session's own limits, or else for `limits`."""
        own = session.spec.get("limits") or {}
        effective = {name: getattr(limits, name) if own.get(name) is None else own[name] for name in LIMITS}
        before = session.limit_reached
        try:
            session.refuse_over_limits(asked=asked, **effective)
        except LimitReached:
            if session.limit_reached and not before:  # once: pollers need not hear of every refusal
                self.tell(session)
            raise

    def refuse_over_share(self, session: Session, *records: Record) -> None:
        """Raises LimitReached if the journal's volume is nearly full by what large sessions wrote, and this one has,
        with `records`, more than its share. Nobody is asked who has little, or while there is room."""
        space = self.store.space
        if not space.tight:
            return
        own = session.journalled + sum(map(size, records))
        large = (self.live[name].journalled for name in self.large if name in self.live)
        if not space.refuses(own, large):
            return
        if not session.limit_reached:  # a limit of its own stays: it is why the session ends
            session.limit_reached = JOURNAL_SHARE
            log.warning(
                "session %s is refused: %d bytes are free for the journal, and it wrote %d; see docs/journals.md",
                session.session_id, space.free, own,
            )  # fmt: skip
            self.tell(session)
        raise LimitReached(JOURNAL_SHARE, used=own, limit=int(space.share))

    def committed(self, session: Session) -> bool:
        """Whether all trajectories of the session were acknowledged. Attempts that do not count for their group never
        are."""
        if session.retired is not None:
            return session.retired.acked
        member = self.book.members.get(session.session_id)
        return member is not None and bool(member.acked) and self.book.tells(session.session_id)

    def summary(self, session: Session, *, whole: bool = True) -> dict[str, Any]:
        """The answer of GET /v1/sessions/{id}; not `whole`: a line of a listing."""
        return {**session.summary(whole=whole), "committed": self.committed(session)}

    def wake(self) -> None:
        """Wakes pollers."""
        self.changed.set()
        self.changed = asyncio.Event()

    def restored(self, session: Session) -> Session:
        """The session with its whole tree, read back from the journal if it was evicted. Raises Gone if the journal
        has it no more, JournalUnavailable if it does not show its end now."""
        session.refuse_if_retired()
        if not session.evicted:
            return session
        full = Session(session.session_id)
        for record in self._records(session):
            full.apply(record)
        return full

    def _records(self, session: Session) -> Iterator[Record]:
        """What the journal has of a session. Raises JournalUnavailable behind the last if the session ended, and that
        is not among them: whoever reads elsewhere than it was written may see an older state."""
        shown = not session.ended
        for _, _, record in self.store.scan(session.session_id):
            shown = shown or isinstance(record, Sealed)
            yield record
        if not shown:
            raise JournalUnavailable(f"the journal does not show the end of session {session.session_id} now")

    def whole(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        """Committed turns with the top logprobs of their tokens, which only the journal has. Blocks."""
        wanted, tops = {turn.id for turn in turns}, {}
        for _, _, record in self.store.scan(session_id):
            if isinstance(record, TurnCommitted) and record.turn in wanted:
                tops[record.turn] = parted(record.top)
        return [replace(turn, top=tops[turn.id]) for turn in turns]

    def trajectories(self, session: Session, facts: Facts) -> list[Trajectory]:
        """Rows of an ended session, read from the journal if it was evicted, or shows pictures. Raises
        JournalUnavailable if the journal does not show its end now."""
        if not session.evicted and not session.pictures:
            return trajectories_of(session, facts)
        return trajectories_from(session.session_id, self._records(session), facts)

    async def set_version(
        self, version: int, labelled: bool | None = None, adapter: str = "", *, if_untold: bool = False
    ) -> None:
        """Sets the policy version, durably, so that a restart does not mislabel tokens. `labelled`: whether the labels
        of the engines' weights carry versions; None: as before. `adapter`: what the engines serve the version as;
        empty: their own weights are of it. `if_untold`: unless a version was set before, be it a moment ago."""
        await carried_through(self._set_version, version, labelled, adapter, if_untold)

    async def _set_version(self, version: int, labelled: bool | None, adapter: str, if_untold: bool) -> None:
        async with self._versions:  # the version that was asked for last is the one that holds
            if not (if_untold and self.process.version_told):
                await self._fold_durably(*self._version_records(version, labelled, adapter))

    def _version_records(self, version: int, labelled: bool | None, adapter: str) -> list[ProcessRecord]:
        now = self.now()
        records: list[ProcessRecord] = [
            AdapterServed(at=now, version=version, name=adapter)
            if adapter
            else PolicyVersion(at=now, version=version)
        ]
        if labelled is not None and (labelled, labelled) != (self.process.labelled, self.labels.known):
            records.append(EnginesLabelled(at=now, labelled=labelled))
        return records

    def newest_label(self) -> int:
        """The highest version in the engines' labels, where versions are told by these; else 0."""
        told_by_labels = self.labels.known and self.process.adapter is None
        return self.labels.newest if told_by_labels else INITIAL

    async def keep_labels(self) -> None:
        """Makes durable that labels carry versions, once that was seen, before anything that was sampled under one."""
        if self.labels.known and not self.process.labelled:
            await carried_through(self._fold_durably, EnginesLabelled(at=self.now(), labelled=True))

    async def set_paused(self, paused: bool, update: str = "") -> None:
        """Holds turns, or lets them go on: durably, so that a restart in the middle of a weight update holds them,
        too. `update`: the one that begins by this."""
        held = TurnsHeld(at=self.now(), paused=paused, update=update)
        await carried_through(self._fold_durably, held)

    async def set_engines(self, urls: tuple[str, ...]) -> None:
        """Sets the engines' URLs, durably, so that a restart finds them without being told again."""
        await carried_through(self._fold_durably, EnginesSet(at=self.now(), urls=urls))

    async def _fold_durably(self, *records: ProcessRecord) -> None:
        self.settling += 1
        try:
            await self._append("", *records)
            for record in records:
                self._fold("", record)
        finally:
            self.settling -= 1

    def change_capacity(self, by: int) -> Coroutine[Any, Any, None]:
        """Changes AReaL's granted capacity: in memory at once, so that two never take the same place. Durable when it
        was awaited, undone if that fails. Whoever is cancelled in it does not know which."""
        record = CapacityChanged(at=self.now(), by=by)
        self.settling += 1  # from now on: a snapshot that has it must not come before its record
        self.process = self.process.apply(record)
        return carried_through(self._change_capacity, record)

    async def _change_capacity(self, record: CapacityChanged) -> None:
        try:
            await self._append("", record)
        except BaseException:
            self.process = self.process.apply(CapacityChanged(at=record.at, by=-record.by))
            raise
        finally:
            self.settling -= 1

    async def push(self, tasks: Sequence[Pushed], *, job: str, last: bool) -> tuple[str, ...]:
        """Adds tasks to the task queue, durably (see TaskQueue.push). Returns the uids of those that had finished
        before, and whose groups are not owed to a trainer here: a trainer that died gets these, and is right to ask."""
        async with self.pushing:
            finished = tuple(uid for uid in self.tasks.finished_of(tasks) if not self.book.owes(job, uid))
            if (record := self.tasks.push(tasks, self.now(), last=last)) is not None:
                await carried_through(self._queue, record)
            return finished

    async def forget_tasks(self, upto: int) -> None:
        """Forgets finished tasks (see TaskQueue.forget). The log is compacted when half of it is about finished
        tasks."""
        async with self.pushing:
            if (record := self.tasks.forget(upto, self.now())) is not None:
                await carried_through(self._queue, record)
                if self.tasks.is_stale:
                    await self.store.replace(TASKS, *self.tasks.snapshot(self.now()))
                    self.tasks.stale = 0

    async def _queue(self, record: TasksPushed | TasksForgotten) -> None:
        await self._append(TASKS, record)
        self.tasks.fold(record)
        self.wake()

    async def settle(self, *records: Record | None) -> None:
        """Carries out decisions of the lease book: makes them durable, all or none, then folds them; undoes them if
        they cannot be made durable. Carried through even if the caller is cancelled."""
        if decided := [record for record in records if record is not None]:
            await carried_through(self._settle, decided)

    async def _settle(self, records: Sequence[Record]) -> None:
        self.settling += 1
        try:
            await self._append("", *records)
        except BaseException:
            for record in records:
                self.book.undo(record)
            raise
        else:
            for record in records:
                self.book.fold("", record)
                for session_id in record.sessions if isinstance(record, Acked) else ():
                    session = self.live.get(session_id)
                    if session is not None and self.committed(session):
                        self.tell(session, COMMITTED)
        finally:
            self.settling -= 1

    async def retire(self, age_s: float) -> int:
        """Deletes the records of groups that were acknowledged more than `age_s` ago, each group at once; a line stays
        of each session. Returns how many sessions. What a bad disk still has, is tried again.

        The log of leases is compacted with them, unless one of its records is being written just now.
        """
        now, count = self.now(), 0
        due = self.book.disposable(now - age_s)
        for some in (due[start : start + GROUPS_AT_ONCE] for start in range(0, len(due), GROUPS_AT_ONCE)):
            await self.settle(*self.book.robbed(chain(*some), now))
            done = await asyncio.gather(*map(self._retire, some), return_exceptions=True)
            gone = [name for group, error in zip(some, done, strict=True) if error is None for name in group]
            self.book.forget(gone)
            count += len(gone)
            for error in done:
                if error is not None:
                    raise error
        if count and not self.settling:
            await self.store.replace("", *self.process.snapshot(now), *self.book.snapshot(self.by_leases()))
        return count

    async def _retire(self, group: Sequence[str]) -> None:
        """Carried through, as `record`: a line that is durable is told from then on."""
        await carried_through(self._replace_with_lines, [self.live[name] for name in group])

    async def _replace_with_lines(self, group: Sequence[Session]) -> None:
        lines = {session.session_id: line_of(session, acked=self.committed(session)) for session in group}
        for session in group:  # first: nobody may read what is being deleted
            session.retired = lines[session.session_id]
        try:
            await self.store.retire(list(lines), {RETIRED + name: line for name, line in lines.items()})
        except BaseException:
            for session in group:
                session.retired = None
            raise
        self.retired.count += len(group)
        for session in group:
            self.live.pop(session.session_id, None)
            self.large.discard(session.session_id)

    async def page(self, state: str | None, job: str | None, after: str, limit: int) -> list[Session]:
        """Sessions in id order after `after`, at most `limit`; retired ones, too."""

        def wanted(session: Session) -> bool:
            return (not state or session.phase == state) and (not job or session.spec.get("job") == job)

        # First those in memory: one that is retired meanwhile is in both, and not in neither.
        later = (name for name in sorted(self.live) if name > after)
        here = list(islice((one for name in later if wanted(one := self.live[name])), limit))
        if state in (SessionPhase.OPEN, SessionPhase.COMPLETE):
            return here
        known = {one.session_id for one in here}
        lines = await self.retired.after(
            after, lambda one: one.session_id not in known and wanted(one), limit
        )
        return sorted([*here, *lines], key=lambda one: one.session_id)[:limit]


def _of_one_place(place: Place, holder: str) -> str:
    return (
        f"sample_index: session {holder} is attempt {place.attempt} at sample {place.sample} of task"
        f" {place.key.uid[:200]!r}, and of two such a trainer gets one. Give this one another sample_index; for a new"
        " try at the sample a higher attempt, or abort that session first; for the same task once more another uid"
    )


async def _with_worth(session: Session, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records, of which a seal at their end says what the rewards of turns come to. That goes through the whole
    tree, in a thread; nothing is recorded meanwhile, as the session is being closed."""
    *notes, last = records
    if not isinstance(last, Sealed) or not session.needs_worth(last):
        return records
    delivered = {note.turn for note in notes if isinstance(note, Delivered) and not note.partly}
    worth = await asyncio.to_thread(copy.copy(session).worth, last, delivered)
    return *notes, structs.replace(last, turns_worth=worth)


def _perhaps_delivered(session: Session, recent: Set[str]) -> set[str]:
    """Of these turns those of which a kill may have lost the record that they were sent. Of what the agent let go of
    there is no doubt: it was sent a part."""
    return {
        turn.id
        for turn in session.tree.turns
        if turn.id in recent and turn.finish != CUT and turn.id not in session.partly
    }
