"""Many gateways over many engines: evenly used, and prefixes found again. In virtual time, from seeds."""

from __future__ import annotations

import pytest

from sandgate.gateway.engine.routing import ReplicaTable
from tests.gateway.engine.fleet_simulation import Fleet, Outcome, Shape

WARM_UP_S, MEASURED_S = 60.0, 300.0
SEEDS = (1, 2)

SHAPES = {
    "8 gateways over 64 engines": Shape(gateways=8, engines=64, sessions=512),
    "8 gateways over 8 engines": Shape(gateways=8, engines=8, sessions=512),
    "8 gateways over 8 engines, few sessions": Shape(gateways=8, engines=8, sessions=64),
    "all start at once": Shape(gateways=8, engines=64, sessions=512, stagger_s=0.01),
    "groups of 32": Shape(gateways=8, engines=64, sessions=1024, group=32),
    "one gateway over 64 engines": Shape(gateways=1, engines=64, sessions=512),
    "3 gateways over 5 engines": Shape(gateways=3, engines=5, sessions=96, group=4),
}


def routed(shape: Shape, index: int, urls: tuple[str, ...]) -> ReplicaTable:
    return ReplicaTable.of(urls, peers=shape.gateways, index=index)


class Sticky(ReplicaTable):
    """Every session of a group goes to the group's replica, whatever it has to do: the most prefixes that can be
    found."""

    def reserve(self, group: str, avoid: object = frozenset(), *, session: str = "") -> str:
        urls = list(self.replicas)
        url = urls[int(group[1:]) % len(urls)]
        self.replicas[url].in_flight += 1
        return url


def sticky(_: Shape, __: int, urls: tuple[str, ...]) -> ReplicaTable:
    return Sticky(ReplicaTable.of(urls).replicas)


def outcome(shape: Shape, seed: int, table: object = routed) -> Outcome:
    fleet = Fleet(shape, seed, table)  # type: ignore[arg-type]
    fleet.run(WARM_UP_S)
    return fleet.measure(MEASURED_S)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_engines_are_used_evenly_and_prefixes_are_found(shape: Shape, seed: int) -> None:
    found, most = outcome(shape, seed), outcome(shape, seed, sticky)
    assert found.busiest <= 1.3
    assert found.idle <= 0.1
    assert found.hits >= 0.95 * most.hits


NODES = {
    "8 gateways and 64 engines on 8 nodes": Shape(gateways=8, engines=64, sessions=512, nodes=8),
    "8 gateways and 8 engines on 8 nodes": Shape(gateways=8, engines=8, sessions=512, nodes=8),
    "few sessions on 8 nodes": Shape(gateways=8, engines=8, sessions=64, nodes=8),
    "all start at once, on 8 nodes": Shape(gateways=8, engines=64, sessions=512, nodes=8, stagger_s=0.01),
    "two gateways on each of 4 nodes": Shape(gateways=8, engines=32, sessions=512, nodes=4),
}
LONELY = Shape(gateways=6, engines=64, sessions=512, nodes=8, lonely=2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", NODES.values(), ids=NODES)
def test_most_turns_stay_on_their_node_and_no_engine_has_more_to_do_for_it(shape: Shape, seed: int) -> None:
    found, most = outcome(shape, seed), outcome(shape, seed, sticky)
    assert found.here >= 0.6
    assert found.busiest <= 1.3
    assert found.idle <= 0.1
    assert found.hits >= 0.95 * most.hits


@pytest.mark.parametrize("seed", SEEDS)
def test_engines_on_nodes_without_a_gateway_have_their_share(seed: int) -> None:
    found = outcome(LONELY, seed)
    assert found.busiest <= 1.3
    assert found.idle <= 0.1
    alone = [load for number, load in enumerate(found.loads.values()) if number % LONELY.nodes >= 6]
    mean = sum(found.loads.values()) / len(found.loads)
    assert sum(alone) / len(alone) >= 0.7 * mean


def test_the_simulation_sees_gateways_that_herd() -> None:
    """Each by its own counts, from the same end of the list, a group in one place: 84 % were idle."""
    shape = Shape(gateways=8, engines=64, sessions=512, report_s=0)
    herd = outcome(shape, 1, lambda shape, index, urls: Herd(ReplicaTable.of(urls).replicas))
    assert herd.idle > 0.8
    assert herd.busiest > 4


class Herd(ReplicaTable):
    """What gateways did before."""

    def reserve(self, group: str, avoid: object = frozenset(), *, session: str = "") -> str:
        url = self._groups.get(group)
        if url is None:
            url = min(self.replicas.values(), key=lambda r: (r.in_flight, r.sessions)).url
            self._groups[group] = url
            self.replicas[url].sessions += 1
        self.replicas[url].in_flight += 1
        return url


@pytest.mark.parametrize("shape", list(SHAPES.values())[:3], ids=list(SHAPES)[:3])
def test_an_engine_that_comes_up_has_its_share_within_10_seconds(shape: Shape) -> None:
    fleet = Fleet(shape, 1, routed)
    fleet.run(WARM_UP_S)
    fleet.add("http://engine-new")
    fleet.run(fleet.now + 10)
    loads = fleet.measure(20).loads
    share = loads["http://engine-new"] / (sum(loads.values()) / len(loads))
    assert 0.5 <= share <= 2.0


@pytest.mark.parametrize("shape", list(SHAPES.values())[:3], ids=list(SHAPES)[:3])
def test_the_work_of_an_engine_that_is_lost_is_shared_out_within_10_seconds(shape: Shape) -> None:
    whole, hurt = Fleet(shape, 1, routed), Fleet(shape, 1, routed)
    for fleet in (whole, hurt):
        fleet.run(WARM_UP_S)
    hurt.lose("http://engine-003")
    for fleet in (whole, hurt):
        fleet.run(WARM_UP_S + 10)
    assert hurt.measure(60).busiest <= 1.2 * whole.measure(60).busiest
