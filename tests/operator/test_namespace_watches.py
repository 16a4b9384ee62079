"""An operator that is told its namespaces: one of them is missing, goes, comes again; the others never notice.

kopf is the real one; the API server is played, as far as lists, watches and discovery go.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandgate.contract.errors import Forbidden, NotFound, Unavailable
from sandgate.contract.labels import QUEUE
from sandgate.operator.cluster import namespace_watches, watches
from sandgate.operator.cluster.namespace_watches import NamespaceWatches
from sandgate.operator.cluster.watches import Watches
from sandgate.operator.kubernetes.access import Access, Token
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.replica.metrics import OperatorMetrics
from sandgate.operator.replica.sweeps import Sweeps
from sandgate.operator.settings import Settings
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so

Json = Any
BOTH = ("lab", "b")
SERVED = {
    "/api/v1": [("pods", "Pod"), ("namespaces", "Namespace")],
    "/apis/apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition")],
    "/apis/sandgate.dev/v1alpha1": [("rolloutjobs", "RolloutJob"), ("agentsessions", "AgentSession")],
}


@dataclass
class Served:
    """An API server with namespaces that come and go, each with the operator's role."""

    there: set[str]
    status: int = 403
    """What it says of the others."""
    streams: dict[str, set[asyncio.Queue[Json]]] = field(default_factory=dict)
    """Path of a collection -> its open watches."""
    begun: list[str] = field(default_factory=list)
    """Namespaces of watches, in the order in which they began."""

    async def answer(self, asked: web.Request) -> web.StreamResponse:
        path = asked.path
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            groups = []
            for group, version in (one.split("/")[2:] for one in SERVED if one.startswith("/apis/")):
                served = {"version": version, "groupVersion": f"{group}/{version}"}
                groups.append({"name": group, "preferredVersion": served, "versions": [served]})
            return web.json_response({"groups": groups})
        if path in SERVED:
            kinds = [
                {"name": plural, "kind": kind, "namespaced": True, "singularName": kind.lower(),
                 "verbs": ["list", "watch", "patch"]}
                for plural, kind in SERVED[path]
            ]  # fmt: skip
            return web.json_response({"kind": "APIResourceList", "resources": kinds})
        namespace = path.split("/namespaces/")[1].split("/")[0]
        if namespace not in self.there:
            said = {"kind": "Status", "code": self.status, "message": f"nothing is known of {namespace}"}
            return web.json_response(said, status=self.status)
        if asked.query.get("watch"):
            return await self._stream(asked, namespace)
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})

    async def _stream(self, asked: web.Request, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(asked)
        news: asyncio.Queue[Json] = asyncio.Queue()
        watching = self.streams.setdefault(asked.path, set())
        watching.add(news)
        self.begun.append(namespace)
        try:
            while (one := await news.get()) is not None:
                await response.write(json.dumps(one).encode() + b"\n")
        finally:
            watching.discard(news)
        return response

    def watched(self, namespace: str) -> int:
        """Kinds of which a watch is open."""
        return sum(bool(open_) for path, open_ in self.streams.items() if f"/namespaces/{namespace}/" in path)

    def tell(self, namespace: str, name: str) -> None:
        """A job came."""
        meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "2"}
        body = {"apiVersion": "sandgate.dev/v1alpha1", "kind": "RolloutJob", "metadata": meta}
        for news in self.streams[f"/apis/sandgate.dev/v1alpha1/namespaces/{namespace}/rolloutjobs"]:
            news.put_nowait({"type": "ADDED", "object": body})

    def delete(self, namespace: str) -> None:
        """With its role: watches end, and begin no more."""
        self.there.discard(namespace)
        for path, watching in self.streams.items():
            if f"/namespaces/{namespace}/" in path:
                for news in watching:
                    news.put_nowait(None)


@dataclass
class Bench:
    """What is watched, and by whom."""

    server: Served
    front: NamespaceWatches
    metrics: OperatorMetrics
    saw: list[str]
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def seen(self) -> dict[str, float]:
        """Namespace -> the metric's value."""
        (gauge,) = [
            one for one in self.metrics.registry.collect() if one.name == "sandgate_operator_namespace_seen"
        ]
        return {one.labels["watched"]: one.value for one in gauge.samples}


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Served], Bench]]:
    monkeypatch.setattr(namespace_watches, "LOOK_S", 0.05)
    monkeypatch.setattr(namespace_watches, "AGAIN_S", 0.01)
    monkeypatch.setattr(watches, "BACKOFFS_S", ())
    served: dict[str, Served] = {}

    async def answer(asked: web.Request) -> web.StreamResponse:
        return await served["it"].answer(asked)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = Access(server=f"http://127.0.0.1:{runner.addresses[0][1]}", token=Token())
    kube = KubeClient(access, deadline_s=1.0)

    def made(server: Served) -> Bench:
        served["it"] = server
        metrics, saw = OperatorMetrics(), []

        def watch(namespace: str) -> Watches:
            one = Settings(namespaces=(namespace,))
            return Watches(access, one, lambda kind, event, body: saw.append(body["metadata"]["name"]))

        return Bench(server, NamespaceWatches(kube, BOTH, watch, metrics.sees), metrics, saw)

    yield made
    await kube.aclose()
    await runner.cleanup()


@asynccontextmanager
async def running(at: Bench) -> AsyncIterator[asyncio.Task[None]]:
    """It ends when it is told to."""
    task = asyncio.ensure_future(at.front.run(at.stop))
    try:
        yield task
        assert not task.done()
    finally:
        at.stop.set()
        await asyncio.wait_for(task, 20)


async def test_each_namespace_is_watched_while_it_is_there(bench: Callable[[Served], Bench]) -> None:
    """One is missing at the start, comes, is deleted, and is made again: the other is watched without a break."""
    at = bench(Served({"lab"}))
    async with running(at):
        await so(lambda: at.server.watched("lab") == 3, "what is there is watched")
        await so(lambda: at.seen() == {"lab": 1, "b": 0}, "a metric names what is missing")
        for turn in ("one", "two"):
            at.server.there.add("b")
            await so(lambda: at.server.watched("b") == 3, "what came is watched")
            assert at.seen() == {"lab": 1, "b": 1}
            at.server.delete("b")
            await so(lambda: at.seen() == {"lab": 1, "b": 0}, "a metric names what went")
            at.server.tell("lab", turn)
            await so(lambda: at.saw[-1:] == [turn], "news of the other come")  # noqa: B023
        assert at.server.begun.count("lab") == 3, "its watches began once"


@pytest.mark.parametrize("status", [403, 404])
async def test_namespaces_that_are_all_missing_are_waited_for(
    bench: Callable[[Served], Bench], status: int
) -> None:
    at = bench(Served(set(), status))
    async with running(at):
        await so(lambda: at.seen() == {"lab": 0, "b": 0}, "a metric names them")
    assert at.server.begun == []


class Broken:
    """A watch that ends by itself, of no fault of its namespace."""

    async def run(self, stop: asyncio.Event) -> None:
        raise Unavailable("kopf ended by itself")


async def test_a_watch_that_ends_though_its_namespace_is_there_ends_the_operator(
    bench: Callable[[Served], Bench],
) -> None:
    at = bench(Served({"lab", "b"}))
    at.front.watch = lambda namespace: Broken()
    with pytest.raises(Unavailable, match="by itself"):
        await asyncio.wait_for(at.front.run(at.stop), 20)


# -- the rest of the operator -----------------------------------------------------------------------------------------


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        made.settings = replace(made.settings, namespaces=(NAMESPACE, "b"))
        yield made


def without(up: World, *gone: str, error: Exception) -> None:
    """Lists of these namespaces are answered so."""
    plain, full = up.kube.list_metadata, up.kube.list

    async def list_metadata(kind: str, namespace: str = "", **more: Any) -> Any:
        if namespace in gone:
            raise error
        return await plain(kind, namespace, **more)

    async def listed(kind: str, namespace: str = "", **more: Any) -> Any:
        if namespace in gone:
            raise error
        return await full(kind, namespace, **more)

    up.kube.list_metadata, up.kube.list = list_metadata, listed  # type: ignore[method-assign]


GONE = {
    "its role is gone with it": Forbidden(
        "403: pods is forbidden: User x cannot list resource in the namespace"
    ),
    "it is not there": NotFound('404: namespaces "b" not found'),
}


@pytest.mark.parametrize("error", GONE.values(), ids=GONE)
async def test_sweeps_succeed_without_a_namespace_and_notice_what_went_from_the_others(
    up: World, error: Exception
) -> None:
    without(up, "b", error=error)
    hub = up.operator_up()
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")
    other = manifest("b 2", name="other")
    other["metadata"]["namespace"] = "b"
    await up.kube.create(other)
    assert len(hub.runs) == 2
    up.deaf = True
    up.kube.remove("RolloutJob", NAMESPACE, "shop")
    told: list[bool] = []
    sweeps = asyncio.ensure_future(Sweeps(hub.sweep, told.append, retry_s=0.01).run())
    await so(lambda: told, "it swept")
    sweeps.cancel()
    await asyncio.gather(sweeps, return_exceptions=True)
    assert told == [True]
    assert [run.at.name for run in hub.runs.values()] == ["other"], "of what is not known nothing is dropped"
    assert hub.health().sweep_age_s is not None


async def test_a_sweep_that_sees_nothing_at_all_has_failed(up: World) -> None:
    without(up, "lab", "b", error=Forbidden("403"))
    hub = up.operator_up()
    with pytest.raises(Forbidden):
        await hub.sweep()
    assert hub.health().sweep_age_s is None


async def test_a_namespace_that_is_gone_holds_no_queued_job_of_another(up: World) -> None:
    up.settings = replace(up.settings, kueue=True)
    without(up, "b", error=Forbidden("403: workloads is forbidden"))
    up.operator_up()
    for namespace in (NAMESPACE, "b"):
        body = manifest("a 1")
        body["metadata"] |= {"namespace": namespace, "labels": {QUEUE: "team"}}
        await up.kube.create(body)
    theirs = ("RolloutJob", "b", "shop")

    def reason(body: Json) -> str:
        return str((body.get("status") or {}).get("reason", ""))

    await so(lambda: reason(up.kube.objects[theirs]) == "KueueMissing", "the one there says so", 60.0)
    await so(lambda: reason(up.job()) == "QueuedByKueue", "the other waits for its quota")
    assert up.kube.named("Workload"), "which it asked for"
