"""Two trainers as in test_leases.py, and answers are lost, requests refused, gateways cut off: who was not told is not
wrong about what it may train on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from sandgate.contract.control_call import may_retry
from sandgate.contract.errors import SandgateError
from sandgate.gateway.client import Retries
from sandgate.trainer.client import fleet_leases
from sandgate.trainer.client.groups import Group
from tests.trainer.test_leases import GATEWAYS, Trainer, TwoTrainers, some

PATHS = ["/v1/leases", "/v1/leases", "/v1/leases/renew", "/v1/leases/ack", "/v1/status"]


class perhaps:  # noqa: N801 - as contextlib's
    """Nobody may have answered."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, SandgateError) and may_retry(error)


class Patient(Trainer):
    """Goes on where a gateway does not answer."""

    async def take(self, ahead: int) -> Group | None:
        with perhaps():
            return await super().take(ahead)
        return None

    async def learn(self, group: Group) -> bool:
        with perhaps():
            return await super().learn(group)
        return False


class BadNet(TwoTrainers):
    """What a rule needs to be told surely, it is told: the net is whole then."""

    kind = Patient

    @initialize(ahead=st.sampled_from([0, 2, 8]))
    def start(self, ahead: int) -> None:
        self.at_once = patch.object(fleet_leases, "ASK", Retries(attempts=1))
        """Whoever tries again after a while makes another history of it each time."""
        self.at_once.start()
        super().start(ahead)

    def whole(self) -> None:
        for site in self.world.sites.values():
            site.lose.clear()
            site.refuse.clear()
            site.cut_off = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The net is whole meanwhile."""
        sites = self.world.sites.values()
        kept = [(list(site.lose), list(site.refuse), site.cut_off) for site in sites]
        self.whole()
        try:
            yield
        finally:
            for site, (lose, refuse, cut_off) in zip(sites, kept, strict=True):
                site.lose[:], site.refuse[:], site.cut_off = lose, refuse, cut_off

    @rule(gateway=st.sampled_from(GATEWAYS), path=st.sampled_from(PATHS))
    def an_answer_will_be_lost(self, gateway: str, path: str) -> None:
        self.world.sites[gateway].lose.append(path)

    @rule(gateway=st.sampled_from(GATEWAYS), data=st.data(), call=st.sampled_from(["renew", "ack", "nack"]))
    @some(lambda one: one.hand)
    def an_answer_of_one_lease_will_be_lost(
        self, one: Trainer, data: st.DataObject, gateway: str, call: str
    ) -> None:
        lease = data.draw(st.sampled_from(one.hand), label="group").lease
        self.world.sites[gateway].lose.append(f"/v1/leases/{lease.lease_id}/{call}")

    @rule(gateway=st.sampled_from(GATEWAYS), status=st.sampled_from([502, 503]))
    def a_request_will_be_refused(self, gateway: str, status: int) -> None:
        self.world.sites[gateway].refuse.append(status)

    @rule(gateway=st.sampled_from(GATEWAYS))
    def a_gateway_is_cut_off(self, gateway: str) -> None:
        self.world.sites[gateway].cut_off = True

    @rule()
    def the_net_is_whole_again(self) -> None:
        self.whole()

    def judge(self, one: Trainer, group: Group) -> None:
        with self.aside():
            super().judge(one, group)

    def settle(self, one: Trainer, group: Group, how: str) -> None:
        if how == "checkpoint":
            super().settle(one, group, how)
            return
        if how == "nack":
            with perhaps():
                self.run(group.nack())
            one.hand.remove(group)
            return
        if not self.run(one.learn(group)):
            return
        with perhaps():
            self.run(group.ack())
        self.whole()
        self.run(group.ack())  # until it is told: it has been trained on
        one.saved[0].update({row.session_id for row in group.trajectories})
        one.hand.remove(group)

    def checkpoint(self, one: Trainer) -> None:
        with perhaps():
            super().checkpoint(one)

    def commit(self, one: Trainer) -> None:
        with perhaps():
            super().commit(one)

    def a_trainer_ends(self, one: Trainer) -> None:
        self.whole()
        super().a_trainer_ends(one)

    def roll_out(self, gateway: str) -> None:
        with self.aside():
            super().roll_out(gateway)

    def pass_time(self, seconds: float, busy: str | None) -> None:
        self.whole()
        super().pass_time(seconds, busy)

    def update_weights(self, one: Trainer) -> None:
        self.whole()
        super().update_weights(one)

    def teardown(self) -> None:
        if hasattr(self, "trainers"):
            self.whole()
        try:
            super().teardown()
        finally:
            if hasattr(self, "at_once"):
                self.at_once.stop()


TestBadNet = BadNet.TestCase
TestBadNet.settings = settings(stateful_step_count=50, max_examples=max(30, settings().max_examples // 10))
