"""Of a pod's Events, the one that says what it waits for now; and that this is known of each of many in time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.pod_events import CHUNKS_MAX, LOOK_S, LOOKED_MAX, PodEvents, newest
from sandgate.operator.kubernetes.client import LIST_CHUNK
from sandgate.operator.observed import events
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Ref, Running, StopAttempt, Told
from sandgate.operator.plan.session import plan_session
from tests.operator.plans import spec, want


def event(reason: str, message: str, at: str = "", kind: str = "Warning", **more: Any) -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "lastTimestamp": at or None, **more}


MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "x" not found'
CASES: dict[str, tuple[list[Any], str]] = {
    "none": ([], ""),
    "a volume that cannot be mounted": ([event("FailedMount", MOUNT)], f"FailedMount: {MOUNT}"),
    "what goes well says nothing": (
        [event("Scheduled", "to n1", kind="Normal"), event("Pulled", "it", kind="Normal")],
        "",
    ),
    "an image that is being pulled": (
        [event("Pulling", 'Pulling image "big:1"', kind="Normal")],
        'Pulling: Pulling image "big:1"',
    ),
    "the newest of several": (
        [event("FailedMount", "new", "2026-01-01T00:00:09Z"), event("FailedMount", "old", "2026-01-01T00:00:01Z")],
        "FailedMount: new",
    ),
    "a pod that has a node by now is scheduled": ([event("FailedScheduling", "0/3 nodes")], ""),
    "an Event of the newer kind has another time": (
        [event("A", "old", "2026-01-01T00:00:01Z"), event("B", "new", eventTime="2026-01-01T00:00:02.000001Z")],
        "B: new",
    ),
    "words of a terminal's escapes and lines are made plain": ([event("A", "\x1b[31mbad\nworse")], "A: bad worse"),
    "an Event that says little": ([{"type": "Warning", "reason": "Odd"}], "Odd"),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "said"), CASES.values(), ids=CASES)
def test_what_events_say_of_a_pod(listed: list[Any], said: str) -> None:
    assert newest(listed)[1] == said


START_S = 300
PULLS = event("Pulling", 'Pulling image "big:1"', kind="Normal")


@dataclass
class Cluster:
    """Pods that were given nodes at 1 s and do not say why they do not start; an API server that has their Events."""

    pods: dict[str, list[Any]]
    """Uid, and name of the session -> its Events."""
    nodes: int
    refuses: bool = False
    asked: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.spec = spec(groupSize=len(self.pods), limits__startSeconds=START_S, limits__sessionSeconds=900)
        self.at = JobState(
            kube=cast(Any, self),
            settings=cast(Any, None),
            job=cast(Any, SimpleNamespace(metadata=SimpleNamespace(name="shop", namespace="team"))),
            observed=Observed(want=replace(want(), spec=self.spec)),
            changed=lambda key: None,
            now=lambda: self.now,
        )
        for number, name in enumerate(self.pods):
            ref = Ref("shop", "a", number, 0)
            self.at.observe(events.SessionOpened(ref, "shop-gateway-0", 0.0, Told.NOTHING))
            self.at.observe(events.AgentSeen(ref, Running(0.0, None, None, 1.0, None)))
            kept = SimpleNamespace(uid=name, seen=SimpleNamespace(node=f"n{number % self.nodes}"))
            self.at.agents.held[ref.name] = cast(Any, kept)

    async def list(self, kind: str, namespace: str, *, fields: str, chunks: int = 0) -> list[Any]:
        self.asked.append(fields)
        if self.refuses:
            raise Unavailable("the API server is busy", retry_after=0.0)
        where, _, value = fields.partition("=")
        found = [
            {**one, "involvedObject": {"uid": uid}}
            for uid, told in self.pods.items()
            for one in told
            if value == (one["reason"] if where == "reason" else uid)
        ]
        return found[: chunks * LIST_CHUNK] if chunks else found

    async def looks(self) -> None:
        """All that there are before a pod that is not known to pull is given up."""
        looker = PodEvents(self.at)
        while self.now + LOOK_S < START_S:
            self.now += LOOK_S
            await looker.look()

    def given_up(self) -> int:
        plans = [plan_session(self.spec, one, START_S + 2.0) for one in self.at.observed.live]
        return sum(any(isinstance(one, StopAttempt) for one in plan) for plan in plans)


def pods(number: int, *told: Any) -> dict[str, list[Any]]:
    return {f"{told[0]['reason'] if told else 'silent'}-{index}": list(told) for index in range(number)}


MANY = CHUNKS_MAX * LIST_CHUNK
CROWDS: dict[str, tuple[Cluster, int]] = {
    "pods of one node": (Cluster(pods(10, PULLS), 1), 0),
    "a thousand pods of a hundred nodes": (Cluster(pods(1000, PULLS), 100), 0),
    "a thousand pods, each on a node of its own": (Cluster(pods(1000, PULLS), 1000), 0),
    "whose Events are fewer: what one says of its node's puller holds for all there": (
        Cluster({**pods(50, PULLS), **pods(450)}, 50),
        0,
    ),
    "more than one look reads": (Cluster(pods(MANY + 100, PULLS), MANY // 10), 0),
    "pods that wait for nothing known are given up": (Cluster(pods(20), 10), 20),
    "so are those that wait for a volume": (Cluster(pods(20, event("FailedMount", MOUNT)), 2), 20),
    "an API server that does not answer leaves it unknown": (Cluster(pods(20, PULLS), 10, refuses=True), 20),
}


@pytest.mark.parametrize(("crowd", "lost"), CROWDS.values(), ids=CROWDS)
async def test_of_many_pods_whose_image_takes_long_none_is_given_up(crowd: Cluster, lost: int) -> None:
    await crowd.looks()
    assert crowd.given_up() == lost
    assert len(crowd.asked) <= (LOOKED_MAX + 1) * START_S / LOOK_S


async def test_a_pod_that_waits_for_something_else_on_such_a_node_keeps_its_own_words() -> None:
    other = {"mounts": [event("FailedMount", MOUNT)]}
    cluster = Cluster({**pods(3, PULLS), **other}, 1)
    await cluster.looks()
    waits = [
        one.sandbox.waiting.words for one in cluster.at.observed.live if one.sandbox and one.sandbox.waiting
    ]
    assert waits == ['Pulling: Pulling image "big:1"'] * 3 + [f"FailedMount: {MOUNT}"]


FAILED, PULLED = f"FailedMount: {MOUNT}", 'Pulling: Pulling image "big:1"'
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
MORE = LOOKED_MAX + 2
"""Pods, each on a node of its own: more than one look asks about by themselves."""
NEWEST: dict[str, tuple[list[list[Any]], list[set[str]]]] = {
    "a volume that fails behind a pull is not taken for the pull again": (
        [[{**PULLS, "lastTimestamp": EARLY}, event("FailedMount", MOUNT, LATE)]] * 4,
        [{PULLED, FAILED}, {FAILED}, {FAILED}, {FAILED}],
    ),
    "a pull that began behind it is known of all at once": (
        [
            [event("FailedMount", MOUNT, EARLY)],
            [{**PULLS, "lastTimestamp": LATE}, event("FailedMount", MOUNT, EARLY)],
        ],
        [{"", FAILED}, {PULLED}],
    ),
}


@pytest.mark.parametrize(("told", "known"), NEWEST.values(), ids=NEWEST)
async def test_a_pod_has_its_newest_words(told: list[list[Any]], known: list[set[str]]) -> None:
    """`told`: the Events of every pod, at each look; `known`: what is known of them all then."""
    cluster = Cluster(pods(MORE), MORE)
    looker, found = PodEvents(cluster.at), list[set[str]]()
    cluster.now = LOOK_S
    for listed in told:
        cluster.now += LOOK_S
        cluster.pods = dict.fromkeys(cluster.pods, listed)
        await looker.look()
        waits = [one.sandbox.waiting for one in cluster.at.observed.live if one.sandbox]
        found.append({"" if one is None else one.words for one in waits})
    assert found == known
