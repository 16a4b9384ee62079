"""Whether a session that a person applied is opened, and where: a table; the id is the sentence that fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.operator.observed.frozen_map import FrozenMap
from sandgate.operator.observed.remotes import Remotes
from sandgate.operator.plan.actions import HoldRemote, JobObserved, JobWant, OpenRemote, Provided, Ref
from sandgate.operator.plan.remote import Attempt, RemoteObserved, plan_remote
from tests.operator.plans import seen, want

REF = Ref("shop", "elsewhere", 0, 1, "laptop")
BOTH: dict[str, Any] = {
    "gateway": {"replicas": 2},
    "tasks": {"queue": {}},
    "reward": {"source": "trainer"},
}
TWO = {"shop-gateway-0": 3, "shop-gateway-1": 1}


def asked(**more: Any) -> RemoteObserved:
    return RemoteObserved(ref=REF, **more)


def held(why: str) -> HoldRemote:
    return HoldRemote(REF, why, final=False)


def refused(why: str) -> HoldRemote:
    return HoldRemote(REF, why, final=True)


def opens(gateway: str) -> OpenRemote:
    return OpenRemote(REF, gateway)


CASES: dict[str, tuple[JobWant, JobObserved, RemoteObserved, OpenRemote | HoldRemote]] = {
    "it goes where least is": (want(**BOTH), seen(gateways=TWO), asked(), opens("shop-gateway-1")),
    "it goes where it is wanted": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(gateway="shop-gateway-0"),
        opens("shop-gateway-0"),
    ),
    "it goes where the others of its task are": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(home="shop-gateway-0"),
        opens("shop-gateway-0"),
    ),
    "it is not parted from them": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(home="shop-gateway-0", gateway="shop-gateway-1"),
        refused("spec.gateway: the other sessions of task 'elsewhere' are at shop-gateway-0"),
    ),
    "a job that rewards exit codes has none for it": (
        want(**{**BOTH, "reward": {"source": "exitCode"}}),
        seen(gateways=TWO),
        asked(),
        refused(
            "spec.jobName: shop rewards exit codes, and that of an agent elsewhere is not seen; use a job whose"
            " reward.source is agent, verifier or trainer"
        ),
    ),
    "it waits for the gateway of its task": (
        want(**BOTH),
        seen(gateways={"shop-gateway-1": 0}),
        asked(home="shop-gateway-0"),
        held("gateway shop-gateway-0 takes no sessions"),
    ),
    "it waits for a gateway": (want(**BOTH), seen(gateways={}), asked(), held("no gateway takes sessions")),
    "it waits while the job's objects cannot be made": (
        replace(want(**BOTH), unprovided="Service shop: 403"),
        seen(gateways=TWO),
        asked(),
        held("the job's objects cannot be made: Service shop: 403"),
    ),
    "it waits while they are not made yet": (
        want(**BOTH),
        seen(gateways=TWO, provided=Provided.NOTHING),
        asked(),
        held("no gateway takes sessions"),
    ),
    "it waits while the job is suspended": (
        want(**BOTH, suspend=True),
        seen(gateways=TWO),
        asked(),
        held("the job is suspended"),
    ),
    "it waits while the trainer is silent": (
        want(**BOTH, trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(gateways=TWO, heard_at=0.0),
        asked(),
        held("the trainer is silent"),
    ),
    "it waits until the job's own tasks are known": (
        want(**{**BOTH, "tasks": {"configMap": {"name": "set"}}}),
        seen(gateways=TWO, more=True, problem="404: set not found"),
        asked(),
        held("the job's tasks are not known yet: 404: set not found"),
    ),
    "another attempt is for one that failed": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(newest=Attempt("first", 0)),
        refused("spec.sampleIndex: AgentSession first is there for this sample of task 'elsewhere'"),
    ),
    "then it is opened": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(newest=Attempt("first", 0, failed=True)),
        opens("shop-gateway-1"),
    ),
    "attempts count on": (
        want(**BOTH),
        seen(gateways=TWO),
        asked(newest=Attempt("first", 1, failed=True)),
        refused("spec.attempt: must be more than 1, that of AgentSession first"),
    ),
}


@pytest.mark.parametrize(("wanted", "job", "one", "action"), CASES.values(), ids=CASES)
def test_plan_remote(
    wanted: JobWant, job: JobObserved, one: RemoteObserved, action: OpenRemote | HoldRemote
) -> None:
    assert plan_remote(wanted, job, one, 30.0) == [action]


def test_one_more_remote_session_costs_nothing_by_how_many_there_were() -> None:
    many = Remotes(
        homes=FrozenMap((f"t{n}", "g") for n in range(20_000)),
        newest=FrozenMap((f"t{n}", {0: Attempt(f"s{n}", 0)}) for n in range(20_000)),
        due=FrozenMap((f"s{n}", None) for n in range(20_000)),
    )
    one = Ref("shop", "new", 0, 0, "laptop")
    after = many.ask(one, "g").opened(one, "g").ended(one, counts=True).forget(one)
    assert after.homes._base is many.homes._base
    assert after.newest._base is many.newest._base
    assert after.due._base is many.due._base
    assert (after.of("new", 0), after.homes["new"], len(after.due)) == (Attempt("laptop", 0), "g", 20_000)


def test_a_task_is_free_again_when_nothing_of_it_was_opened() -> None:
    one, two = Ref("shop", "t", 0, 0, "one"), Ref("shop", "t", 1, 0, "two")
    asked = Remotes().place("t", "g")
    assert "t" not in asked.refused(one).homes
    opened = asked.opened(one, "g")
    assert "t" in opened.refused(two).homes
    assert "t" in opened.ended(one, counts=True).forget(one).homes, (
        "its siblings go there, whenever they come"
    )
