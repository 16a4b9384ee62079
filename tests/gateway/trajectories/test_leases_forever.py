"""Any history of sessions, leases, acks, failures and restarts: the laws of the lease book hold after each step."""

from __future__ import annotations

import contextlib
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandgate.contract.errors import Conflict
from tests.gateway.trajectories.books import TTL, Journalled

TASKS, SAMPLES, ATTEMPTS = ("a", "b", "c"), (0, 1), (0, 1, 2)
DURABLE = st.sampled_from([True, True, True, False])
"""Could it be written?"""


class Forever(RuleBasedStateMachine):
    """`self.it` is the book under test; the model keeps only what was told to whom, and judges."""

    @initialize(ended=st.sets(st.sampled_from(TASKS), min_size=1))
    def start(self, ended: set[str]) -> None:
        """`ended`: whole groups from the beginning, or few of the histories would come to an acknowledgement."""
        self.it = Journalled(size=len(SAMPLES))
        self.number = 0
        self.given: dict[str, tuple[tuple[str, ...], float]] = {}
        """Lease -> (sessions, until), unless given back."""
        self.last: dict[str, str] = {}
        """Session -> the last lease that was given it, given back or not: what is offered anew is no older lease's."""
        self.acked: Counter[str] = Counter()
        self.open: set[str] = set()
        self.good: set[str] = set()
        self.paid: set[str] = set()
        """Tasks of which something was acknowledged and nothing forgotten."""
        self.gone: set[str] = set()
        """Forgotten; nobody gives a new session an old one's id."""
        for name in (f"{task}.{sample}.0" for task in sorted(ended) for sample in SAMPLES):
            self.it.ended(name)
            self.good.add(name)

    @rule(task=st.sampled_from(TASKS), sample=st.sampled_from(SAMPLES), attempt=st.sampled_from(ATTEMPTS))
    def open_one(self, task: str, sample: int, attempt: int) -> None:
        name = f"{task}.{sample}.{attempt}"
        if name not in self.it.book.members.keys() | self.gone:
            self.it.open(name)
            self.open.add(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["good", "good", "good", "infra", "aborted", "policy"]))
    def seal_one(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.it.seal(name, failure=how if how in ("infra", "policy") else None, aborted=how == "aborted")
        self.open.discard(name)
        if how in ("good", "policy"):
            self.good.add(name)

    @rule(whole=st.booleans(), groups=st.integers(1, 3), durable=DURABLE)
    def lease(self, whole: bool, groups: int, durable: bool) -> None:
        self.number += 1
        name = f"l{self.number}"
        record = self.it.book.lease(name, self.it.now, ttl_s=TTL, max_groups=groups, whole_groups=whole)
        if record is None:
            return
        if not durable:
            self.it.book.undo(record)
            return
        self.it.write("", record)
        told = set(filter(self.it.book.tells, record.sessions))
        assert told <= self.good, "only good sealed sessions are handed out with rows"
        empty = {session.split(".")[0] for session in set(record.sessions) - told}
        assert not empty & self.paid, "a group is told to be lost once, and none of it was trained on"
        assert not self.open & set(record.sessions), "what runs is not handed out"
        assert not any(self.acked[session] for session in record.sessions), "nothing acked is handed out"
        samples = [session.rpartition(".")[0] for session in record.sessions]
        assert len(samples) == len(set(samples)), "one attempt per sample"
        self.given[name] = (record.sessions, record.until)
        self.last.update(dict.fromkeys(record.sessions, name))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), part=st.booleans(), durable=DURABLE)
    def ack(self, data: st.DataObject, part: bool, durable: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.given)))
        sessions = self.given[name][0][:1] if part else None
        with contextlib.suppress(Conflict):
            record = self.it.book.ack(name, self.it.now, sessions)
            if record is not None and durable:
                self.it.write("", record)
                self.acked.update(record.sessions)
                self.paid.update(session.split(".")[0] for session in record.sessions)
            elif record is not None:
                self.it.book.undo(record)
            return
        lost = [session for session in self.given[name][0] if self.last[session] != name]
        assert lost, "an ack is refused only if another lease was given something of it since"

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.given)))
        self.it.nack(name)
        del self.given[name]

    @precondition(lambda self: self.given)
    @rule(data=st.data(), durable=DURABLE)
    def renew(self, data: st.DataObject, durable: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.given)))
        sessions = self.given[name][0]
        try:
            record = self.it.book.renew(name, self.it.now, ttl_s=TTL)
        except Conflict:
            assert any(self.last[session] != name for session in sessions), (
                "refused only if another was given it"
            )
            return
        if record is None:
            assert all(self.acked[session] for session in sessions)
        elif durable:
            self.it.write("", record)
            self.given[name] = (sessions, record.until)
        else:
            self.it.book.undo(record)

    @rule(task=st.sampled_from(TASKS))
    def close(self, task: str) -> None:
        if any(name.startswith(task) for name in self.it.book.members):
            self.it.close(task)

    @rule(seconds=st.sampled_from([1.0, TTL / 2, TTL]))
    def time_passes(self, seconds: float) -> None:
        self.it.now += seconds

    @rule()
    def restart(self) -> None:
        self.it.book = self.it.replayed()

    @rule()
    def forget_what_is_done(self) -> None:
        gone = [name for group in self.it.book.disposable() for name in group]
        open_, good = self.open, self.good
        assert not open_ & set(gone), "nothing that runs is forgotten"
        counted = [name for name in gone if name in good and not self.acked[name]]
        for name in counted:  # good, and yet never trained on: superseded, or late for a closed group
            rivals = [other for other in gone if other.rpartition(".")[0] == name.rpartition(".")[0]]
            closed = any(
                group.closed is not None and name not in group.closed
                for group in self.it.book.groups.values()
                if name in {member.session for member in group.members()}
            )
            assert closed or any(self.acked[rival] for rival in rivals), f"{name} is lost"
        self.it.book.forget(gone)
        self.it.log = [(session, record) for session, record in self.it.log if session not in gone]
        self.good -= set(gone)
        self.paid -= {name.split(".")[0] for name in gone}
        self.gone.update(gone)
        for name, (sessions, until) in list(self.given.items()):
            left = tuple(session for session in sessions if session not in gone)
            if left:
                self.given[name] = (left, until)
            else:
                del self.given[name]

    @invariant()
    def what_is_free_is_what_looking_at_everything_finds(self) -> None:
        book, now = self.it.book, self.it.now
        book.standing(now)
        taken = {book.members[name].key for name in (*book.held, *book.acking) if name in book.members}
        for lease in book.leases.values():
            mine = [book.members[name] for name in lease.sessions if name in book.members]
            if lease.until > now and not lease.over:
                taken |= {one.key for one in mine if one.leased == lease.lease and not one.acked}
        for queue, whole in ((book.whole, True), (book.partial, False)):
            offering = {key for key, group in book.groups.items() if group.offer(whole=whole)}
            assert set(queue) == offering
            assert queue.free == offering - taken
            assert list(queue.oldest(None)) == [key for key in queue if key in queue.free], "oldest first"

    @invariant()
    def whoever_may_renew_is_the_last_that_was_given_it(self) -> None:
        """It is what a trainer asks right before it trains."""
        for name, (sessions, _) in self.given.items():
            try:
                record = self.it.book.renew(name, self.it.now, ttl_s=TTL)
            except Conflict:
                continue
            if record is not None:
                self.it.book.undo(record)
            assert all(self.last[session] == name for session in sessions)

    @invariant()
    def nothing_is_acked_twice(self) -> None:
        assert all(count == 1 for count in self.acked.values())

    @invariant()
    def no_two_live_leases_share_a_group(self) -> None:
        live = Counter(
            task
            for sessions, until in self.given.values()
            if until > self.it.now
            for task in {session.split(".")[0] for session in sessions if not self.acked[session]}
        )
        assert all(count == 1 for count in live.values()), live

    @invariant()
    def replay_and_compaction_give_the_same_book(self) -> None:
        assert self.it.replayed() == self.it.book
        compacted = self.it.compacted()
        assert (compacted.members, compacted.groups) == (self.it.book.members, self.it.book.groups)
        assert set(compacted.whole) == set(self.it.book.whole)
        assert {k: (v.until, v.over) for k, v in compacted.leases.items()} == {
            k: (v.until, v.over) for k, v in self.it.book.leases.items()
        }

    def teardown(self) -> None:
        """Nothing is lost: once all is sealed, closed and expired, what counts can be leased and acked to the end."""
        for name in sorted(self.open):
            self.it.seal(name)
        self.it.now += 2 * TTL
        for task in TASKS:
            if any(name.startswith(task) for name in self.it.book.members):
                self.it.close(task)
        self.it.lease("end", max_groups=len(TASKS))
        if "end" in self.it.book.leases:
            self.it.ack("end")
        book = self.it.book
        assert not book.whole
        assert not book.partial
        assert sorted(name for group in book.disposable() for name in group) == sorted(book.members)


TestForever = Forever.TestCase
TestForever.settings = settings(stateful_step_count=40, max_examples=max(250, settings().max_examples))
