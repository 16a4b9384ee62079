"""Two trainers lease from two real gateways, are killed, come back from their checkpoints, fall behind: whatever
happens, no group is with both, none is trained on twice by id, none is lost, and nothing too old is handed out."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandgate.contract.errors import Conflict
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lag import oldest
from sandgate.trainer.client.streaming import Ahead, Groups
from sandgate.trainer.client.trained import Note
from tests.support.gateway import NEVER_S
from tests.trainer.world import World

T = TypeVar("T")

TTL_S = 90.0
MAX_BEHIND = 1
GATEWAYS = ("g0", "g1")
NAMES = ("a", "b")
ROLLED_MAX = 24
"""Sessions; more only take time."""


class Trainer:
    """What a trainer knows, and what is left of it after a kill: its checkpoint."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fleet: AsyncFleet | None = None
        self.stream: Groups | None = None
        self.hand: list[Group] = []
        self.learned: Counter[str] = Counter()
        """Session -> how often the weights have learned from it."""
        self.saved: tuple[Counter[str], Note] = Counter(), {"format": 1, "version": 0, "trained": []}

    @property
    def up(self) -> AsyncFleet:
        assert self.fleet is not None
        return self.fleet

    async def start(self, ahead: int) -> None:
        self.fleet = self.world.fleet()
        self.learned = self.saved[0].copy()
        await self.up.resume_from(self.saved[1])
        self.open(ahead)

    def open(self, ahead: int) -> None:
        self.stream = self.up.groups(
            ttl_s=TTL_S, idle_s=0.0, ahead=Ahead(ahead), max_behind=MAX_BEHIND, poll_s=NEVER_S
        )

    async def take(self, ahead: int) -> Group | None:
        assert self.stream is not None
        async for group in self.stream:
            self.hand.append(group)
            return group
        self.open(ahead)
        return None

    async def learn(self, group: Group) -> bool:
        """As docs/trainers/client.md says: be sure that it is ours, then step. False if it is not."""
        try:
            await group.renew()
        except Conflict:
            self.hand.remove(group)
            return False
        self.learned.update({row.session_id for row in group.trajectories})
        return True

    def kill(self) -> None:
        """-9: nothing is said to anybody. (A stopped loop would do; here its tasks are taken away.)"""
        if self.stream is not None:
            supply = self.stream.supply
            for task in [supply.task, *(well.task for well in supply.wells.values())]:
                if task is not None:
                    task.cancel()
            supply.ended = True
            supply.buffer.clear()
        if self.up.keeper.task is not None:
            self.up.keeper.task.cancel()
        self.fleet = self.stream = None
        self.hand, self.learned = [], self.saved[0].copy()

    def holds(self, now: float) -> set[str]:
        """Sessions that it may train on, as far as it knows."""
        return {
            session
            for group in self.hand
            if not group.settled and not group.lost and group.hold.until > now
            for session in group.lease.sessions
        }


def some(wanted: Callable[[Trainer], Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The rule is for a trainer like this; it is given one."""

    def made(step: Callable[..., None]) -> Callable[..., None]:
        def one(self: Any, data: st.DataObject, **more: Any) -> None:
            names = [name for name, trainer in self.trainers.items() if wanted(trainer)]
            step(self, self.trainers[data.draw(st.sampled_from(names))], data=data, **more)

        one.__name__ = step.__name__
        found: Callable[..., None] = precondition(lambda self: any(map(wanted, self.trainers.values())))(one)
        return found

    return made


class TwoTrainers(RuleBasedStateMachine):
    """The trainers' own model of what they learned judges."""

    kind = Trainer

    @initialize(ahead=st.sampled_from([0, 2, 8]))
    def start(self, ahead: int) -> None:
        self.runner = asyncio.Runner()
        self.world = World()
        self.run(self.world.__aenter__())
        self.trainers = {name: self.kind(self.world) for name in NAMES}
        self.ahead, self.number, self.version = ahead, 0, 0
        self.rolled: dict[str, int] = {}
        """Session -> the policy version that sampled it."""
        for one in self.trainers.values():
            self.run(one.start(ahead))
        for gateway in GATEWAYS * 2:
            self.roll_out(gateway)

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """And all that it sets going, so that a history is the same each time."""

        async def all_of_it() -> T:
            found = await doing
            await self.world.settle()
            return found

        return self.runner.run(all_of_it())

    @precondition(lambda self: len(self.rolled) < ROLLED_MAX)
    @rule(gateway=st.sampled_from(GATEWAYS))
    def a_group_is_rolled_out(self, gateway: str) -> None:
        self.roll_out(gateway)

    def roll_out(self, gateway: str) -> None:
        self.number += 1
        for session in self.run(self.world.roll(gateway, f"q{self.number}")):
            self.rolled[session] = self.version

    @rule(data=st.data(), then=st.sampled_from(["hold", "checkpoint", "checkpoint"]))
    @some(lambda one: one.fleet)
    def a_trainer_takes_a_group(self, one: Trainer, data: st.DataObject, then: str) -> None:
        group = self.run(one.take(self.ahead))
        if group is None:
            return
        self.judge(one, group)
        if then != "hold":
            self.settle(one, group, then)

    def judge(self, one: Trainer, group: Group) -> None:
        """May it have it?"""
        mine = set(group.lease.sessions)
        others = [other for other in self.trainers.values() if other is not one]
        assert not any(mine & other.holds(self.world.clock.now) for other in others), "it is with another"
        assert not any(self.trainers[name].saved[0][session] for name in NAMES for session in mine), "again"
        seen = oldest(group.trajectories)
        assert seen == min(self.rolled[session] for session in mine)
        assert self.run(one.up.version()) - seen <= MAX_BEHIND, "too old"

    @rule(data=st.data(), how=st.sampled_from(["checkpoint", "checkpoint", "ack", "nack"]))
    @some(lambda one: one.hand)
    def a_trainer_is_done_with_a_group(self, one: Trainer, data: st.DataObject, how: str) -> None:
        self.settle(one, data.draw(st.sampled_from(one.hand), label="group"), how)

    def settle(self, one: Trainer, group: Group, how: str) -> None:
        if how == "nack":
            self.run(group.nack())
        elif not self.run(one.learn(group)):
            return
        elif how == "checkpoint":
            one.up.trained(group)
        else:  # whoever acknowledges before the checkpoint has said that the group is stored elsewhere
            self.run(group.ack())
            one.saved[0].update({row.session_id for row in group.trajectories})
        one.hand.remove(group)

    @rule(data=st.data())
    @some(lambda one: one.fleet)
    def a_trainer_writes_a_checkpoint(self, one: Trainer, data: st.DataObject) -> None:
        self.checkpoint(one)
        self.commit(one)

    def commit(self, one: Trainer) -> None:
        self.run(one.up.commit(one.saved[1]))

    def checkpoint(self, one: Trainer) -> None:
        """Written, or gone back to the last one."""
        try:
            note = self.run(one.up.checkpoint())
        except Conflict:
            one.kill()
            self.run(one.start(self.ahead))
        else:
            one.saved = one.learned.copy(), json.loads(json.dumps(note))

    @rule(data=st.data(), saves=st.booleans())
    @some(lambda one: one.fleet)
    def a_trainer_is_killed(self, one: Trainer, data: st.DataObject, saves: bool) -> None:
        """`saves`: right after it has written a checkpoint, before it acknowledged anything."""
        if saves:
            self.checkpoint(one)
        one.kill()
        self.run(self.world.settle())

    @rule(data=st.data())
    @some(lambda one: not one.fleet)
    def a_trainer_comes_back(self, one: Trainer, data: st.DataObject) -> None:
        self.run(one.start(self.ahead))

    @rule(data=st.data())
    @some(lambda one: one.fleet)
    def a_trainer_ends_in_order(self, one: Trainer, data: st.DataObject) -> None:
        self.a_trainer_ends(one)

    def a_trainer_ends(self, one: Trainer) -> None:
        self.checkpoint(one)
        self.run(one.up.commit(one.saved[1]))
        self.run(one.up.aclose())
        one.kill()

    def is_fresh(self, session: str) -> bool:
        return self.version - self.rolled[session] <= MAX_BEHIND

    @rule(seconds=st.sampled_from([TTL_S / 2, TTL_S, TTL_S]), busy=st.sampled_from([None, *NAMES]))
    def time_passes(self, seconds: float, busy: str | None) -> None:
        """`busy`: its event loop stood still, so it renewed nothing. What a checkpoint holds is acknowledged before its
        leases end, by a trainer that was killed too: that is what their length is for."""
        self.pass_time(seconds, busy)

    def pass_time(self, seconds: float, busy: str | None) -> None:
        for one in self.trainers.values():
            if one.fleet is None and one.saved[1]["trained"]:
                self.run(one.start(self.ahead))
            if one.fleet is not None:
                self.run(one.up.commit(one.saved[1]))
        self.world.clock.now += seconds
        for name, one in self.trainers.items():
            if one.fleet is not None and name != busy:
                self.run(one.up.keeper.renew_due())

    @rule(gateway=st.sampled_from(GATEWAYS))
    def a_gateway_is_killed_and_comes_back(self, gateway: str) -> None:
        self.run(self.world.restart(gateway))

    @rule(data=st.data())
    @some(lambda one: one.fleet)
    def the_weights_are_updated(self, one: Trainer, data: st.DataObject) -> None:
        self.update_weights(one)

    def update_weights(self, one: Trainer) -> None:
        self.version += 1

        async def update() -> None:
            async with one.up.weight_update(self.version):
                pass

        self.run(update())
        for other in self.trainers.values():
            if other.fleet is not None:
                other.up.told_version(self.version)

    @invariant()
    def nothing_is_learned_twice(self) -> None:
        if hasattr(self, "trainers"):
            both = sum((one.saved[0] for one in self.trainers.values()), Counter())
            assert all(count == 1 for count in both.values()), both

    def teardown(self) -> None:
        """Nothing is lost: what was not too old has been learned once all leases have ended."""
        if not hasattr(self, "trainers"):
            return
        try:
            for one in self.trainers.values():
                if one.fleet is None:
                    self.run(one.start(self.ahead))
                self.a_trainer_ends(one)
            last = self.trainers[NAMES[0]]
            self.world.clock.now += 2 * TTL_S
            self.run(last.start(self.ahead))
            while group := self.run(last.take(self.ahead)):
                assert self.run(last.learn(group))
                last.up.trained(group)
            self.a_trainer_ends(last)
            self.nothing_is_learned_twice()
            learned = {session for one in self.trainers.values() for session in one.saved[0]}
            lost = {session for session in self.rolled.keys() - learned if self.is_fresh(session)}
            assert not lost
        finally:
            self.run(self.world.__aexit__())
            self.runner.close()


TestTwoTrainers = TwoTrainers.TestCase
TestTwoTrainers.settings = settings(
    stateful_step_count=50, max_examples=max(30, settings().max_examples // 10)
)
