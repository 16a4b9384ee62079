"""Short words for the tables: what is wanted, what is seen."""

from __future__ import annotations

from typing import Any

from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureReason
from sandgate.contract.job import RolloutJob, RolloutJobSpec
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary, TerminationMessage
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.plan.actions import (
    Action,
    Exit,
    GroupObserved,
    JobObserved,
    JobWant,
    OpenSession,
    Ref,
    Running,
    SampleObserved,
    SampleState,
    SealSession,
    SessionObserved,
)
from sandgate.operator.plan.status import job_status
from tests.contract.manifests import GONE, put, spoilt

GATEWAY = "shop-gateway-0"


def spec(**fields: Any) -> RolloutJobSpec:
    """One task, one sample, reward by exit code; `fields`: paths below spec with __ for dots."""
    manifest = spoilt(
        ("spec.groupSize", 1),
        ("spec.group", {}),
        ("spec.reward", {"source": "exitCode"}),
        ("spec.staleness", GONE),
        ("spec.activeDeadlineSeconds", GONE),
        ("spec.limits", {"sessionSeconds": 100, "startSeconds": 10}),
    )
    for path, value in fields.items():
        put(manifest["spec"], path.replace("__", "."), value)
    return decode(RolloutJob, manifest).spec


def want(**fields: Any) -> JobWant:
    return JobWant(name="shop", spec=spec(**fields))


def ref(uid: str = "a", sample: int = 0, attempt: int = 0) -> Ref:
    return Ref("shop", uid, sample, attempt)


def start(uid: str, sample: int = 0, attempt: int = 0, gateway: str = GATEWAY) -> OpenSession:
    return OpenSession(ref(uid, sample, attempt), gateway)


# -- samples, by one letter each -------------------------------------------------------------------------------------


def sample(letter: str, at: float = 0.0) -> SampleObserved:
    """w waiting, s starting, h held up before it starts, r running, x stopping, g good, p policy, c agent crashed,
    i infra once, I infra for the last time (retry.infra 3), d driver lost, u suspended, z straggler. A digit after it:
    the attempt."""
    attempt = int(letter[1:] or 0)
    ended = {
        "g": None,
        "p": FailureReason.SESSION_TIMEOUT,
        "c": FailureReason.AGENT_EXIT,
        "i": FailureReason.EVICTED,
        "I": FailureReason.EVICTED,
        "d": FailureReason.DRIVER_LOST,
        "u": FailureReason.ABORTED,
        "z": FailureReason.STRAGGLER,
    }
    kind = letter[0]
    if kind == "w":
        return SampleObserved()
    if kind in "shrx":
        return SampleObserved(
            state=SampleState.LIVE,
            attempt=attempt,
            starting=kind in "sh",
            stopping=kind == "x",
            waits_for="Unschedulable: 0/3 nodes" if kind == "h" else "",
        )
    reason = ended[kind]
    return SampleObserved(
        state=SampleState.ENDED,
        attempt=attempt,
        ended_at=at,
        reason=reason,
        failure=None if reason is None else FAILURE_CLASS[reason],
        spent={"i": 1, "I": 4}.get(kind, 0),
    )


def group(
    uid: str, letters: str, *, closed: bool = False, gateway: str = GATEWAY, at: float = 0.0
) -> GroupObserved:
    """`letters`: samples, separated by blanks."""
    return GroupObserved(
        uid=uid, gateway=gateway, samples=tuple(sample(one, at) for one in letters.split()), closed=closed
    )


def seen(
    *groups: GroupObserved, fresh: str = "", gateways: dict[str, int] | None = None, **more: Any
) -> JobObserved:
    """A job at work. `fresh`: a uid per letter."""
    return JobObserved(
        gateways={GATEWAY: 0} if gateways is None else gateways,
        fresh=list(fresh),
        groups={one.uid: one for one in groups},
        **more,
    )


# -- one session -----------------------------------------------------------------------------------------------------


def said(state: str = "open", **more: Any) -> SessionSummary:
    return SessionSummary(session_id=ref().name, state=SessionState(state), **more)


def running(started: float | None = 0.0, exit: Exit | None = None, **more: Any) -> Running:  # noqa: A002
    return Running(0.0, started, exit, **more)


def left(**message: Any) -> TerminationMessage:
    return TerminationMessage(message.get("reward"), message.get("reward_info", {}), message)


def session(**more: Any) -> SessionObserved:
    """Open since 0."""
    return SessionObserved(ref=ref(), opened_at=0.0, **more)


# -- how one ended --------------------------------------------------------------------------------------------------

VERIFIER = {"reward": {"source": "verifier", "verifier": {"container": {"image": "v"}, "seconds": 50}}}
TRAINER = {"reward": {"source": "trainer"}}


def ended(code: int | None = 0, at: float = 20.0, **more: Any) -> Exit:
    return Exit(at=at, code=code, **more)


def after(end: Exit, summary: Any = None, **more: Any) -> SessionObserved:
    """The agent ended, and the gateway was asked since."""
    return session(sandbox=running(1.0, end), summary=summary or said(turns=2), looked_at=end.at, **more)


def seal(reason: FailureReason | None = None, detail: str = "", **more: Any) -> list[Action]:
    return [SealSession(ref(), SessionOutcome(failure_reason=reason, detail=detail, **more))]


def scored(
    code: int | None, well: bool, reason: FailureReason | None = None, detail: str = ""
) -> list[Action]:
    """By exit code, of an agent that wrote nothing."""
    info = {"exit_code": code}
    return seal(reason, detail, reward=float(well), reward_info=info if well else info | told())


def timed_out(why: str) -> list[Action]:
    """It was stopped: how it took that is not its own end."""
    return seal(
        FailureReason.SESSION_TIMEOUT, why, reward=0.0, reward_info={"exit_code": None} | told(detail=why)
    )


def told(signal: str | None = None, detail: str = "", *, traceback: bool = False) -> dict[str, Any]:
    """What a record says of an end that was not good, beside its code."""
    return {"signal": signal, "detail": detail, "traceback": traceback}


def status_of(observed: JobObserved, now: float = 0.0, **fields: Any) -> RolloutJobStatus:
    return job_status(want(**fields), observed, now)
