"""What of a job's status people are told in Events: each once, none in a flood, and nothing waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, NotFound, Unavailable
from sandgate.contract.status import Condition, ConditionStatus, RolloutJobStatus
from sandgate.operator.cluster.status_writer import EVENTS_MAX, EVENTS_S, StatusWriter
from sandgate.operator.plan.status_events import MESSAGE_MAX, agent_changed, news, tasks_repeated
from tests.operator.fake_kube import FakeKube
from tests.operator.plans import group, spec

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def one(kind: str, status: ConditionStatus, reason: str, message: str = "", since: str = "t0") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def status(*conditions: Condition) -> RolloutJobStatus:
    return RolloutJobStatus(conditions=conditions)


NO_GATEWAY = one("Ready", FALSE, "NoGateway", "no gateway takes sessions")
PULL = one("Ready", FALSE, "NoGateway", "gateway shop-0: ErrImagePull: no such image")
READY = one("Ready", TRUE, "GatewaysReady")
RUNS = one("Progressing", TRUE, "Running", "4 sessions run")
ALL_FAILED = one("Failed", TRUE, "AllFailed", "all 4 samples failed: 4 AgentExit")

CASES: dict[str, tuple[RolloutJobStatus | None, RolloutJobStatus, list[tuple[str, str]]]] = {
    "a job that nobody saw before, without a gateway": (None, status(NO_GATEWAY), [("Warning", "NoGateway")]),
    "nothing is made yet: that goes without saying": (None, status(one("Ready", FALSE, "NothingMade")), []),
    "the pod's own words come later": (status(NO_GATEWAY), status(PULL), [("Warning", "NoGateway")]),
    "the same again": (status(PULL), status(PULL), []),
    "it is ready now": (status(PULL), status(READY), [("Normal", "GatewaysReady")]),
    "it begins to run": (status(READY), status(READY, RUNS), [("Normal", "Running")]),
    "pods wait, in other words than before": (
        status(READY, one("Progressing", TRUE, "PodsWait", "Unschedulable: 0/3 nodes")),
        status(READY, one("Progressing", TRUE, "PodsWait", "exceeded quota")),
        [("Warning", "PodsWait")],
    ),
    "they wait no more": (
        status(READY, one("Progressing", TRUE, "PodsWait", "Unschedulable: 0/3 nodes")),
        status(READY, RUNS),
        [],
    ),
    "it runs on, with other numbers": (status(RUNS), status(replace(RUNS, message="3 sessions run")), []),
    "the trainer is silent": (
        status(one("Suspended", FALSE, "NotSuspended")),
        status(one("Suspended", TRUE, "TrainerSilent", "nothing heard for 60 s")),
        [("Warning", "TrainerSilent")],
    ),
    "its owner suspends it": (None, status(one("Suspended", TRUE, "SpecSuspend")), [("Normal", "SpecSuspend")]),
    "it goes on under the spec before": (
        status(RUNS),
        status(one("Progressing", TRUE, "SpecRefused", "spec.model.name cannot change")),
        [("Warning", "SpecRefused")],
    ),
    "its tasks cannot be read": (None, status(one("Progressing", FALSE, "NoTasks", "x")), [("Warning", "NoTasks")]),
    "it is complete, and its gateways go": (
        status(READY, RUNS),
        status(NO_GATEWAY, one("Progressing", FALSE, "Over"), one("Complete", TRUE, "AllEnded")),
        [("Normal", "AllEnded")],
    ),
    "groups of it were lost after that": (
        status(NO_GATEWAY, one("Complete", TRUE, "AllEnded")),
        status(NO_GATEWAY, one("Complete", TRUE, "GroupsLost", "2 of 4 samples were lost")),
        [("Warning", "GroupsLost")],
    ),
    "all failed": (status(READY, RUNS), status(NO_GATEWAY, ALL_FAILED), [("Warning", "AllFailed")]),
    "a manifest that cannot run": (
        None,
        status(one("Ready", FALSE, "BadManifest", "x"), one("Failed", TRUE, "BadManifest", "x")),
        [("Warning", "BadManifest")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "told"), CASES.values(), ids=CASES)
def test_news(before: RolloutJobStatus | None, after: RolloutJobStatus, told: list[tuple[str, str]]) -> None:
    assert [(item.kind, item.condition.reason) for item in news(before, after)] == told


def test_the_api_server_takes_so_many_characters() -> None:
    (item,) = news(None, status(replace(PULL, message="x" * 5_000)))
    assert len(item.event("lab", "shop", "u", "t")["message"]) == MESSAGE_MAX


class Writing:
    """A writer with a clock and an API server of its own."""

    def __init__(self) -> None:
        self.at = 1_000.0
        self.kube = FakeKube(lambda: self.at)

    async def writer(self) -> StatusWriter:
        if not self.kube.named("RolloutJob"):
            about = {"name": "shop", "namespace": "lab"}
            await self.kube.create(
                {"apiVersion": "sandgate.dev/v1alpha1", "kind": "RolloutJob", "metadata": about}
            )
        uid = self.job["metadata"]["uid"]
        return StatusWriter(self.kube, "lab", "shop", uid=uid, now=lambda: self.at)

    @property
    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects["RolloutJob", "lab", "shop"]
        return found

    @property
    def events(self) -> int:
        return len(self.kube.named("Event"))


async def write(writer: StatusWriter, *conditions: Condition) -> None:
    writer.want(status(*conditions))
    await writer.flush()


async def test_an_operator_that_starts_anew_does_not_tell_the_same_again() -> None:
    world = Writing()
    for _ in range(2):
        await write(await world.writer(), PULL)
    assert world.events == 1


async def test_what_flaps_is_told_so_often_in_five_minutes_and_again_afterwards() -> None:
    world = Writing()
    writer = await world.writer()
    for number in range(2 * EVENTS_MAX):
        await write(writer, replace(PULL, message=f"back-off {number}"))
    assert world.events == EVENTS_MAX
    world.at += EVENTS_S
    await write(writer, replace(PULL, message="at last"))
    assert world.events == EVENTS_MAX + 1


async def test_tasks_that_are_pushed_again_are_one_event_whenever_and_whichever_they_are() -> None:
    world = Writing()
    writer = await world.writer()
    for number in range(3):
        await writer.say(tasks_repeated([f"q{number}"], f"2026-01-01T00:00:0{number}Z"))
    assert world.events == 1


REFUSALS: dict[str, Callable[[], Exception]] = {
    "a role of an older chart": lambda: Forbidden("403: events is forbidden"),
    "an API server that is away": lambda: Unavailable("503"),
    "a connection that breaks": ConnectionResetError,
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
async def test_an_event_that_cannot_be_written_keeps_no_status_back(refusal: Callable[[], Exception]) -> None:
    world = Writing()
    writer = await world.writer()

    def fail(verb: str, kind: str) -> None:
        if kind == "Event":
            raise refusal()

    world.kube.fail = fail
    await write(writer, PULL)
    await write(writer, ALL_FAILED)
    assert world.job["status"]["conditions"][0]["reason"] == "AllFailed"
    assert world.events == 0


async def test_a_status_that_is_not_written_is_no_news_yet() -> None:
    world = Writing()
    writer = await world.writer()

    def fail(verb: str, kind: str) -> None:
        if verb == "patch_status":
            raise Unavailable("503")

    world.kube.fail = fail
    with pytest.raises(Unavailable):
        await write(writer, PULL)
    assert world.events == 0
    world.kube.fail = lambda verb, kind: None
    await writer.flush()
    assert world.events == 1


async def test_a_late_status_is_not_written_to_a_later_job_of_the_same_name() -> None:
    """It would be complete before it began."""
    world = Writing()
    writer = await world.writer()
    await write(writer, PULL)
    world.kube.remove("RolloutJob", "lab", "shop")
    await world.writer()
    await write(writer, ALL_FAILED)
    with pytest.raises(NotFound, match="another object"):
        await replace(writer, written=None).begin("a=b")
    assert not world.job.get("status")


AGENT = {"spec": {"containers": [{"name": "agent", "image": "agent:2", "command": ["agent"]}]}}
CHANGED: dict[str, tuple[dict[str, Any], list[str], tuple[str, ...]]] = {
    "groups of which some samples ended are two agents' from then on": (
        {"agent__template": AGENT}, ["g w w", "g p w", "w w w", "g g g"], ("(2; 3 of their samples",),
    ),
    "one that was discarded is run anew by the new one": ({"agent__template": AGENT}, ["u w", "i w"], ()),
    "nothing has begun": ({"agent__template": AGENT}, [], ()),
    "the agent is the same": ({"parallelism": 3}, ["g w"], ()),
}  # fmt: skip


@pytest.mark.parametrize(("change", "groups", "words"), CHANGED.values(), ids=CHANGED)
def test_another_agent_within_a_group_is_told(
    change: dict[str, Any], groups: list[str], words: tuple[str, ...]
) -> None:
    begun = [group(str(n), letters) for n, letters in enumerate(groups)]
    told = agent_changed(spec(), spec(**change), begun, "t1")
    assert (told is not None) == bool(words)
    if told is not None:
        event = told.event("ns", "shop", "uid", "t1")
        assert (event["type"], event["reason"]) == ("Warning", "AgentChanged")
        assert all(one in event["message"] for one in words), event["message"]
