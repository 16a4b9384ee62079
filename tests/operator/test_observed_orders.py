"""In whatever order Kubernetes tells the same things, and however often, the same is observed in the end."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.labels import AGENT, ROLE
from sandgate.contract.names import pod_name, verifier_name
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.observed import events
from sandgate.operator.observed.events import AgentSeen, VerifierSeen
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Exit, OpenSession, Ref, Running, StartAttempt, StartVerifier
from tests.operator.benches import Pods
from tests.operator.cel_rules import definitions
from tests.operator.cluster_rig import NAMESPACE
from tests.operator.plans import want

definitions()  # their parser sets the interpreter's recursion limit once, which Hypothesis takes for a test's doing

A, B = (Ref("shop", "a", sample, 0) for sample in (0, 1))
STARTED = Running(5.0, 6.0)
LIVES = {
    "a program that ended": [Running(5.0), STARTED, replace(STARTED, exit=Exit(7.0, 0))],
    "a program that still runs": [Running(5.0), STARTED],
    "a program that never started": [
        Running(5.0),
        Running(5.0, None, Exit(6.0, reason=FailureReason.START_FAILED)),
    ],
}


def opened() -> Observed:
    """Two sessions of one task."""
    seen = Observed(want=want(groupSize=2))
    for event in (
        events.TasksAdded(("a",)),
        events.GatewayChanged("g0", ready=True),
        events.SessionOpened(A, "g0", 4.0),
        events.SessionOpened(B, "g0", 4.0),
    ):
        seen = apply(seen, event)
    return seen


def after(seen: Observed, told: list[events.Event]) -> Observed:
    for event in told:
        seen = apply(seen, event)
    return seen


@given(data=st.data(), lives=st.tuples(*[st.sampled_from(sorted(LIVES))] * 3), deleted=st.booleans())
def test_events_of_pods_and_objects_fold_to_the_same_record_in_any_order(
    data: st.DataObject, lives: tuple[str, str, str], deleted: bool
) -> None:
    told: list[events.Event] = [AgentSeen(A, running) for running in LIVES[lives[0]]]
    told += [VerifierSeen(A, running) for running in LIVES[lives[1]]]
    told += [AgentSeen(B, running) for running in LIVES[lives[2]]]
    told += [events.ObjectDeleted(A)] * deleted
    again = data.draw(st.lists(st.sampled_from(told)))
    shuffled = data.draw(st.permutations([*told, *again]))
    assert after(opened(), shuffled) == after(opened(), told)


def test_an_answer_that_was_overtaken_opens_no_session_that_has_ended() -> None:
    seen = opened()
    said: dict[str, Any] = {"session_id": A.name, "job": "shop", "uid": "a"}
    ended = SessionSummary(**said, state=SessionState.FINALIZED)
    late = SessionSummary(**said, state=SessionState.OPEN)
    seen = apply(seen, events.SessionReported(ended, 9.0))
    assert apply(seen, events.SessionReported(late, 8.0)) == seen


# -- the same through the driver of a cluster, by the bodies that a watch brings --------------------------------------


STAMP = "2026-11-25T01:00:00Z"
RUNS = {"running": {"startedAt": STAMP}}
FAILED = {"terminated": {"exitCode": 1, "startedAt": STAMP, "finishedAt": STAMP}}
PHASES: list[dict[str, Any]] = [{}, RUNS, FAILED]
Told = tuple[str, dict[str, Any], bool]
"""(kind, body, whether it is gone)."""


def pod(pods: Pods, name: str, version: int, state: dict[str, Any], *, gone: bool = False) -> Told:
    body = copy.deepcopy(pods.kube.objects["Pod", NAMESPACE, name])
    container = "agent" if body["metadata"]["labels"][ROLE] == AGENT else "verifier"
    body["metadata"]["resourceVersion"] = str(1000 + version)
    phase = "Failed" if state is FAILED else "Running" if state is RUNS else "Pending"
    body["status"] = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
    return "Pod", body, gone


def session(pods: Pods, name: str, version: int, *, gone: bool = False) -> Told:
    body = copy.deepcopy(pods.kube.objects["AgentSession", NAMESPACE, name])
    body["metadata"]["resourceVersion"] = str(1000 + version)
    return "AgentSession", body, gone


async def watched(order: list[int]) -> Observed:
    """What is observed once the driver's own doing and what a watch tells of it are taken in, in that order."""
    pods = Pods()
    pods.job.now = pods.job.at.now = lambda: 50.0
    pods.kube.now = pods.gateway.now = lambda: 40.0
    pods.kube.watchers.clear()
    for ref in (A, B):
        await pods.act(OpenSession(ref, pods.home), StartAttempt(ref))
    await pods.act(StartVerifier(A))
    news = [
        *(pod(pods, pod_name(A.name), number, state) for number, state in enumerate(PHASES)),
        pod(pods, pod_name(A.name), 3, FAILED, gone=True),
        pod(pods, verifier_name(A.name), 4, RUNS),
        pod(pods, verifier_name(A.name), 5, FAILED),
        pod(pods, pod_name(B.name), 6, RUNS),
        pod(pods, pod_name(B.name), 7, RUNS, gone=True),
        session(pods, B.name, 8),
        session(pods, B.name, 9, gone=True),
    ]
    assert len(news) == NEWS
    for kind, body, gone in (news[number] for number in order):
        if gone:
            pods.kube.remove(kind, NAMESPACE, body["metadata"]["name"])
    for number in order:
        kind, body, gone = news[number]
        (pods.job.saw_pod if kind == "Pod" else pods.job.saw_session)(body, gone=gone)
    await asyncio.gather(*pods.job._tasks)  # whether what is called gone is there
    await pods.job.stop()
    return replace(pods.state.observed, started_at=0.0, since=0.0)


NEWS = 10


@given(again=st.lists(st.integers(0, NEWS - 1)), data=st.data())
@settings(max_examples=40)
def test_a_watch_that_repeats_and_lags_ends_in_the_same_record(again: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations([*range(NEWS), *again]))
    in_order = asyncio.run(watched(list(range(NEWS))))
    assert asyncio.run(watched(order)) == in_order
    first, second = in_order.sessions[A.name], in_order.sessions[B.name]
    ends = [one.sandbox.exit for one in (first, second) if one.sandbox is not None and one.sandbox.exit]
    assert [(end.code, end.reason) for end in ends] == [(1, None), (None, FailureReason.EVICTED)]
    assert (first.deleted, second.deleted) == (False, True)


@pytest.mark.parametrize(
    "order", [[9, 8], [7, 6], [3, 0]], ids=["an AgentSession", "a pod", "a pod that failed"]
)
async def test_news_of_what_is_gone_bring_nothing_back(order: list[int]) -> None:
    before, late = await watched(order[:1]), await watched(order)
    assert late == before


async def test_an_agentsession_that_was_gone_before_it_was_seen_stays_gone() -> None:
    pods = Pods()
    await pods.act(OpenSession(A, pods.home))
    _, body, _ = session(pods, A.name, 1)
    body["metadata"] |= {"name": "another", "uid": "uid-another"}
    pods.job.saw_session(body, gone=True)
    pods.job.saw_session(body)
    await pods.job.stop()
    assert list(pods.job.at.sessions.held) == [A.name]
