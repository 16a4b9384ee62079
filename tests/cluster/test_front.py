"""kopf as the operator's eyes on a real API server: what it tells, what it never tells, and what a sweep finds."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from sandgate.contract.labels import MANAGED_BY, MANAGER, SHARD
from sandgate.operator.cluster.watches import Watches
from sandgate.operator.kubernetes.access import Access, from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.kubernetes.kinds import KINDS, WATCHED, selector
from sandgate.operator.replica.sweeps import Sweeps
from sandgate.operator.settings import Settings
from tests.cluster.crds import established
from tests.cluster.harness.api import Api, api_server
from tests.cluster.harness.control import Control
from tests.cluster.harness.needs import why_no_api_server
from tests.support.relay import relay
from tests.support.waiting import until_now

Json = dict[str, Any]
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[Api, Control]]:
    """An API server that this module may compact and restart, and kinds of ours that take anything."""
    if why := why_no_api_server():
        pytest.skip(why)
    with api_server() as (api, control):
        api.apply(*(crd(kind) for kind in ("RolloutJob", "AgentSession")))
        for kind in ("rolloutjobs", "agentsessions"):
            name = f"crd/{kind}.sandgate.dev"
            until_now(partial(established, api, name), what=f"{name} is established", within_s=60)
        yield api, control


def crd(kind: str) -> Json:
    known = KINDS[kind]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": known.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "subresources": {"status": {}},
    }
    names = {"kind": kind, "plural": known.plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{known.plural}.{known.group}"},
        "spec": {"group": known.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def thing(kind: str, namespace: str, name: str, **labels: str) -> Json:
    known = KINDS[kind]
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": known.api_version, "kind": kind, "metadata": meta}


def pod(namespace: str, name: str, labels: Mapping[str, str]) -> Json:
    containers = [{"name": "c", "image": "nowhere/nothing"}]
    return {**thing("Pod", namespace, name, **labels), "spec": {"containers": containers}}


@dataclass
class Seen:
    """A hub that keeps uids and sweeps; no reconciliation."""

    kube: KubeClient
    settings: Settings
    events: list[tuple[str, str | None, str]] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """Name that a sweep found missing -> which sweep."""
    begun: int = 0
    """Sweeps, with the one that may be under way."""
    sweeps: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def saw(self, kind: str, event: str | None, body: Mapping[str, Any]) -> None:
        meta = body["metadata"]
        self.events.append((kind, event, meta["name"]))
        if event == "DELETED":
            self.known.pop(meta["uid"], None)
        else:
            self.known[meta["uid"]] = (kind, meta["name"])
        self.tell()

    def relisted(self, kind: str) -> None:
        self.lists.append(kind)
        self.tell()

    async def sweep(self) -> None:
        self.begun += 1
        for kind in WATCHED:
            before = [uid for uid, (known, _) in self.known.items() if known == kind]
            found = await self.kube.list_metadata(kind, labels=selector(kind, self.settings.shard))
            there = {one["metadata"]["uid"] for one in found}
            for uid in before:
                if uid not in there and uid in self.known:
                    self.gone[self.known.pop(uid)[1]] = self.begun
        self.sweeps += 1
        self.tell()

    def tell(self) -> None:
        async def told() -> None:
            async with self.news:
                self.news.notify_all()

        self._telling = asyncio.ensure_future(told())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S), self.news:
            await self.news.wait_for(condition)

    def of(self, kind: str) -> list[tuple[str | None, str]]:
        return [(event, name) for known, event, name in self.events if known == kind]


@asynccontextmanager
async def watching(access: Access, settings: Settings, *, inactivity_s: float = 70.0) -> AsyncIterator[Seen]:
    """Watches and sweeps run while the block does; kopf ends when it is told to, without an error."""
    kube = KubeClient(access)
    seen = Seen(kube, settings)
    sweeps = Sweeps(seen.sweep, quiet_s=0.2, retry_s=0.2)
    stop = asyncio.Event()

    def relisted(kind: str) -> None:
        seen.relisted(kind)
        sweeps.soon()

    front = Watches(access, settings, seen.saw, relisted, inactivity_s=inactivity_s)
    sweeping = asyncio.create_task(sweeps.run())
    running = asyncio.create_task(front.run(stop))
    try:
        await seen.until(lambda: set(seen.lists) >= set(WATCHED) and seen.sweeps > 0)
        yield seen
    finally:
        stop.set()
        sweeping.cancel()
        async with asyncio.timeout(WITHIN_S):
            await running
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
        await kube.aclose()


@pytest.fixture
async def kube(own: tuple[Api, Control]) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig([own[0].kubeconfig]))
    yield client
    await client.aclose()


async def test_lists_then_tells_each_change_and_writes_nothing(
    kube: KubeClient, own: tuple[Api, Control]
) -> None:
    api = own[0]
    with api.namespace("told", security="privileged") as namespace:
        await kube.create(thing("RolloutJob", namespace, "before"))
        mark = api.audit_mark()
        async with watching(kube.access, Settings()) as seen:
            await seen.until(lambda: (None, "before") in seen.of("RolloutJob"))
            await kube.create(thing("AgentSession", namespace, "s"))
            status: Json = {"status": {"conditions": []}}
            await kube.patch_status("AgentSession", namespace, "s", status)
            await kube.create(pod(namespace, "p", {MANAGED_BY: MANAGER}))
            await kube.create(pod(namespace, "stranger", {}))
            await kube.delete("Pod", namespace, "p", grace_s=0)
            await kube.delete("AgentSession", namespace, "s")
            await seen.until(lambda: ("DELETED", "s") in seen.of("AgentSession"))
            await seen.until(lambda: ("DELETED", "p") in seen.of("Pod"))
        assert seen.of("AgentSession") == [("ADDED", "s"), ("MODIFIED", "s"), ("DELETED", "s")]
        assert {name for _, name in seen.of("Pod")} == {"p"}, "pods of others are not even sent"
        writes = [
            (event["verb"], event["objectRef"]["resource"])
            for event in api.audit_since(mark)
            if event["verb"] not in ("get", "list", "watch")
        ]
        ours = [("create", "agentsessions"), ("patch", "agentsessions"), ("create", "pods")]
        ours += [("create", "pods"), ("delete", "pods"), ("delete", "agentsessions")]
        assert sorted(writes) == sorted(ours), "kopf wrote nothing"


async def test_a_shard_sees_its_own_and_the_unnamed_one_the_rest(
    kube: KubeClient, own: tuple[Api, Control]
) -> None:
    with own[0].namespace("shards") as namespace:
        for name, labels in (("plain", {}), ("sharded", {SHARD: "a"}), ("other", {SHARD: "b"})):
            await kube.create(thing("RolloutJob", namespace, name, **labels))
        async with watching(kube.access, Settings(shard="a")) as seen:
            await seen.until(lambda: bool(seen.of("RolloutJob")))
        assert seen.of("RolloutJob") == [(None, "sharded")]
        async with watching(kube.access, Settings(namespaces=(namespace,))) as seen:
            await seen.until(lambda: bool(seen.of("RolloutJob")))
        assert seen.of("RolloutJob") == [(None, "plain")]


async def test_a_deletion_while_the_watch_is_cut_and_etcd_is_compacted_is_noticed_in_one_sweep(
    kube: KubeClient, own: tuple[Api, Control]
) -> None:
    """The watch is cut, an object goes, and nobody remembers: etcd is compacted, the API server begins anew."""
    api, control = own
    with api.namespace("compacted") as namespace:
        for name in ("stays", "goes"):
            await kube.create(thing("AgentSession", namespace, name))
        async with (
            relay(kube.access) as between,
            watching(Access(between.url), Settings(), inactivity_s=2.0) as seen,
        ):
            await seen.until(lambda: {name for _, name in seen.of("AgentSession")} >= {"stays", "goes"})
            lists = len(seen.lists)
            between.freeze()
            await kube.delete("AgentSession", namespace, "goes")
            begun = seen.begun
            last = await kube.create(thing("AgentSession", namespace, "after"))
            compact(control, int(last["metadata"]["resourceVersion"]))
            restart(control)
            between.thaw()
            await seen.until(lambda: "goes" in seen.gone)
            assert set(seen.gone) == {"goes"}
            assert seen.gone["goes"] <= begun + 1, "the first sweep that began after it, if not one under way"
            # Which comes first, the sweep or the front's next list, is nobody's promise.
            await seen.until(lambda: (None, "after") in seen.of("AgentSession"))
            assert len(seen.lists) > lists, "it began with a list, which says nothing of what is gone"
            assert ("DELETED", "goes") not in seen.of("AgentSession")


async def test_a_list_that_is_empty_now_is_noticed_too(kube: KubeClient, own: tuple[Api, Control]) -> None:
    """Nothing is left to be listed, so no event comes at all."""
    api, control = own
    with api.namespace("emptied") as namespace:
        await kube.create(thing("RolloutJob", namespace, "only", **{SHARD: "lone"}))
        async with (
            relay(kube.access) as between,
            watching(Access(between.url), Settings(shard="lone"), inactivity_s=2.0) as seen,
        ):
            await seen.until(lambda: (None, "only") in seen.of("RolloutJob"))
            between.freeze()
            await kube.delete("RolloutJob", namespace, "only")
            last = await kube.create(thing("AgentSession", namespace, "later"))
            compact(control, int(last["metadata"]["resourceVersion"]))
            restart(control)
            between.thaw()
            await seen.until(lambda: "only" in seen.gone)


async def test_a_broken_connection_is_no_news(kube: KubeClient, own: tuple[Api, Control]) -> None:
    with own[0].namespace("broken") as namespace:
        await kube.create(thing("RolloutJob", namespace, "one", **{SHARD: "broken"}))
        async with (
            relay(kube.access) as between,
            watching(Access(between.url), Settings(shard="broken")) as seen,
        ):
            await seen.until(lambda: (None, "one") in seen.of("RolloutJob"))
            await asyncio.wait_for(between.watched(len(WATCHED)), WITHIN_S)
            lists = len(seen.lists)
            assert between.cut() == len(WATCHED)
            await kube.delete("RolloutJob", namespace, "one")
            await seen.until(lambda: ("DELETED", "one") in seen.of("RolloutJob"))
            assert len(seen.lists) == lists, "the watch went on where it was"


def compact(control: Control, revision: int) -> None:
    """As etcd's own client does it, over its JSON gateway. Waits until it is done."""
    body = json.dumps({"revision": revision, "physical": True}).encode()
    where = f"http://127.0.0.1:{control.place.etcd_port}/v3/kv/compaction"
    with urllib.request.urlopen(urllib.request.Request(where, body), timeout=10) as answer:
        assert answer.status == 200
    key = base64.b64encode(b"/registry").decode()
    old = json.dumps({"key": key, "revision": revision - 1}).encode()
    where = f"http://127.0.0.1:{control.place.etcd_port}/v3/kv/range"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(where, old), timeout=10)
    assert "compacted" in refused.value.read().decode()


def restart(control: Control) -> None:
    """Not in a thread: the API server would be killed when that thread ends."""
    control.stop("kube-apiserver")
    # A killed process is a zombie before the last of its threads has let go of the port.
    until_now(lambda: is_free(control.place.api_port), what="its port is free")
    control.start_apiserver()


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
