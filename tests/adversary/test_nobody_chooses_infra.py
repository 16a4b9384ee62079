"""Infrastructure's failures are tried again and never scored: nothing that a sandbox can do makes its failure one.

For every reason of that class, what a policy might try to get it; it gets another one, of class policy or agent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.failure_reasons import CAUSES, FAILURE_CLASS, Cause, FailureClass, FailureReason
from sandgate.contract.session import SessionOutcome, SessionSummary
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.operator.local.sandboxes import exit_of
from sandgate.operator.observed.pod_record import pod_seen
from sandgate.operator.plan.actions import Exit, SealSession, SessionObserved, Stop
from sandgate.operator.plan.session import plan_session
from sandgate.sandbox.process import ProcessExit
from tests.operator.plans import running, said, session, spec
from tests.operator.pods import CREATED, condition, disrupted, ended, pod, runs, waits
from tests.support.gateway import bearer, gateway

R = FailureReason
EXIT_CODE = spec(reward={"source": "exitCode"})
VERIFIER = spec(reward={"source": "verifier", "verifier": {"container": {"command": ["judge"]}}})
NOW = 1000.0
INFRA = [reason for reason, kind in FAILURE_CLASS.items() if kind is FailureClass.INFRA]


def test_a_reason_that_a_sandbox_can_bring_about_is_never_infrastructures() -> None:
    assert CAUSES.keys() == FAILURE_CLASS.keys() == set(FailureReason)
    for reason, kind in FAILURE_CLASS.items():
        can = kind is not FailureClass.INFRA and reason is not R.AGENT_MISSING  # of which nothing ever ran
        assert (Cause.SANDBOX in CAUSES[reason]) is can, reason


# -- how a session is sealed -----------------------------------------------------------------------------------------


def sealed(
    end: Exit,
    summary: SessionSummary | None = None,
    verdict: Exit | None = None,
    stopped_at: float | None = None,
) -> SessionOutcome:
    """The agent ended like this, and so did the verifier, if there is one; that was told to stop then."""
    end = replace(end, at=min(end.at, NOW))
    seen: SessionObserved = session(
        sandbox=running(0.0, end),
        summary=summary or said(turns=1),
        looked_at=NOW,
        verifier=None if verdict is None else running(0.0, verdict),
        verifier_stop_at=stopped_at,
    )
    (action,) = plan_session(VERIFIER if verdict is not None else EXIT_CODE, seen, NOW)
    assert isinstance(action, SealSession), action
    return action.outcome


def of_pod(body: Any) -> SessionOutcome:
    end = pod_seen(body, CREATED + 50).running.exit
    assert end is not None
    return sealed(end)


def of_process(**more: Any) -> SessionOutcome:
    known: dict[str, Any] = {
        "code": None,
        "signal": None,
        "oom": False,
        "message": b"",
        "at": 1.0,
        "tail": "",
    }
    return sealed(exit_of(ProcessExit(**{**known, **more})))


def leaves(reason: str) -> Callable[[], SessionOutcome]:
    """A termination message that says what our own fetcher says, and what a kubelet says."""
    text = json.dumps({"reason": reason, "failure_reason": reason, "failure_class": "infra", "detail": "x"})
    return lambda: of_pod(pod("Failed", ended(4, message=text)))


def exits(code: int) -> Callable[[], SessionOutcome]:
    return lambda: of_pod(pod("Failed", ended(code)))


def evicted(text: str, volume: Any = None, **mount: Any) -> Callable[[], SessionOutcome]:
    """By its kubelet, with these words (pkg/kubelet/eviction); the agent mounts this `volume`, so."""
    target = disrupted("TerminationByKubelet", 25)
    body = pod("Failed", ended(137), reason="Evicted", message=text, conditions=(target,))
    if volume is not None:
        body["spec"]["volumes"] = [{"name": "work", **volume}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "work", "mountPath": "/work", **mount}]
    return lambda: of_pod(body)


def evicted_unseen(text: str) -> Callable[[], SessionOutcome]:
    """So quickly that its kubelet had not yet told that it ran: seen where 27 pods began at once on one node."""
    begun = (condition("Initialized"), disrupted("TerminationByKubelet", 25))
    return lambda: of_pod(
        pod("Failed", waits("ContainerCreating"), reason="Evicted", message=text, conditions=begun)
    )


def judged(stopped_at: float | None = None, **verdict: Any) -> Callable[[], SessionOutcome]:
    """What the agent left made the verifier end so."""
    return lambda: sealed(Exit(1.0, 0), said(turns=1), Exit(2.0, **verdict), stopped_at)


LOW = "The node was low on resource: {}. Threshold quantity: 10Gi, available: 1Gi. "
NO_DISK = LOW.format("ephemeral-storage")
"""What a kubelet says where no container wrote more than it asked for beside its volumes."""
USING = "Container agent was using 9Gi, request is 0, has larger consumption of {}. "

TRIES: dict[FailureReason, dict[str, tuple[Callable[[], SessionOutcome], FailureReason]]] = {
    R.START_FAILED: {
        "ends as a shell does that finds no program": (exits(127), R.AGENT_EXIT),
        "ends as one that may not run it": (exits(126), R.AGENT_EXIT),
        "says so": (leaves("StartError"), R.AGENT_EXIT),
        "says that the wall is not up": (leaves("NetworkPolicyNotEnforced"), R.AGENT_EXIT),
    },
    R.START_TIMEOUT: {
        "does nothing for ever": (lambda: of_stop(R.SESSION_TIMEOUT), R.SESSION_TIMEOUT),
        "says so": (leaves("StartTimeout"), R.AGENT_EXIT),
    },
    R.ENGINE_ERROR: {
        "says so": (leaves("EngineError"), R.AGENT_EXIT),
        "crashes after calls that the engine refused": (
            lambda: sealed(Exit(1.0, 1), said(turns=0, engine_errors=0)),
            R.ANSWER_WRONG,
        ),
    },
    R.ENGINE_LOST: {"says so": (leaves("EngineLost"), R.AGENT_EXIT)},
    R.GATEWAY_LOST: {
        "says so as the fetcher would": (leaves("GatewayUnreachable"), R.AGENT_EXIT),
        "ends with the fetcher's exit code": (exits(4), R.AGENT_EXIT),
        "fills its gateway's journal": (
            lambda: sealed(
                Exit(1.0, 1),
                said(
                    turns=9, limit_reached="journalShare", engine_errors=9, engine_reason="JournalUnavailable"
                ),
            ),
            R.JOURNAL_PRESSURE,
        ),
    },
    R.PREEMPTED: {
        "kills itself as others would": (exits(137), R.AGENT_SIGNAL),
        "says so": (leaves("Preempting"), R.AGENT_EXIT),
    },
    R.EVICTED: {
        "fills its own disk": (
            evicted('Container agent exceeded its local ephemeral storage limit "1Gi". '),
            R.STORAGE_EXCEEDED,
        ),
        "fills its pod's disk": (
            evicted("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "),
            R.STORAGE_EXCEEDED,
        ),
        "fills a volume of its own": (
            evicted('Usage of EmptyDir volume "work" exceeds the limit "64Mi". '),
            R.STORAGE_EXCEEDED,
        ),
        "fills a volume before its node has told that it runs": (
            evicted_unseen('Usage of EmptyDir volume "work" exceeds the limit "64Mi". '),
            R.STORAGE_EXCEEDED,
        ),
        "fills its node's disk": (
            evicted(LOW.format("ephemeral-storage") + USING.format("ephemeral-storage")),
            R.NODE_PRESSURE,
        ),
        "takes its node's memory": (evicted(LOW.format("memory") + USING.format("memory")), R.NODE_PRESSURE),
        "fills its node's disk through a volume": (evicted(NO_DISK, {"emptyDir": {}}), R.NODE_PRESSURE),
        "forks until its node has no more": (evicted(LOW.format("pids")), R.NODE_PRESSURE),
        "makes files until its node has no inode": (evicted(LOW.format("inodes")), R.NODE_PRESSURE),
        "takes more memory than it may": (
            lambda: of_pod(limited(pod("Failed", ended(137, reason="OOMKilled")))),
            R.OOM_KILLED,
        ),
        "takes all memory there is, without a limit": (
            lambda: of_pod(pod("Failed", ended(137, reason="OOMKilled"))),
            R.NODE_PRESSURE,
        ),
        "takes more memory than it may, as a process": (lambda: of_process(signal=9, oom=True), R.OOM_KILLED),
        "takes all memory of this machine": (lambda: of_process(signal=9, machine_oom=True), R.NODE_PRESSURE),
        "ends itself by SIGTERM": (exits(143), R.AGENT_SIGNAL),
        "answers wrong, and its pod is taken away later": (
            lambda: of_pod(pod("Failed", ended(1, 11), deleted=22)),
            R.ANSWER_WRONG,
        ),
        "kills itself, as a process": (lambda: of_process(signal=9), R.AGENT_SIGNAL),
    },
    R.NODE_LOST: {
        "says that its node forgot it": (leaves("ContainerStatusUnknown"), R.AGENT_EXIT),
        "ends with an exit code that nobody has": (exits(255), R.AGENT_EXIT),
    },
    R.NODE_REFUSED: {"says so": (leaves("UnexpectedAdmissionError"), R.AGENT_EXIT)},
    R.IMAGE_ERROR: {"says so": (leaves("ImagePullBackOff"), R.AGENT_EXIT)},
    R.VERIFIER_LOST: {
        "leaves what makes the verifier crash": (judged(code=1), R.VERIFIER_FAILED),
        "leaves what makes it run out of memory": (
            judged(signal=9, reason=R.OOM_KILLED, detail="too much"),
            R.VERIFIER_FAILED,
        ),
        "leaves what makes it fill its disk": (judged(reason=R.STORAGE_EXCEEDED), R.VERIFIER_FAILED),
        "leaves what makes it fill its node's": (judged(reason=R.NODE_PRESSURE), R.VERIFIER_FAILED),
        "leaves what makes it think for ever": (judged(signal=15), R.VERIFIER_FAILED),
        "leaves what makes it hang until force ends it": (
            judged(stopped_at=1.5, reason=R.EVICTED, detail="the pod was deleted"),
            R.VERIFIER_FAILED,
        ),
        "leaves what makes it say nothing": (judged(code=0), R.VERIFIER_FAILED),
    },
    R.DRIVER_LOST: {"says so": (leaves("DriverLost"), R.AGENT_EXIT)},
    R.ABORTED: {
        "says so": (leaves("Aborted"), R.AGENT_EXIT),
        "is slower than its siblings, on purpose": (lambda: of_stop(R.STRAGGLER), R.STRAGGLER),
    },
}


def limited(body: Any) -> Any:
    body["spec"]["containers"] = [{"name": "agent", "resources": {"limits": {"memory": "64Mi"}}}]
    return body


def of_stop(reason: FailureReason) -> SessionOutcome:
    """It ran until it was stopped for this."""
    seen = session(
        sandbox=running(0.0, Exit(200.0, None, 9)),
        summary=said(turns=1),
        looked_at=NOW,
        stop=Stop(reason, ""),
    )
    (action,) = plan_session(EXIT_CODE, seen, NOW)
    assert isinstance(action, SealSession)
    return action.outcome


@pytest.mark.parametrize("source", ["agent", "trainer"])
def test_a_policy_that_said_that_it_is_done_and_waits_for_force_is_not_tried_again(source: str) -> None:
    seen = session(
        sandbox=running(0.0, Exit(200.0, reason=R.EVICTED, detail="the pod was deleted")),
        summary=said("complete", turns=1, reward=0.0),
        looked_at=NOW,
        stop=Stop(None),
        killed=True,
    )
    (action,) = plan_session(spec(reward={"source": source}, agent__completion="Complete"), seen, NOW)
    assert isinstance(action, SealSession)
    assert action.outcome.failure_reason is None


CASES = [(reason, how, *case) for reason, tries in TRIES.items() for how, case in tries.items()]


@pytest.mark.parametrize(
    ("wanted", "how", "attempt", "got"), CASES, ids=[f"{reason}-{how}" for reason, how, _, _ in CASES]
)
def test_a_policy_that_wants_this_does_not_get_it(
    wanted: FailureReason, how: str, attempt: Callable[[], SessionOutcome], got: FailureReason
) -> None:
    outcome = attempt()
    assert (outcome.failure_reason, outcome.failure_class) == (got, FAILURE_CLASS[got]), how
    assert outcome.failure_class is not FailureClass.INFRA


def test_every_reason_of_infrastructure_was_tried() -> None:
    assert set(TRIES) == set(INFRA)


@given(
    code=st.integers(0, 255),
    text=st.text(max_size=200),
    reason=st.sampled_from(["", "Error", "Completed", "OOMKilled"]),
    turns=st.integers(0, 3),
    limit=st.sampled_from([None, "turns", "totalTokens", "context", "journalShare"]),
)
def test_whatever_a_container_does_it_is_not_infrastructure(
    code: int, text: str, reason: str, turns: int, limit: str | None
) -> None:
    body = pod("Failed" if code else "Succeeded", ended(code, reason=reason, message=text))
    end = pod_seen(body, CREATED + 50).running.exit
    assert end is not None
    outcome = sealed(end, said(turns=turns, limit_reached=limit))
    assert outcome.failure_class is not FailureClass.INFRA


def test_what_others_do_stays_infrastructures() -> None:
    """The other side: an innocent pod is tried again."""
    innocent = evicted(LOW.format("memory"))()
    assert (innocent.failure_reason, innocent.failure_class) == (R.EVICTED, FailureClass.INFRA)
    for volume, mount in (
        (None, {}),
        ({"emptyDir": {}}, {"readOnly": True}),  # the fetcher's, say
        ({"emptyDir": {"medium": "Memory"}}, {}),
        ({"persistentVolumeClaim": {"claimName": "data"}}, {}),
    ):
        assert evicted(NO_DISK, volume, **mount)().failure_reason is R.EVICTED, (volume, mount)
    never_ran = pod("Failed", reason="Evicted", message=LOW.format("ephemeral-storage") + USING.format("x"))
    assert of_pod(never_ran).failure_class is FailureClass.INFRA
    assert of_process(code=0, unread="Input/output error").failure_reason is R.NODE_LOST
    assert judged(reason=R.NODE_LOST)().failure_reason is R.VERIFIER_LOST
    assert pod_seen(pod("Running", runs()), CREATED + 50).running.exit is None


# -- at the gateway --------------------------------------------------------------------------------------------------

SHAPED = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
BAD = Fault("status", 0, 400, "Grammar error: bad regex")
BROKEN = Fault("status", 0, 500, "the grammar has crashed the scheduler")

CALLS: dict[str, tuple[Fault, dict[str, Any], int, int]] = {
    "a form that the engine refuses": (BAD, {"response_format": SHAPED}, 400, 0),
    "a seed that it refuses": (BAD, {"seed": 2**40}, 400, 0),
    "a body that it finds too large": (Fault("status", 0, 413, "too large"), {}, 400, 0),
    "a form that makes it fail": (BROKEN, {"response_format": SHAPED}, 502, 0),
    "nothing special: then it is the engine's own failure": (BROKEN, {}, 502, 1),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fault", "body", "status", "counted"), CALLS.values(), ids=CALLS)
async def test_a_call_that_the_engine_cannot_take_is_the_callers_doing(
    fault: Fault, body: dict[str, Any], status: int, counted: int, stream: bool
) -> None:
    async with gateway([Reply("", fault=fault)]) as g:
        agent = await g.session()
        answer = await agent.post("hello", stream=stream, **body)
        assert answer.status_code == status
        assert fault.message in answer.text
        summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert summary["engine_errors"] == counted
        if status == 400:
            error = answer.json()["error"]
            assert (error["type"], answer.headers["x-sandgate-reason"]) == (
                "invalid_request_error",
                "RefusedByEngine",
            )


async def test_an_engine_that_finds_a_prompt_too_long_has_not_failed() -> None:
    words = "This model's maximum context length is 4096 tokens. However, you requested 5000"
    async with gateway([Reply("", fault=Fault("status", 0, 400, words))]) as g:
        agent = await g.session()
        assert (await agent.post("hello")).status_code == 400
        summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (summary["engine_errors"], summary["limit_reached"]) == (0, "context")


async def test_an_agents_key_aborts_nothing() -> None:
    async with gateway(["done"]) as g:
        agent, other = await g.session(), await g.session()
        for one in (agent, other):
            answer = await g.admin.post(
                f"/v1/sessions/{one.id}/abort", headers=bearer(agent.handle["api_key"])
            )
            assert answer.status_code == 403
        assert (await g.admin.get(f"/v1/sessions/{other.id}")).json()["state"] == "open"
