"""An API server that does not take what a job needs: the job says so, can be stopped, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, InvalidBody, NotFound, SandgateError, TooLarge, Unavailable
from sandgate.operator.cluster import providing
from sandgate.operator.cluster.provision import Leaving, check_journals
from tests.operator.cluster_rig import NAMESPACE, Box, World, follow, hurry, manifest, world
from tests.operator.test_cluster import is_so, so
from tests.operator.test_cluster_kueue import KUEUE, admit, goes_on, submit, workload

QUICK_S = 20.0
"""It takes less than one; other tests run beside."""
EXTERNAL = {"external_url": "https://r.example.com", "external_parents": ({"name": "edge"},)}
MANAGED = {"engine": {"kind": "vllm", "managed": {"image": "vllm:1", "gpus": 1}}}
QUOTA = Forbidden('403: services "shop-gateway" is forbidden: exceeded quota: few, requested: services=1')
RIGHT = Forbidden('403: User "system:serviceaccount:sandgate:sandgate-operator" cannot patch resource')
UNKNOWN = NotFound("404: the server could not find the requested resource")
WRONG = InvalidBody(
    '422: StatefulSet.apps "shop-gateway" is invalid: spec.template.spec.tolerations[0].effect'
)

REFUSED: dict[str, tuple[str, SandgateError]] = {
    "a StatefulSet with a bad toleration": ("StatefulSet", WRONG),
    "a StatefulSet without the right to write any": ("StatefulSet", RIGHT),
    "a quota of Services": ("Service", QUOTA),
    "a NetworkPolicy that a webhook denies": ("NetworkPolicy", Forbidden("403: admission webhook denied it")),
    "a quota of Secrets": ("Secret", Forbidden('403: secrets "shop-trainer" is forbidden: exceeded quota')),
    "a ConfigMap that is too large": ("ConfigMap", TooLarge("413: Request entity too large")),
    "a PodDisruptionBudget whose kind is not served": ("PodDisruptionBudget", UNKNOWN),
    "routes without the Gateway API": ("HTTPRoute", UNKNOWN),
    "routes without the right to them": ("HTTPRoute", RIGHT),
    "a Deployment that a policy denies": ("Deployment", Forbidden("403: denied by policy gpus")),
}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(providing, "AGAIN_S", 0.05)
    monkeypatch.setattr(providing, "AGAIN_S_MAX", 0.1)
    monkeypatch.setattr(providing, "LEAVING_S", 0.1)
    async with world(tmp_path) as made:
        made.settings = replace(made.settings, **EXTERNAL)  # type: ignore[arg-type]
        yield made


def refuses(up: World, wanted: str, error: Exception, verbs: tuple[str, ...] = ("apply", "create")) -> None:
    def fail(verb: str, kind: str) -> None:
        if kind == wanted and verb in verbs:
            raise error

    up.kube.fail = fail


def ready(up: World) -> tuple[str, str, str]:
    for one in (up.job().get("status") or {}).get("conditions", ()):
        if one["type"] == "Ready":
            return one["status"], one["reason"], one["message"]
    return "", "", ""


def told(up: World, reason: str) -> list[str]:
    """Messages of the job's Events with that reason."""
    found = [up.kube.objects["Event", NAMESPACE, name] for name in up.kube.named("Event")]
    return [one["message"] for one in found if one["reason"] == reason and one["type"] == "Warning"]


async def says_so(up: World, kind: str, error: Exception) -> None:
    def holds() -> bool:
        status, reason, words = ready(up)
        return (status, reason) == ("False", "NotProvided") and words.startswith(kind) and str(error) in words

    await so(holds, "the API server's words are told", QUICK_S, up)


@pytest.mark.parametrize(("kind", "error"), REFUSED.values(), ids=REFUSED)
async def test_a_job_that_cannot_be_made_says_why_once_and_runs_when_it_can(
    up: World, kind: str, error: Exception
) -> None:
    refuses(up, kind, error)
    up.operator_up()
    engine: dict[str, Any] = MANAGED if kind == "Deployment" else {}
    await up.kube.create(manifest("a 1", **engine))
    await says_so(up, kind, error)
    assert up.job()["status"]["reason"] == "NotProvided"
    tries = 0

    def count(verb: str, of: str) -> None:
        nonlocal tries
        if of == kind and verb in ("apply", "create"):
            tries += 1
            raise error

    up.kube.fail = count
    await so(lambda: tries >= 3, "it is tried again by itself")
    assert len(told(up, "NotProvided")) == 1, "told once, however often it is tried"
    assert not up.sessions()
    up.kube.fail = lambda verb, kind: None
    if kind == "Deployment":
        await so(lambda: up.kube.named("Deployment"), "the engine is made")
        await so(lambda: ready(up)[1] != "NotProvided", "nothing is in the way")
    else:
        await is_so(up, "Complete")
        assert ready(up)[:2] == ("True", "GatewaysAndEnginesReady")


def claim(up: World, **meta: Any) -> None:
    """The journal's volume of the first gateway, as its StatefulSet's controller makes it."""
    name = "journal-shop-gateway-0"
    up.kube.objects["PersistentVolumeClaim", NAMESPACE, name] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": "claim", "resourceVersion": "1", **meta},
        "spec": {},
    }


OF_ANOTHER = {"ownerReferences": [{"kind": "StatefulSet", "name": "shop-gateway", "uid": "before"}]}
LEAVING: dict[str, dict[str, Any]] = {
    "one of an earlier job's StatefulSet, that nobody deletes yet": OF_ANOTHER,
    "one that is being deleted": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "one that was made for the job, and is being deleted": {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "mine"},
    },
}


@pytest.mark.parametrize("meta", LEAVING.values(), ids=LEAVING)
async def test_no_gateway_begins_with_a_journal_that_is_going_and_the_job_says_so(
    up: World, meta: dict[str, Any]
) -> None:
    claim(up, **meta)
    up.operator_up()
    await up.kube.create(manifest("a 1"))

    def holds() -> bool:
        status, reason, words = ready(up)
        named = words.startswith("PersistentVolumeClaim journal-shop-gateway-0 is ")
        return (status, reason) == ("False", "NotProvided") and named

    await so(holds, "it says what it waits for", QUICK_S, up)
    assert not up.kube.named("StatefulSet")
    up.kube.remove("PersistentVolumeClaim", NAMESPACE, "journal-shop-gateway-0")
    await is_so(up, "Complete")


async def test_a_journal_that_somebody_made_beforehand_is_taken(up: World) -> None:
    claim(up, labels={"app": "mine"})
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")


def stateful_set(replicas: int, uid: str = "") -> Any:
    meta = {"name": "shop-gateway", "namespace": NAMESPACE, "uid": uid}
    templates = [{"metadata": {"name": "journal"}}]
    return {
        "kind": "StatefulSet",
        "metadata": meta,
        "spec": {"replicas": replicas, "volumeClaimTemplates": templates},
    }


SCALED: dict[str, tuple[int, int, str, bool]] = {
    "what is to run again has its own journal": (0, 1, "before", True),
    "what is to run for the first time has none of an earlier job": (0, 1, "now", False),
    "what runs is not asked": (1, 2, "now", True),
    "what is to run nowhere takes none": (0, 0, "now", True),
}


@pytest.mark.parametrize(("was", "wanted", "uid", "free"), SCALED.values(), ids=SCALED)
async def test_of_gateways_that_stand(up: World, was: int, wanted: int, uid: str, free: bool) -> None:
    claim(up, **OF_ANOTHER)
    with nullcontext() if free else pytest.raises(Leaving):
        await check_journals(up.kube, stateful_set(wanted), stateful_set(was, uid))


async def test_an_operator_that_may_not_look_at_claims_goes_on(up: World) -> None:
    claim(up, **OF_ANOTHER)
    refuses(up, "PersistentVolumeClaim", Forbidden("403: cannot get resource"), verbs=("get",))
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")


async def test_what_cannot_be_made_ends_at_its_deadline(up: World) -> None:
    refuses(up, "StatefulSet", WRONG)
    up.operator_up()
    await up.kube.create(manifest("a 1", activeDeadlineSeconds=1))
    await is_so(up, "Failed", reason="DeadlineExceeded")


async def test_another_spec_is_tried_at_once_and_other_news_ask_nothing(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providing, "AGAIN_S", 1e6)
    monkeypatch.setattr(providing, "AGAIN_S_MAX", 1e6)
    tries = []

    def fail(verb: str, kind: str) -> None:
        if kind == "StatefulSet" and verb == "apply":
            tries.append(up.job()["metadata"]["generation"])
            raise WRONG

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await says_so(up, "StatefulSet", WRONG)
    assert up.hub is not None
    (uid,) = up.hub.runs
    for _ in range(5):
        up.hub.reconciler.touch(f"{uid}/job")
        await so(lambda: up.hub is not None and up.hub.reconciler.idle, "it was planned")
    assert tries == [1]
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 3}})
    await so(lambda: tries == [1, 2], "another spec is another try")
    up.kube.fail = lambda verb, kind: None
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 4}})
    await is_so(up, "Complete")


async def waits(box: Box) -> int:
    await box.ask("one")
    await asyncio.Event().wait()
    return 0


async def at_work(up: World, **spec: Any) -> None:
    """A job with one agent that runs, and an operator that was upgraded: what it wants is refused."""
    up.agents = [("shop-slow", waits)]
    up.settings = replace(up.settings, external_url="", external_parents=())
    up.operator_up()
    await up.kube.create(manifest("slow 1", "b 1", parallelism=1, **spec))
    await so(lambda: up.told, "its agent runs")
    await so(lambda: ready(up)[0] == "True", "it is ready")


async def upgraded(up: World, kind: str, error: Exception, *, restart: bool) -> None:
    if restart:
        await up.operator_down()
    verbs = ("apply", "create", "get") if kind == "HTTPRoute" else ("apply", "create")
    refuses(up, kind, error, verbs)
    if restart:
        up.settings = replace(up.settings, **EXTERNAL)  # type: ignore[arg-type]
        up.operator_up()
    else:
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 2}})


RUNNING = {name: REFUSED[name] for name in REFUSED if REFUSED[name][0] not in ("Deployment", "Secret")}
CASES = {
    f"{name}, {how}": (*case, how == "under a new operator")
    for name, case in RUNNING.items()
    for how in ("under a new operator", "after a change of its spec")
    if how == "under a new operator" or case[0] != "HTTPRoute"
}


@pytest.mark.parametrize(("kind", "error", "restart"), CASES.values(), ids=CASES)
async def test_a_job_that_runs_is_stopped_whatever_is_refused_and_goes_on_when_nothing_is(
    up: World, kind: str, error: Exception, restart: bool
) -> None:
    await at_work(up)
    await upgraded(up, kind, error, restart=restart)
    await says_so(up, kind, error)
    assert up.pods, "what runs goes on"
    assert len(up.sessions()) == 1, "nothing new begins"
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: up.condition("Suspended") == ("True", "SpecSuspend"), "it is suspended", QUICK_S, up)
    await so(lambda: not up.pods, "its agent was stopped", QUICK_S)
    assert up.job()["status"]["observedGeneration"] == up.job()["metadata"]["generation"]
    up.kube.fail = lambda verb, kind: None
    up.agents = []
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await is_so(up, "Complete")
    assert ready(up)[0] == "True"


async def test_a_job_that_runs_ends_at_its_deadline_whatever_is_refused(up: World) -> None:
    await at_work(up, activeDeadlineSeconds=4)
    await upgraded(up, "HTTPRoute", UNKNOWN, restart=True)
    await is_so(up, "Failed", reason="DeadlineExceeded")
    await so(lambda: not up.pods, "its agent was stopped")


async def test_what_is_to_go_goes_though_something_else_is_refused(up: World) -> None:
    """Routes that cannot be written keep nobody's quota."""
    up.kube.watchers.append(lambda kind, event, body: follow(up, kind, body))
    await at_work(up, gateway={"idleSeconds": 1})
    await upgraded(up, "HTTPRoute", UNKNOWN, restart=True)
    await says_so(up, "HTTPRoute", UNKNOWN)
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    gateways = ("StatefulSet", NAMESPACE, "shop-gateway")
    await so(lambda: up.kube.objects[gateways]["spec"]["replicas"] == 0, "its gateways go", 60.0, up)


async def test_a_status_that_cannot_be_written_keeps_nothing_from_being_stopped(up: World) -> None:
    await at_work(up)
    refuses(up, "RolloutJob", InvalidBody("422: status is invalid"), ("patch_status",))
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: not up.pods, "its agent was stopped", QUICK_S)
    up.kube.fail = lambda verb, kind: None
    await so(lambda: up.condition("Suspended")[0] == "True", "it says so once it can", QUICK_S, up)


async def test_what_passes_by_itself_is_no_refusal(up: World) -> None:
    """A conflict, a time-out, a server that is away: nobody is alarmed, it is tried again."""
    errors: list[Exception] = [Unavailable("500: away", retry_after=0.0), TimeoutError(), OSError("reset")]
    reasons = set()

    def fail(verb: str, kind: str) -> None:
        if kind == "StatefulSet" and verb == "apply" and errors:
            reasons.add(ready(up)[1])
            raise errors.pop()

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")
    assert not errors
    assert "NotProvided" not in reasons
    assert told(up, "NotProvided") == []


async def test_a_queue_that_is_away_keeps_nobody_from_stopping_a_job(up: World) -> None:
    """Kueue's webhook fails, and with it every write of a Workload."""
    up.settings = replace(up.settings, kueue=True, external_url="", external_parents=())
    await up.gateway_down("shop-gateway-0")
    up.kube.watchers.append(lambda kind, event, body: follow(up, kind, body))
    with suppress(KeyError):
        await up.kube.create({**KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "gpus"}})
    up.agents = [("shop-slow", waits)]
    up.operator_up()
    await submit(up, "slow 1", parallelism=1)
    await admit(up)
    await goes_on(up)
    await so(lambda: up.told, "its agent runs")
    away = Unavailable("500: failed calling webhook mworkload.kb.io: connection refused", retry_after=0.0)
    refuses(up, "Workload", away, ("patch", "apply", "create", "delete"))
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(
        lambda: not up.pods or not any("slow" in name for name in up.pods), "its agent was stopped", QUICK_S
    )
    await so(lambda: up.condition("Suspended")[0] == "True", "it says so", QUICK_S, up)
    assert workload(up)["spec"].get("active", True)
    up.kube.fail = lambda verb, kind: None
    await so(
        lambda: workload(up)["spec"].get("active") is False, "its queue is told once it is back", QUICK_S
    )
