"""What a pod's status means: whose fault an end is, and when it is no end at all."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.keys import PREFIX
from sandgate.operator.observed.pod_failure import (
    CONFIG_PATIENCE_S,
    IMAGE_PATIENCE_S,
    PHASE_PATIENCE_S,
    is_trouble,
)
from sandgate.operator.observed.pod_record import PodSeen, pod_gone, pod_seen
from sandgate.operator.plan.actions import Exit, SideCars
from tests.operator.pod_ends import (
    ENDS,
    NOW,
    PULLED_AT,
    SIDECAR,
    UNPULLED,
    R,
    fetcher,
    policy_message,
)
from tests.operator.pods import (
    CREATED,
    Json,
    condition,
    container,
    disrupted,
    ended,
    pod,
    runs,
    waits,
)

LOOKED = 3.0
"""When pods were first looked at."""


def seen(body: Json, now: float = NOW) -> PodSeen:
    """It said the same before."""
    return pod_seen(body, CREATED + now, first_seen(body, CREATED + LOOKED))


def first_seen(body: Json, at: float) -> PodSeen:
    """As it was before it ended."""
    first = pod_seen(body, at)
    return replace(first, running=replace(first.running, exit=None))


def restarted(body: Json) -> Json:
    """Its side-car has a restartPolicy of its own."""
    body["spec"]["containers"].append({"name": "tools", "restartPolicy": "Always"})
    return body


def told(end: Exit | None) -> tuple[Any, ...] | None:
    """(when, code, signal, reason)."""
    return None if end is None else (end.at - CREATED, end.code, end.signal, end.reason)


@pytest.mark.parametrize(("body", "end"), ENDS.values(), ids=ENDS)
def test_ends(body: Json, end: tuple[Any, ...] | None) -> None:
    assert told(seen(body).running.exit) == end


BACKS_OFF = waits("ImagePullBackOff", "Back-off pulling image")
UNMADE = waits(
    "CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"
)
FETCHES = (container(waits("ErrImagePull"), "sandgate-fetcher"),)
PATIENCE: dict[str, tuple[list[tuple[float, Json]], float]] = {
    "an image is tried for a while": (
        [(3, pod("Pending", UNPULLED, conditions=(PULLED_AT,)))],
        3 + IMAGE_PATIENCE_S,
    ),
    "also one whose pull failed after minutes": (
        [(10, pod("Pending", waits("ContainerCreating"))), (203, pod("Pending", UNPULLED))],
        203 + IMAGE_PATIENCE_S,
    ),
    "backing off goes on with it": (
        [(203, pod("Pending", UNPULLED)), (205, pod("Pending", BACKS_OFF)), (213, pod("Pending", UNPULLED))],
        203 + IMAGE_PATIENCE_S,
    ),
    "another container's image has its own time": (
        [(10, pod("Pending", waits("PodInitializing"), inits=FETCHES)), (40, pod("Pending", UNPULLED))],
        40 + IMAGE_PATIENCE_S,
    ),
    "so has what follows the pull": (
        [(10, pod("Pending", UNPULLED)), (40, pod("Pending", UNMADE))],
        40 + CONFIG_PATIENCE_S,
    ),
    "what was got over is forgotten": (
        [(10, pod("Pending", UNPULLED)), (40, pod("Pending", waits("ContainerCreating"))),
         (90, pod("Pending", UNPULLED))],
        90 + IMAGE_PATIENCE_S,
    ),
    "a Secret may come a moment after its pod, however late that fetched": (
        [(203, pod("Pending", UNMADE, inits=(fetcher(0, "", at=2),)))],
        203 + CONFIG_PATIENCE_S,
    ),
    "why the kubelet killed it is told with the phase": ([(21, pod("Running", ended(137)))], 20 + PHASE_PATIENCE_S),
    "and a fetcher": (
        [(5, pod("Pending", waits("PodInitializing"), inits=(fetcher(143, ""),)))],
        4 + PHASE_PATIENCE_S,
    ),
    "of which a side-car in trouble takes nothing away": (
        [
            (
                5,
                pod(
                    "Pending",
                    waits("PodInitializing"),
                    inits=(container(waits("CreateContainerError"), "proxy"), fetcher(143, "")),
                    sidecars=("proxy",),
                ),
            )
        ],
        4 + PHASE_PATIENCE_S,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("looks", "until"), PATIENCE.values(), ids=PATIENCE)
def test_patience_ends_when_it_says(looks: list[tuple[float, Json]], until: float) -> None:
    before: PodSeen | None = None
    for at, body in (*looks, (until - 0.5, looks[-1][1])):
        before = pod_seen(body, CREATED + at, before)
    assert before is not None
    assert (before.running.exit, before.again_at) == (None, CREATED + until)
    after = pod_seen(looks[-1][1], CREATED + until, before)
    assert (after.running.exit is not None, after.again_at) == (True, None)


def test_another_pod_of_that_name_has_its_own_time() -> None:
    body = pod("Pending", UNPULLED)
    before = pod_seen(body, CREATED + 3)
    body["metadata"]["uid"] = "another"
    assert pod_seen(body, CREATED + 50, before).again_at == CREATED + 50 + IMAGE_PATIENCE_S


CRASHED = (container(ended(1, 3, since=2), "proxy"),)
NOTHING_TO_COME = {
    "a side-car that ended is started again: its agent's image is still on its way": pod(
        "Pending", waits("PodInitializing"), inits=CRASHED, sidecars=("proxy",)
    ),
    "a side-car that cannot be started again beside an agent that runs": pod(
        "Running", runs(), inits=(container(waits("RunContainerError"), "proxy"),), sidecars=("proxy",)
    ),
    "an agent that runs": pod("Running", runs()),
}


@pytest.mark.parametrize("body", NOTHING_TO_COME.values(), ids=NOTHING_TO_COME)
def test_nothing_ends_by_itself(body: Json) -> None:
    found = seen(body)
    assert (found.running.exit, found.again_at) == (None, None)


@given(body=st.sampled_from([body for body, _ in ENDS.values()]), at=st.floats(0, 200))
def test_a_look_is_planned_for_a_time_to_come(body: Json, at: float) -> None:
    """One that is over is planned anew at once, for ever: so many requests as the API server answers."""
    found = pod_seen(body, CREATED + at)
    assert found.again_at is None or found.again_at > CREATED + at


WAITS = {
    "the scheduler's words": (
        pod("Pending", conditions=(condition("PodScheduled", "False", "Unschedulable", "0/3 nodes"),)),
        "Unschedulable: 0/3 nodes",
    ),
    "a gate": (
        pod("Pending", conditions=(condition("PodScheduled", "False", "SchedulingGated"),)),
        "SchedulingGated",
    ),
    "the image's trouble": (
        pod("Pending", UNPULLED, conditions=(condition("Initialized", at=90),)),
        "agent: ErrImagePull: pull access denied",
    ),
    "what is being made": (pod("Pending", waits("ContainerCreating")), "agent: ContainerCreating"),
    "what is waited for first": (
        pod(
            "Pending",
            waits("PodInitializing"),
            inits=(container(waits("PodInitializing"), "sandgate-fetcher"),),
        ),
        "sandgate-fetcher: PodInitializing",
    ),
    "nothing once it runs": (pod("Running", runs()), ""),
}


@pytest.mark.parametrize(("body", "words"), WAITS.values(), ids=WAITS)
def test_why_it_has_not_started(body: Json, words: str) -> None:
    found = pod_seen(body, CREATED + NOW)
    assert found.waiting == words
    held = found.running.waiting
    assert (held.words if held else "") == (words if is_trouble(words) else "")


HELD = {
    "no node": (WAITS["the scheduler's words"][0], (R.START_TIMEOUT, False, False)),
    "an image: it may come after all, and its pull may have used up startSeconds": (
        WAITS["the image's trouble"][0],
        (R.IMAGE_ERROR, True, True),
    ),
    "a Secret": (
        pod("Pending", waits("CreateContainerConfigError", "no keys")),
        (R.START_TIMEOUT, True, False),
    ),
}


@pytest.mark.parametrize(("body", "how"), HELD.values(), ids=HELD)
def test_what_holds_a_pod_up(body: Json, how: tuple[R, bool, bool]) -> None:
    running = seen(body, 5.0).running
    assert running.waiting is not None
    assert (running.waiting.reason, not running.unplaced, running.waiting.pulls) == how


def test_a_pod_that_no_scheduler_looked_at_has_no_node() -> None:
    bare = pod("Pending", conditions=())
    assert not seen(bare).running.unplaced, "somebody named its node"
    del bare["spec"]["nodeName"]
    assert seen(bare).running.unplaced


def test_when_a_pod_was_given_its_node() -> None:
    placed = pod("Pending", waits("ContainerCreating"), conditions=(condition("PodScheduled", at=7),))
    assert seen(placed).running.placed_at == CREATED + 7
    assert seen(WAITS["the scheduler's words"][0]).running.placed_at is None


SPOILT = f"\x1b[31mfatal\x1b[0m: a\0b\n\ud800{PREFIX}abc.def"
DETAILS = {
    "the node's own words": (
        pod("Failed", ended(137), reason="Evicted", message="The node was low on resource: memory."),
        "The node was low on resource: memory.",
    ),
    "what the fetcher left": (
        pod("Failed", inits=(fetcher(3, policy_message("NetworkPolicyNotEnforced")),)),
        "init container sandgate-fetcher: NetworkPolicyNotEnforced: 10.96.0.1:443 answers",
    ),
    "how an init container ended": (
        pod("Failed", inits=(container(ended(1, message="no disk"), "prepare"),)),
        "init container prepare: Error, exit code 1: no disk",
    ),
    "of which nothing is kept that no status can hold, and no key": (
        pod("Failed", inits=(container(ended(1, message=SPOILT), "prepare"),)),
        "init container prepare: Error, exit code 1: fatal: a b  [key]",
    ),
    "of a node that forgot, neither": (
        pod("Failed", ended(137, reason="ContainerStatusUnknown", message=SPOILT)),
        "fatal: a b  [key]",
    ),
    "nor of what the fetcher left": (
        pod("Failed", inits=(fetcher(3, json.dumps({"reason": "X", "detail": SPOILT})),)),
        "init container sandgate-fetcher: X: fatal: a b  [key]",
    ),
    "the runtime's complaint": (
        pod("Failed", ended(128, 6, "StartError", 'exec: "pyton": not found', since=None)),
        'exec: "pyton": not found',
    ),
    "the last line that a failed agent left": (
        pod("Failed", ended(3, message="loading\nno disk\n")),
        "no disk",
    ),
    "one that a signal ended, too": (pod("Failed", ended(139, message="panic: x")), "panic: x"),
    "of a traceback the exception": (
        pod("Failed", ended(1, message='Traceback\n  File "a.py", line 1, in <module>\nKeyError: 1\n')),
        "KeyError: 1",
    ),
    "nothing of a result": (pod("Failed", ended(1, message='{"reward": 0}')), ""),
    "nothing of one that ended well": (pod("Succeeded", ended(0, message="all done")), ""),
    "why a container could not be configured": (
        pod("Pending", waits("CreateContainerConfigError", "image will run as root")),
        "container agent: CreateContainerConfigError: image will run as root",
    ),
}


@pytest.mark.parametrize(("body", "detail"), DETAILS.values(), ids=DETAILS)
def test_what_people_are_told(body: Json, detail: str) -> None:
    end = seen(body).running.exit
    assert end is not None
    assert end.detail == detail


GOLDEN = Path(__file__).parents[1] / "golden" / "pods"
REAL = sorted(GOLDEN.glob("*.json"))


@pytest.mark.parametrize("file", REAL, ids=[file.stem for file in REAL])
def test_a_status_that_a_real_cluster_wrote(file: Path) -> None:
    case = json.loads(file.read_text("utf-8"))
    found = pod_seen(case["pod"], case["now"], first_seen(case["pod"], case["now"] - IMAGE_PATIENCE_S))
    end = found.running.exit
    assert (None if end is None else [end.code, end.signal, end.reason]) == case["end"]
    assert (found.running.started_at is not None, found.over) == (case["started"], case["over"])
    assert found.running.asked_at <= case["now"]
    stopped = end is not None and end.stopped and bool(case["started"])
    assert stopped == (file.stem in ("is-stopped", "is-stopped-and-takes-it-well"))


def test_the_corpus_has_every_reason_that_a_cluster_can_be_made_to_write() -> None:
    ends = [json.loads(file.read_text("utf-8"))["end"] for file in REAL]
    assert {end[2] for end in ends if end} >= {
        None,
        R.OOM_KILLED,
        R.STORAGE_EXCEEDED,
        R.IMAGE_ERROR,
        R.START_FAILED,
        R.START_TIMEOUT,
        R.SESSION_TIMEOUT,
        R.EVICTED,
        R.PREEMPTED,
        R.NODE_LOST,
    }


def test_a_crash_is_told_from_a_wrong_answer() -> None:
    told = 'Traceback\n  File "a.py", line 1, in <module>\nKeyError: 1\n'
    ends = [seen(pod("Failed", ended(1, message=text))).running.exit for text in (told, "wanted 7 kiwi")]
    assert [end is not None and (end.code, end.traceback) for end in ends] == [(1, True), (1, False)]


def test_a_long_text_is_cut() -> None:
    end = seen(pod("Failed", ended(137), reason="Evicted", message="x" * 10_000)).running.exit
    assert end is not None
    assert len(end.detail) == 512


def test_what_an_agent_left_is_read() -> None:
    left = json.dumps({"reward": 0.5, "reward_info": {"a": 1}})
    end = seen(pod("Failed", ended(1, message=left))).running.exit
    assert end is not None
    assert (end.message.reward, end.message.reward_info) == (0.5, {"a": 1})


def test_a_runtime_s_complaint_is_no_message_of_the_agent() -> None:
    end = seen(pod("Failed", ended(128, 6, "StartError", '{"reward": 1}', since=None))).running.exit
    assert end is not None
    assert end.message.reward is None


def test_who_where_and_since_when() -> None:
    found = seen(pod("Running", runs(5), deleted=None))
    assert (found.name, found.namespace, found.job) == ("s-0-0", "team", "shop")
    assert (found.session, found.group, found.role, found.node) == ("s-0-0", "s", "agent", "n1")
    assert (found.running.asked_at, found.running.started_at) == (CREATED, CREATED + 5)
    assert (found.deleting, found.over) == (False, False)
    assert seen(pod("Succeeded", ended(0), deleted=30)).deleting
    assert seen(pod("Succeeded", ended(0))).over
    assert not seen(pod("Running", ended(0), SIDECAR)).over


PROXY = container(runs(), "proxy")
STOPPED: dict[str, Any] = {"reason": "DeadlineExceeded", "deadline": 1}
LEFT: dict[str, tuple[Json, SideCars]] = {
    "nothing is beside a single container, before its pod's phase says so too": (
        pod("Running", ended(0)),
        SideCars.NONE,
    ),
    "a side-car that runs on is to be stopped": (pod("Running", ended(0), SIDECAR), SideCars.RUN),
    "so is one that has not started yet": (
        pod("Running", ended(0), container(waits("ContainerCreating"), "tools")),
        SideCars.RUN,
    ),
    "one that ended before is not": (pod("Running", ended(0), container(ended(1), "tools")), SideCars.NONE),
    "one that is started again and again is, also in between": (
        restarted(pod("Running", ended(0), container(ended(1), "tools"))),
        SideCars.RUN,
    ),
    "one among the init containers is ended by its kubelet": (
        pod("Running", ended(0), inits=(PROXY,), sidecars=("proxy",)),
        SideCars.ENDING,
    ),
    "but not while another runs on": (
        pod("Running", ended(0), SIDECAR, inits=(PROXY,), sidecars=("proxy",)),
        SideCars.RUN,
    ),
    "nothing is left of a pod that is over": (
        pod("Failed", ended(0), container(ended(137), "tools"), **STOPPED),
        SideCars.NONE,
    ),
    "whatever its last statuses say": (pod("Failed", ended(0), SIDECAR, **STOPPED), SideCars.NONE),
}


@pytest.mark.parametrize(("body", "left"), LEFT.values(), ids=LEFT)
def test_what_is_left_beside_an_agent_that_ended(body: Json, left: SideCars) -> None:
    running = seen(body).running
    assert (told(running.exit), running.side_cars) == ((20, 0, None, None), left)


def test_an_agent_that_never_started_has_no_start() -> None:
    assert seen(pod("Failed", ended(128, 6, "StartError", since=6))).running.started_at is None
    assert seen(pod("Succeeded", ended(0))).running.started_at == CREATED + 5


def test_a_pod_that_is_gone_ended_as_it_had_or_was_deleted() -> None:
    body = pod("Running", runs())
    gone = pod_gone(seen(body), CREATED + 50)
    assert told(gone.running.exit) == (50, None, None, R.EVICTED)
    assert (gone.over, gone.deleting, gone.again_at) == (True, True, None)
    assert told(pod_gone(seen(pod("Failed", ended(3))), CREATED + 50).running.exit) == (20, 3, None, None)


def test_the_first_exit_stands_for_as_long_as_it_is_the_same_pod() -> None:
    stuck = seen(pod("Pending", waits("InvalidImageName")))
    later = pod("Pending", waits("ContainerCreating"), deleted=120)
    assert pod_seen(later, CREATED + 150, stuck).running.exit == stuck.running.exit
    later["metadata"]["uid"] = "another"
    assert told(pod_seen(later, CREATED + 150, stuck).running.exit) == (120, None, None, R.EVICTED)


def test_an_answer_that_was_seen_before_its_pod_was_taken_away_stands() -> None:
    answered = pod_seen(pod("Failed", ended(1, 20)), CREATED + 21)
    gone = disrupted("EvictionByEvictionAPI", 22)
    later = pod("Failed", ended(1, 20), conditions=(gone,), deleted=22)
    assert told(pod_seen(later, CREATED + 23, answered).running.exit) == (20, 1, None, None)
    assert told(pod_seen(later, CREATED + 23).running.exit) == (22, None, None, R.EVICTED)


def test_a_pod_without_the_mark_is_judged_by_its_first_container() -> None:
    body = pod("Failed", ended(3), container(ended(0), "tools"))
    del body["metadata"]["annotations"]
    assert told(seen(body).running.exit) == (20, 3, None, None)


def test_whatever_the_node_or_others_do_is_infrastructure() -> None:
    """The law behind the table: what was not the agent's doing is never scored."""
    own = {R.SESSION_TIMEOUT, R.OOM_KILLED, R.NODE_PRESSURE, R.AGENT_MISSING}
    for name, (_, end) in ENDS.items():
        if end is not None and end[3] is not None and end[3] not in own:
            assert FAILURE_CLASS[end[3]] is FailureClass.INFRA, name


def weight(value: object, known: set[int]) -> int:
    """Bytes of a value and of what it holds, each once; interned text apart, which all pods share."""
    if id(value) in known or value is None or isinstance(value, bool | FailureReason):
        return 0
    known.add(id(value))
    own = sys.getsizeof(value)
    if is_dataclass(value):
        return own + sum(weight(getattr(value, one.name), known) for one in fields(value))
    if isinstance(value, dict):
        return own + sum(weight(part, known) for pair in value.items() for part in pair)
    return own


BYTES_MAX = 2560
"""The budget of 2.5 KiB that the operator's size rests on."""


def test_a_pod_costs_little() -> None:
    running = weight(seen(pod("Running", runs())), set())
    left = json.dumps({"reward": 0.5, "reward_info": {f"k{n}": n / 7 for n in range(10)}})
    over = weight(seen(pod("Failed", ended(1, message=left))), set())
    assert running < over < BYTES_MAX
    assert running < 1024


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("2026-01-01T00:00:00Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, one in inner for path in paths(one, (*at, key)))]


@given(data=st.data(), body=st.sampled_from([body for body, _ in ENDS.values()]), odd=JSON)
def test_a_status_that_nobody_foresaw_is_understood_somehow(
    data: st.DataObject, body: Json, odd: Any
) -> None:
    body = copy.deepcopy(body)
    *parents, last = data.draw(st.sampled_from(paths(body)[1:]))
    at: Any = body
    for key in parents:
        at = at[key]
    at[last] = odd
    found = seen(body)
    assert found.running.exit is None or found.running.exit.at <= CREATED + NOW


@given(body=st.sampled_from([body for body, _ in ENDS.values()]), later=st.floats(0, 1e6))
def test_an_end_does_not_change_its_meaning_as_time_goes_by(body: Json, later: float) -> None:
    first, second = seen(body).running.exit, seen(body, NOW + later).running.exit
    if first is not None:
        assert second is not None
        assert (first.code, first.signal, first.reason) == (second.code, second.signal, second.reason)
