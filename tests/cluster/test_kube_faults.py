"""The operator's client when the API server refuses, breaks off, forgets or stands still; the rest of it is real."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, Overloaded, SandgateError, Unauthorized, Unavailable
from sandgate.operator.kubernetes import access as access_module
from sandgate.operator.kubernetes import client as kube_module
from sandgate.operator.kubernetes.access import Access, Token, from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from tests.cluster.harness.api import Api
from tests.support.relay import Fault, Relay, relay

Json = dict[str, Any]
CUT = Fault()
LOST = Fault(late=True)
"""Done, but the answer does not come through."""


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    with apiserver.namespace("kube-faults") as name:
        yield name


@pytest.fixture
async def between(apiserver: Api) -> AsyncIterator[Relay]:
    async with relay(from_kubeconfig([apiserver.kubeconfig])) as one:
        yield one


@pytest.fixture
async def kube(between: Relay) -> AsyncIterator[KubeClient]:
    client = KubeClient(Access(between.url), deadline_s=5.0)
    yield client
    await client.aclose()


def config(namespace: str, name: str) -> Json:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "1"}}


PASSING = {
    "too many requests": [Fault(429, "0"), Fault(429)],
    "the server failed": [Fault(500), Fault(503), Fault(504)],
    "the connection broke": [CUT, CUT],
    "the answer was lost": [LOST, LOST],
    "a server that is no API server answered": [Fault(200, raw="<html>"), Fault(502, raw="<html>")],
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
async def test_what_passes_by_itself_is_not_seen(
    kube: KubeClient, between: Relay, namespace: str, faults: list[Fault]
) -> None:
    told: list[tuple[str, str, str]] = []
    kube.observe = lambda verb, kind, code, seconds: told.append((verb, kind, code))
    between.faults = deque(faults)
    assert (await kube.apply(config(namespace, "passing")))["data"] == {"a": "1"}
    between.faults = deque(faults)
    assert await kube.list("ConfigMap", namespace)
    between.faults = deque(faults)
    await kube.delete("ConfigMap", namespace, "passing")
    assert len(between.seen) == 3 * (len(faults) + 1)
    assert [verb for verb, _, code in told if code in ("200", "201", "404")][-1] == "delete"
    assert {code for _, _, code in told} & {"429", "500", "502", "ServerDisconnectedError"}


LASTING = {
    "too many requests": (Fault(429), Overloaded),
    "the server fails": (Fault(503), Unavailable),
    "connections break": (CUT, Unavailable),
}


@pytest.mark.parametrize(("fault", "error"), LASTING.values(), ids=LASTING)
async def test_what_does_not_pass_is_said_after_the_deadline(
    between: Relay, namespace: str, fault: Fault, error: type[SandgateError]
) -> None:
    between.faults = deque([fault] * 100)
    kube = KubeClient(Access(between.url), deadline_s=1.0)
    with pytest.raises(error):
        await kube.get("ConfigMap", namespace, "kube-root-ca.crt")
    assert 2 <= len(between.seen) <= 10, "it backs off: five tries, each asked twice where a connection broke"
    await kube.aclose()


async def test_a_server_that_stands_still_costs_one_attempt_not_for_ever(
    between: Relay, namespace: str
) -> None:
    between.freeze()
    kube = KubeClient(Access(between.url), deadline_s=3.0, attempt_s=0.5)
    with pytest.raises(Unavailable, match="does not answer"):
        await kube.list("ConfigMap", namespace)
    assert len(between.seen) >= 2
    await kube.aclose()


async def test_a_longer_retry_after_is_waited_for(kube: KubeClient, between: Relay, namespace: str) -> None:
    between.faults = deque([Fault(429, "60")])
    kube_short = KubeClient(Access(between.url), deadline_s=1.0)
    with pytest.raises(Overloaded) as refused:
        await kube_short.list("ConfigMap", namespace)
    assert (refused.value.retry_after, len(between.seen)) == (60.0, 1), "the deadline is before that"
    await kube_short.aclose()


async def test_a_creation_whose_answer_was_lost_is_a_conflict_with_itself(
    kube: KubeClient, between: Relay, namespace: str
) -> None:
    between.faults = deque([LOST])
    with pytest.raises(Conflict):
        await kube.create(config(namespace, "lost"))
    assert await kube.get("ConfigMap", namespace, "lost")


async def test_a_list_that_expires_between_chunks_begins_again_and_then_is_asked_for_whole(
    kube: KubeClient, between: Relay, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_module, "LIST_CHUNK", 1)
    names = ["expire-a", "expire-b", "expire-c"]
    for name in names:
        await kube.apply(config(namespace, name))
    between.hits = lambda request: "continue" in request.query
    between.faults = deque([Fault(410)])
    found = [one["metadata"]["name"] for one in await kube.list("ConfigMap", namespace)]
    assert found == sorted(set(found))
    assert set(names) <= set(found)
    between.faults, between.seen = deque([Fault(410)] * 9), []
    assert [one["metadata"]["name"] for one in await kube.list_metadata("ConfigMap", namespace)] == found
    assert "limit" not in between.seen[-1]
    assert len(between.seen) == 2 * kube_module.LIST_RESTARTS + 1


async def test_a_token_is_read_again_when_it_is_old_or_refused(
    between: Relay, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    kube = KubeClient(Access(between.url, token=Token(path=file)))
    await kube.list("ConfigMap", namespace)
    file.write_text("second\n")
    await kube.list("ConfigMap", namespace)
    between.faults = deque([Fault(401)])
    await kube.list("ConfigMap", namespace)
    file.write_text("third\n")
    monkeypatch.setattr(access_module, "TOKEN_S", 0.0)
    await kube.list("ConfigMap", namespace)
    file.unlink()
    await kube.list("ConfigMap", namespace)
    said = ["first", "first", "first", "second", "third", "third"]
    assert between.tokens == [f"Bearer {token}" for token in said]
    between.faults = deque([Fault(401)] * 2)
    with pytest.raises(Unauthorized):
        await kube.list("ConfigMap", namespace)
    await kube.aclose()


async def test_no_more_requests_at_once_than_allowed(between: Relay, namespace: str, apiserver: Api) -> None:
    kube = KubeClient(Access(between.url), in_flight=3)
    between.freeze()
    calls = [asyncio.create_task(kube.list("ConfigMap", namespace)) for _ in range(10)]
    async with asyncio.timeout(10), between.arrived:
        await between.arrived.wait_for(lambda: len(between.seen) >= 3)
    other = KubeClient(Access(between.url))
    extra = asyncio.create_task(other.list("ConfigMap", namespace))
    async with asyncio.timeout(10), between.arrived:
        await between.arrived.wait_for(lambda: len(between.seen) >= 4)
    assert len(between.seen) == 4, "one of another client came through, none of ours before it"
    between.thaw()
    await asyncio.gather(*calls, extra)
    assert len(between.seen) == 11
    await kube.aclose()
    await other.aclose()


def test_a_client_closed_after_a_call_was_cancelled_leaves_no_connection_open(apiserver: Api) -> None:
    """TLS says goodbye and waits for the answer; a loop that ends before would leave the socket."""

    async def cancelled_after(turns: int) -> None:
        client = KubeClient(from_kubeconfig([apiserver.kubeconfig]))
        await client.get("Namespace", "", "default")
        call = asyncio.create_task(client.list("Secret"))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.aclose()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for turns in range(30):
            asyncio.run(cancelled_after(turns))
        gc.collect()
    assert [str(one.message) for one in seen] == []
