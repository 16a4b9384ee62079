"""A job's shard is changed while its sessions run: each session runs once, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden
from sandgate.contract.labels import SHARD
from sandgate.operator.cluster import job as cluster_job
from sandgate.operator.cluster import orphans
from sandgate.operator.cluster.job_controller import JobController
from sandgate.operator.kubernetes.kinds import WATCHED, selector
from tests.operator.cluster_rig import NAMESPACE, SETTINGS, Box, World, hurry, manifest, world
from tests.operator.fake_kube import matches
from tests.support.waiting import until

Json = Any
MOVES = {"the label is added": ("", "a"), "is changed": ("a", "b"), "is taken away": ("a", "")}


@dataclass
class Shards:
    """Operators of several shards. Each watch is by its label, as the API server's: what has it no longer is told as
    deleted, as it was before."""

    up: World
    hubs: dict[str, JobController] = field(default_factory=dict)
    blind: set[tuple[str, str]] = field(default_factory=set)
    """(shard, kind): a watch that lags."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets the slow agents end."""
    _runs: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _known: dict[tuple[str, str], Json] = field(default_factory=dict)

    def start(self, shard: str) -> JobController:
        hub = JobController(
            self.up.kube, replace(SETTINGS, shard=shard), connect=self.up.connect, now=self.up.kube.now
        )
        self.hubs[shard] = hub
        self._runs[shard] = asyncio.ensure_future(hub.run())
        for body in list(self.up.kube.objects.values()):
            self._tell(shard, body["kind"], None, body)
        return hub

    async def stop(self, shard: str) -> None:
        hub = self.hubs.pop(shard)
        self._runs[shard].cancel()
        await asyncio.gather(self._runs.pop(shard), return_exceptions=True)
        for one in hub.runs.values():
            await one.stop()

    def tell(self, kind: str, event: str, body: Json) -> None:
        for shard in self.hubs:
            self._tell(shard, kind, event, body)

    def _tell(self, shard: str, kind: str, event: str | None, body: Json) -> None:
        if kind not in WATCHED or (shard, kind) in self.blind:
            return
        at = shard, body["metadata"]["uid"]
        if matches(selector(kind, shard), body["metadata"].get("labels") or {}):
            self._known[at] = body
            self.hubs[shard].saw(kind, event, body)
        elif (before := self._known.pop(at, None)) is not None:
            version = {"resourceVersion": body["metadata"]["resourceVersion"]}
            self.hubs[shard].saw(kind, "DELETED", before | {"metadata": before["metadata"] | version})

    async def slow(self, box: Box) -> int:
        await box.ask("one")
        await self.gate.wait()
        return 0

    async def begun(self, shard: str, **spec: Any) -> None:
        """A job of that shard, one of whose sessions runs, and one is over."""
        self.up.agents = [("shop-slow", self.slow)]
        made = manifest("slow 1", "quick 2", **{"groupSize": 1, "parallelism": 4, **spec})
        made["metadata"]["labels"] = {SHARD: shard} if shard else {}
        await self.up.kube.create(made)
        await so(lambda: (self.up.job().get("status") or {}).get("ended") == 1, "one session is over")
        await so(lambda: len(self.up.told) == 2, "the other runs")

    async def move(self, shard: str, *, loaded: bool = True) -> None:
        labels = {"metadata": {"labels": {SHARD: shard or None}}}
        await self.up.kube.patch("RolloutJob", NAMESPACE, "shop", labels)
        if loaded:
            await so(lambda: self._loaded(shard), "the other shard's operator has the job")

    def _loaded(self, shard: str) -> bool:
        return any(run.observed.loaded for run in self.hubs[shard].runs.values())

    async def swept(self) -> None:
        for hub in list(self.hubs.values()):
            await hub.sweep()

    async def whole(self) -> None:
        """The job ends well, each session was run once, and nothing of it stays."""
        self.gate.set()
        await so(lambda: self.up.condition("Complete")[0] == "True", "the job is complete")
        assert sorted(name.rpartition("-")[2] for name in self.up.sessions()) == ["0", "0"], "no attempt more"
        pods = {name: many for (kind, name), many in self.up.kube.made.items() if kind == "Pod"}
        assert list(pods.values()) == [1, 1], pods
        assert self.up.job()["status"]["failed"] == 0
        assert await self.up.train() == 2
        await so(lambda: self.up.kube.named("Pod") == [], "no pod is left")
        await so(lambda: self.up.job()["status"]["committed"] == 2, "what was trained on is known")


async def so(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until(holds, what=what, within_s=60.0)


@pytest.fixture
async def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shards]:
    hurry(monkeypatch)
    monkeypatch.setattr(orphans, "SETTLE_S", 0.1)
    monkeypatch.setattr(cluster_job, "ASK_S", 0.05)
    async with world(tmp_path) as up:
        made = Shards(up)
        up.kube.watchers.append(made.tell)
        yield made
        for shard in list(made.hubs):
            await made.stop(shard)


@pytest.mark.parametrize(("before", "after"), MOVES.values(), ids=MOVES)
async def test_the_sessions_of_a_job_that_moves_go_on_where_they_are(
    shards: Shards, before: str, after: str
) -> None:
    shards.start(before)
    shards.start(after)
    await shards.begun(before)
    await shards.move(after)
    await shards.swept()
    await shards.whole()


@pytest.mark.parametrize(("before", "after"), MOVES.values(), ids=MOVES)
async def test_a_job_moves_though_the_operator_that_it_leaves_is_away(
    shards: Shards, before: str, after: str
) -> None:
    shards.start(before)
    await shards.begun(before)
    await shards.stop(before)
    shards.start(after)
    await shards.move(after)
    await shards.swept()
    await shards.whole()


async def test_a_job_that_waited_for_an_operator_of_its_new_shard_goes_on(shards: Shards) -> None:
    shards.start("")
    await shards.begun("")
    await shards.move("a", loaded=False)
    await shards.swept()
    shards.start("a")
    await so(lambda: shards._loaded("a"), "the new operator has the job")
    await shards.whole()


async def test_a_job_that_moves_and_comes_back_goes_on(shards: Shards) -> None:
    shards.start("")
    shards.start("a")
    await shards.begun("")
    for shard in ("a", "", "a"):
        await shards.move(shard)
    await shards.swept()
    await shards.whole()


async def test_an_operator_that_does_not_know_yet_that_it_lost_a_job_takes_no_pod_for_deleted(
    shards: Shards,
) -> None:
    """Its watch of jobs lags behind that of pods, in which what the other operator has taken is as good as deleted."""
    shards.start("")
    shards.start("a")
    await shards.begun("")
    shards.blind.add(("", "RolloutJob"))
    await shards.move("a")
    mine = selector("Pod", "a")
    pods = [body for (kind, *_), body in shards.up.kube.objects.items() if kind == "Pod"]
    assert all(matches(mine, body["metadata"]["labels"]) for body in pods)
    assert shards.hubs[""].runs, "it has the job still"
    await shards.hubs[""].sweep()  # that one lists jobs, too
    assert not shards.hubs[""].runs
    await shards.whole()


async def test_an_operator_that_loses_a_job_takes_back_nothing(shards: Shards) -> None:
    """It builds what it knows anew (its gateway was away) before it hears of the other."""
    shards.start("")
    shards.start("a")
    await shards.begun("")
    shards.blind.add(("", "RolloutJob"))
    await shards.move("a")
    old = next(iter(shards.hubs[""].runs.values()))
    await old.intake._load_with(next(iter(old.at.monitors.values())))
    pods = [body for (kind, *_), body in shards.up.kube.objects.items() if kind == "Pod"]
    assert {body["metadata"]["labels"].get(SHARD) for body in pods} == {"a"}
    shards.blind.clear()
    await shards.swept()
    await shards.whole()


async def test_a_pod_and_a_session_whose_label_somebody_took_away_are_taken_back(shards: Shards) -> None:
    shards.start("a")
    await shards.begun("a")
    running = next(name for name in shards.up.kube.named("Pod") if "slow" in name)
    for kind in ("Pod", "AgentSession"):
        await shards.up.kube.patch(kind, NAMESPACE, running, {"metadata": {"labels": {SHARD: None}}})
    await shards.swept()
    assert {
        shards.up.kube.objects[kind, NAMESPACE, running]["metadata"]["labels"].get(SHARD)
        for kind in ("Pod", "AgentSession")
    } == {"a"}
    await shards.whole()


async def test_a_pod_that_is_really_deleted_is_run_anew_also_when_its_job_moved(shards: Shards) -> None:
    shards.start("")
    shards.start("a")
    await shards.begun("")
    await shards.move("a")
    running = next(name for name in shards.up.kube.named("Pod") if "slow" in name)
    shards.gate.set()
    shards.up.kube.remove("Pod", NAMESPACE, running)
    await so(lambda: shards.up.condition("Complete")[0] == "True", "the job is complete")
    assert len(shards.up.sessions()) == 3


async def test_a_role_without_the_right_to_patch_sessions_stops_no_job(shards: Shards) -> None:
    """`rbac.create: false`, and an administrator's roles of before: their labels stay, and nothing is called gone."""

    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("patch", "AgentSession"):
            raise Forbidden("agentsessions is forbidden: cannot patch")

    shards.up.kube.fail = refuse
    shards.start("")
    shards.start("a")
    await shards.begun("")
    await shards.move("a")
    await shards.swept()
    await shards.whole()


async def test_gateways_of_a_job_that_moves_are_not_started_anew(shards: Shards) -> None:
    shards.start("")
    shards.start("a")
    await shards.begun("")
    held = shards.up.kube.objects
    before = held["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["template"]
    await shards.move("a")
    after = held["StatefulSet", NAMESPACE, "shop-gateway"]
    assert after["metadata"]["labels"][SHARD] == "a"
    assert after["spec"]["template"] == before
    await shards.whole()


# -- agents elsewhere -------------------------------------------------------------------------------------------------


def remote(name: str) -> Json:
    """As a user applies it, who knows nothing of shards."""
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"jobName": "shop", "taskUid": "elsewhere", "remote": True},
    }


def scheduled(up: World, name: str) -> tuple[str, str]:
    """(status, reason) of that condition."""
    for one in (up.sessions()[name].get("status") or {}).get("conditions", ()):
        if one["type"] == "Scheduled":
            return one["status"], one["reason"]
    return "", ""


async def test_a_remote_session_of_a_sharded_job_is_opened(shards: Shards) -> None:
    shards.start("")
    shards.start("a")
    await shards.begun("a", reward={"source": "trainer"})
    await shards.up.kube.create(remote("phone-17"))
    await so(lambda: scheduled(shards.up, "phone-17") == ("True", "Remote"), "it is open")
    assert "phone-17.keys" in shards.up.kube.named("Secret")
    await shards.swept()
    assert scheduled(shards.up, "phone-17") == ("True", "Remote")


async def test_a_remote_session_of_a_job_that_moves_stays_open(shards: Shards) -> None:
    shards.start("")
    shards.start("a")
    await shards.begun("", reward={"source": "trainer"})
    await shards.up.kube.create(remote("phone-17"))
    await so(lambda: scheduled(shards.up, "phone-17") == ("True", "Remote"), "it is open")
    said = shards.up.sessions()["phone-17"]["status"]
    await shards.move("a")
    await shards.swept()
    await so(lambda: not shards.hubs[""].orphans._busy, "the operator that lost it is done with it")
    assert shards.up.sessions()["phone-17"]["status"] == said
    run = next(iter(shards.hubs["a"].runs.values()))
    assert not run.observed.sessions["phone-17"].deleted
    await shards.up.kube.delete("AgentSession", NAMESPACE, "phone-17")
    await so(lambda: "phone-17" not in run.at.sessions.held, "its user's deletion is noticed")


async def test_a_remote_session_of_another_controllers_job_is_told_nothing(shards: Shards) -> None:
    shards.start("")
    body = manifest("a 1", managedBy="example.com/other")
    await shards.up.kube.create(body)
    await shards.up.kube.create(remote("phone-17"))
    await so(lambda: shards.hubs[""].orphans._busy, "it is seen")
    await so(lambda: not shards.hubs[""].orphans._busy, "it is looked at")
    assert scheduled(shards.up, "phone-17") == ("", "")


async def test_a_remote_session_without_a_job_is_told_so(shards: Shards) -> None:
    shards.start("")
    await shards.up.kube.create(remote("phone-17"))
    await so(lambda: scheduled(shards.up, "phone-17") == ("False", "NoJob"), "it is told")
