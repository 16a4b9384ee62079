"""Leadership by a Lease of a real API server: one leads, the next follows at once or after the last one's silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sandgate.operator.kubernetes.access import Access, from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.replica.leader_lease import LeaderLease, LeaseLost
from tests.cluster.harness.api import Api
from tests.support.relay import Relay, relay

Json = dict[str, Any]
DURATION_S, WITHIN_S = 4.5, 2.7
DEADLINE_S, ATTEMPT_S = 1.2, 0.9
"""A third of the real times, and in their order: an API server may stall for half a second."""


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    with apiserver.namespace("leases") as name:
        yield name


@pytest.fixture
async def kube(apiserver: Api) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig([apiserver.kubeconfig]), deadline_s=DEADLINE_S, attempt_s=ATTEMPT_S)
    yield client
    await client.aclose()


@pytest.fixture
async def between(apiserver: Api) -> AsyncIterator[Relay]:
    async with relay(from_kubeconfig([apiserver.kubeconfig])) as one:
        yield one


def lease(kube: KubeClient, namespace: str, name: str, identity: str) -> LeaderLease:
    return LeaderLease(
        kube,
        namespace,
        name,
        identity,
        duration_s=DURATION_S,
        renew_within_s=WITHIN_S,
        renew_every_s=0.6,
        look_every_s=0.3,
    )


async def stored(kube: KubeClient, namespace: str, name: str) -> Json:
    spec: Json = (await kube.get("Lease", namespace, name))["spec"]
    return spec


async def cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_of_two_leads_and_the_other_takes_what_is_given_back(
    kube: KubeClient, namespace: str
) -> None:
    one, two = (lease(kube, namespace, "turns", who) for who in ("one", "two"))
    await one.acquire()
    holding = asyncio.create_task(one.hold())
    waiting = asyncio.create_task(two.acquire())
    done, _ = await asyncio.wait({waiting, holding}, timeout=2 * DURATION_S)
    assert not done, "as long as it is renewed"
    await cancel(holding)
    clock = asyncio.get_running_loop().time
    start = clock()
    await one.release()
    await waiting
    assert clock() - start < DURATION_S, "it did not have to run out"
    spec = await stored(kube, namespace, "turns")
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 2)
    await one.release()
    assert (await stored(kube, namespace, "turns"))["holderIdentity"] == "two", (
        "only its holder gives it back"
    )


async def test_it_is_given_back_though_it_was_written_since_its_holder_read_it(
    kube: KubeClient, namespace: str
) -> None:
    """By a renewal that was cancelled and went through all the same, or by an upgrade of the chart."""
    one = lease(kube, namespace, "written", "one")
    await one.acquire()
    await lease(kube, namespace, "written", "one").acquire()
    await one.release()
    spec = await stored(kube, namespace, "written")
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)


async def test_a_silent_holder_is_replaced_after_its_duration_and_not_before(
    kube: KubeClient, namespace: str
) -> None:
    one, two = (lease(kube, namespace, "silent", who) for who in ("one", "two"))
    await one.acquire()
    clock = asyncio.get_running_loop().time
    start = clock()
    await two.acquire()
    assert DURATION_S <= clock() - start < 3 * DURATION_S
    with pytest.raises(LeaseLost, match="could not renew"):
        await one.hold()


async def test_a_holder_ends_when_it_sees_another(kube: KubeClient, namespace: str) -> None:
    one = lease(kube, namespace, "usurped", "one")
    await one.acquire()
    await kube.patch("Lease", namespace, "usurped", {"spec": {"holderIdentity": "two"}})
    with pytest.raises(LeaseLost, match="held by two"):
        await one.hold()
    await one.release()
    assert (await stored(kube, namespace, "usurped"))["holderIdentity"] == "two"


async def test_a_holder_s_clock_is_not_believed(kube: KubeClient, namespace: str) -> None:
    spec = {
        "holderIdentity": "from-the-past",
        "renewTime": "1999-01-01T00:00:00.000000Z",
        "leaseDurationSeconds": 2,
    }
    meta = {"name": "skewed", "namespace": namespace}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
    await kube.create(body)
    clock = asyncio.get_running_loop().time
    start = clock()
    await lease(kube, namespace, "skewed", "one").acquire()
    assert clock() - start >= 2.0, "its own duration, seen from here"


async def test_the_same_pod_need_not_wait_for_its_last_life(kube: KubeClient, namespace: str) -> None:
    await lease(kube, namespace, "again", "pod").acquire()
    clock = asyncio.get_running_loop().time
    start = clock()
    await lease(kube, namespace, "again", "pod").acquire()
    assert clock() - start < DURATION_S
    assert (await stored(kube, namespace, "again"))["leaseTransitions"] == 1


async def test_a_lease_that_the_chart_left_empty_is_taken(kube: KubeClient, namespace: str) -> None:
    meta = {"name": "empty", "namespace": namespace, "labels": {"helm": "yes"}}
    await kube.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta})
    await lease(kube, namespace, "empty", "one").acquire()
    body = await kube.get("Lease", namespace, "empty")
    assert (body["spec"]["holderIdentity"], body["metadata"]["labels"]) == ("one", {"helm": "yes"})


async def test_a_stranger_s_change_of_its_labels_does_not_end_a_holder(
    kube: KubeClient, namespace: str
) -> None:
    one = lease(kube, namespace, "touched", "one")
    await one.acquire()
    await kube.patch("Lease", namespace, "touched", {"metadata": {"labels": {"upgraded": "yes"}}})
    holding = asyncio.create_task(one.hold())
    done, _ = await asyncio.wait({holding}, timeout=2 * WITHIN_S)
    assert not done
    assert (await kube.get("Lease", namespace, "touched"))["metadata"]["labels"]["upgraded"] == "yes"
    await kube.delete("Lease", namespace, "touched")
    with pytest.raises(LeaseLost, match="deleted"):
        await holding


@pytest.mark.parametrize("way", ["frozen", "refused"])
async def test_without_the_api_server_leadership_ends_before_another_may_begin(
    apiserver: Api, between: Relay, namespace: str, way: str
) -> None:
    cut_off = KubeClient(Access(between.url), deadline_s=DEADLINE_S, attempt_s=ATTEMPT_S)
    one = lease(cut_off, namespace, way, "one")
    await one.acquire()
    holding = asyncio.create_task(one.hold())
    clock = asyncio.get_running_loop().time
    if way == "frozen":
        between.freeze()
    else:
        await between.close()
    start = clock()
    with pytest.raises(LeaseLost, match="could not renew"):
        await holding
    assert clock() - start < DURATION_S
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await one.release()
    await cut_off.aclose()


async def test_leases_of_many_replicas_have_one_holder_at_any_time(kube: KubeClient, namespace: str) -> None:
    """Each, once it leads, gives it back; who leads at the same time as another would be seen."""
    leading: set[str] = set()
    order: list[str] = []

    async def replica(who: str) -> None:
        mine = lease(kube, namespace, "many", who)
        await mine.acquire()
        leading.add(who)
        order.append(who)
        assert leading == {who}
        await mine._renew()
        assert leading == {who}
        leading.discard(who)
        await mine.release()

    async with asyncio.timeout(90):
        await asyncio.gather(*(replica(f"r{number}") for number in range(5)))
    assert sorted(order) == [f"r{number}" for number in range(5)]
