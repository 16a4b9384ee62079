"""A job whose first sessions fail of what stays is given up; what may pass by itself is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sandgate.contract.failure_reasons import FailureReason as R
from sandgate.contract.status import ConditionStatus, JobCondition
from sandgate.operator.plan.actions import (
    Exit,
    GroupObserved,
    Hopeless,
    Ref,
    Running,
    SampleObserved,
    SessionObserved,
    Stop,
    StopAttempt,
    WriteStatus,
)
from sandgate.operator.plan.first_failures import FIRST, KEPT_MAX, Firsts, nothing_starts
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.settling import ended_with
from sandgate.operator.plan.status import job_status
from tests.operator.plans import group, ref, said, seen, want

PATH = "pythonx is not on PATH"
RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed:"
    ' unable to start container process: exec: "no-such-program": executable file not found in $PATH'
)
IMPORT = "exit code 1: ModuleNotFoundError: No module named 'openai'"
PSA = '403: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'
NO_MODEL = "the engine answered 404: The model `tiny` does not exist."

Session = tuple[str, SessionObserved, SampleObserved]


def ended(uid: str, reason: R | None, turns: int = 0, detail: str = "", **more: object) -> Session:
    """A session of a task that is sealed. `more`: what else its gateway says."""
    sandbox = Running(0.0, 1.0, Exit(2.0, code=1))
    told = said("finalized", turns=turns, failure_detail=detail, **more)
    one = SessionObserved(ref=ref(uid), opened_at=0.0, summary=told, sandbox=sandbox)
    return uid, one, ended_with(reason, 0, 2.0, SampleObserved())


def absent(uid: str, words: str = PATH, reason: R = R.START_FAILED) -> Session:
    """Its program was never started."""
    uid, one, sample = ended(uid, reason)
    sandbox = Running(0.0, None, Exit(2.0, reason=reason, detail=words))
    return uid, SessionObserved(ref=one.ref, opened_at=0.0, summary=one.summary, sandbox=sandbox), sample


def unjudged(uid: str) -> Session:
    """It ran well, and its verifier was never started."""
    uid, one, sample = ended(uid, R.VERIFIER_FAILED, turns=3)
    judge = Running(0.0, None, Exit(2.0, reason=R.START_FAILED, detail="judge.py: Permission denied"))
    return uid, SessionObserved(ref=one.ref, opened_at=0.0, summary=one.summary, verifier=judge), sample


def not_judged(uid: str, reason: R = R.IMAGE_ERROR) -> Session:
    """It ran well, and its verifier's image cannot be had: it is run anew."""
    uid, one, sample = ended(uid, R.VERIFIER_LOST, turns=3)
    judge = Running(0.0, None, Exit(2.0, reason=reason, detail="container verifier: ErrImagePull: 404"))
    return uid, replace(one, verifier=judge), sample


def refused(uid: str) -> Session:
    return ended(uid, R.ENGINE_ERROR, engine_reason="ModelNotServed", engine_error=NO_MODEL, engine_errors=3)


def turned_away(uid: str) -> Session:
    """The API server takes no such pod."""
    uid, one, sample = absent(uid, PSA)
    assert one.sandbox is not None
    assert one.sandbox.exit is not None
    exit_ = replace(one.sandbox.exit, refused=True)
    return uid, replace(one, sandbox=replace(one.sandbox, exit=exit_)), sample


def crashed(uid: str, words: str = IMPORT) -> Session:
    return ended(uid, R.AGENT_EXIT, detail=words)


RUNS = ("running", None, None)
AGENT = Hopeless("ProgramMissing", f"agent: {PATH}")
ALIKE = Hopeless("AgentsFailAlike", f"AgentExit {IMPORT}")
REFUSED = Hopeless("PodRefused", f"agent: {PSA}")
MODEL = Hopeless("ModelNotServed", NO_MODEL)


def verdict(
    sessions: Sequence[Session | tuple[str, None, None]],
    *,
    together: int = 2,
    total: int = 24,
    tasks: int = 12,
    more: bool = False,
) -> Hopeless | None:
    firsts = Firsts()
    for number, (uid, _, _) in enumerate(sessions):
        firsts = firsts.opened(Ref("shop", uid, number, 0).name, uid)
    for number, (uid, one, sample) in enumerate(sessions):
        if one is not None and sample is not None:
            firsts = firsts.ended(replace(one, ref=Ref("shop", uid, number, 0)), sample)
    return firsts.hopeless(together=together, total=total, tasks=tasks, more=more)


CASES: dict[str, tuple[list[Session | tuple[str, None, None]], Hopeless | None]] = {
    "nothing ran yet": ([], None),
    "a program that is not there": ([absent("a"), absent("a")], AGENT),
    "one that ended is not all that run at once": ([absent("a"), RUNS], None),
    "what was opened first still runs": ([RUNS, absent("a"), absent("b"), absent("c")], None),
    "what was opened later may still run": ([absent("a"), absent("a"), RUNS], AGENT),
    "a missing program as the agent's failure": (
        [absent("a", reason=R.AGENT_EXIT), absent("a", reason=R.AGENT_EXIT)],
        AGENT,
    ),
    "as a container runtime says it": (
        [absent("a", RUNC), absent("b", RUNC)],
        Hopeless("ProgramMissing", f"agent: {RUNC}"),
    ),
    "a machine without memory for another process may have some soon": (
        [absent("a", "python: Cannot allocate memory"), absent("b", "python: Cannot allocate memory")],
        None,
    ),
    "an image that cannot be pulled may be pushed": ([ended("a", R.IMAGE_ERROR), ended("b", R.IMAGE_ERROR)], None),
    "verifiers that their nodes do not take may be taken soon": (
        [not_judged("a", R.NODE_REFUSED), not_judged("b", R.NODE_REFUSED), not_judged("c", R.NODE_REFUSED)],
        None,
    ),
    "verifiers whose image cannot be had, of several tasks": (
        [not_judged("a"), not_judged("b"), not_judged("c")],
        Hopeless("NothingStarts", "verifier: ImageError container verifier: ErrImagePull: 404"),
    ),
    "of one task it may be its node's": ([not_judged("a"), not_judged("a"), not_judged("a")], None),
    "a verifier that starts is against it": (
        [not_judged("a"), not_judged("b"), ended("c", None, turns=2)],
        None,
    ),
    "an engine that is away comes back": (
        [ended("a", R.ENGINE_LOST), ended("b", R.ENGINE_ERROR, engine_reason="EngineUnavailable")],
        None,
    ),
    "what may pass by itself is neither for it nor against it": (
        [ended("a", R.ENGINE_LOST), refused("b"), ended("a", R.GATEWAY_LOST), refused("c")],
        MODEL,
    ),
    "a model that the engine does not serve": ([refused("a"), refused("b")], MODEL),
    "a replica that serves it is against it": ([ended("a", None, turns=1), refused("b"), refused("c")], None),
    "a turn before the refusal is against it": (
        [refused("a"), ended("b", R.ENGINE_ERROR, turns=1, engine_reason="ModelNotServed")],
        None,
    ),
    "two causes are no cause": ([absent("a"), refused("b"), absent("c")], None),
    "a judge that is not there, however well agents do": (
        [unjudged("a"), unjudged("b")],
        Hopeless("ProgramMissing", "verifier: judge.py: Permission denied"),
    ),
    "agents of three tasks that die of the same before a turn": ([crashed(uid) for uid in "aabc"], ALIKE),
    "agents of two tasks: those may be bad tasks": ([crashed(uid) for uid in "aaaabbbb"], None),
    "agents that left no word may have had causes of their own": ([crashed(uid, "") for uid in "abc"], None),
    "other words, other causes": ([crashed("a"), crashed("b"), crashed("c", "exit code 1: KeyError")], None),
    "agents that die after a turn are the model's trial": (
        [ended(uid, R.AGENT_EXIT, turns=1, detail=IMPORT) for uid in "abc"],
        None,
    ),
    "an exit with 1 before the first turn is no answer, where exit codes are rewards": (
        [ended(uid, R.ANSWER_WRONG, detail=IMPORT) for uid in "abc"],
        Hopeless("AgentsFailAlike", f"AnswerWrong {IMPORT}"),
    ),
    "wrong answers are answers": ([ended(uid, R.ANSWER_WRONG, turns=1, detail=IMPORT) for uid in "abc"], None),
    "agents that run out of time": ([ended(uid, R.SESSION_TIMEOUT) for uid in "abc"], None),
    "agents that end well without a turn": ([ended(uid, None) for uid in "abc"], None),
    "a pod that the API server refuses": ([turned_away("a"), turned_away("a")], REFUSED),
    "one of two that were begun is not all": ([turned_away("a"), RUNS], None),
    "one good session ends it for good": (
        [ended("a", None, turns=2), absent("b"), absent("c"), absent("d")],
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sessions", "wanted"), CASES.values(), ids=CASES)
def test_hopeless(sessions: list[Session], wanted: Hopeless | None) -> None:
    assert verdict(sessions) == wanted


def test_a_job_of_few_tasks_needs_no_three() -> None:
    assert verdict([crashed("a"), crashed("a")], total=2, tasks=1) == ALIKE
    assert verdict([crashed("a"), crashed("a")], total=2, tasks=1, more=True) is None, "others may come"
    assert verdict([absent("a")], total=1, tasks=1) == AGENT
    assert verdict([absent("a")], together=1) == AGENT


def test_of_refused_pods_those_of_one_group_suffice_for_no_other_is_begun() -> None:
    firsts = Firsts()
    found = []
    for number in range(4):
        firsts = firsts.opened(Ref("shop", "a", number, 0).name, "a")
    for number in range(4):
        _, one, sample = turned_away("a")
        firsts = firsts.ended(replace(one, ref=Ref("shop", "a", number, 0)), sample)
        found.append(firsts.hopeless(together=80, total=80, tasks=20, more=False, size=4))
    assert found == [None, None, None, REFUSED]


PROOFS: dict[str, tuple[Session, bool]] = {
    "a turn": (ended("a", R.AGENT_EXIT, turns=1), True),
    "a turn of one that infrastructure ended": (ended("a", R.EVICTED, turns=1), True),
    "a good end without a turn": (ended("a", None), True),
    "a pod that is refused is none": (turned_away("a"), False),
    "a program that is not there is none": (absent("a"), False),
    "an end in words before a turn is none": (crashed("a"), False),
    "nor is one without a word, though it may have causes of its own": (crashed("a", ""), False),
    "a model that is not served is none": (refused("a"), False),
    "an image that cannot be pulled is none": (ended("a", R.IMAGE_ERROR), False),
    "a verifier that is not there: agents are past their start": (unjudged("a"), True),
}


@pytest.mark.parametrize(("session", "proved"), PROOFS.values(), ids=PROOFS)
def test_what_proves_that_a_job_can_start(session: Session, proved: bool) -> None:
    uid, one, sample = session
    assert Firsts().opened(one.ref.name, uid).ended(one, sample).proved is proved
    assert Firsts(passed=True).ended(one, sample).proved is proved, "also when nothing else is asked any more"
    assert Firsts().somewhere().proved


def failed(*reasons: R | None, spent: int = 1) -> GroupObserved:
    """A group of which each sample ended so; `spent`: of the first, the others have one."""
    ends = [replace(ended_with(reason, 0, 0.0, SampleObserved()), detail="not found") for reason in reasons]
    return GroupObserved(uid="a", gateway="g", samples=(replace(ends[0], spent=spent), *ends[1:]))


WORDS = "no agent of the first 2 started: 2 ImageError: not found"
NOTHING: dict[str, tuple[list[GroupObserved], str]] = {
    "nothing was begun": ([], ""),
    "of each another attempt is left": ([failed(R.IMAGE_ERROR, R.IMAGE_ERROR)], ""),
    "those of one are spent: others are made of the same": (
        [failed(R.IMAGE_ERROR, R.IMAGE_ERROR, spent=4)],
        WORDS,
    ),
    "the most frequent cause is told": (
        [failed(R.START_FAILED, R.START_TIMEOUT, R.START_TIMEOUT, spent=4)],
        "no agent of the first 3 started: 2 StartTimeout: not found",
    ),
    "one was evicted: that is no start": ([failed(R.IMAGE_ERROR, R.EVICTED, spent=4)], ""),
    "a node did not take one, for the last time: another may": (
        [failed(R.NODE_REFUSED, R.IMAGE_ERROR, spent=4)],
        "",
    ),
    "one ended by itself": ([failed(R.IMAGE_ERROR, R.AGENT_EXIT, spent=4)], ""),
    "one is still tried": ([failed(R.IMAGE_ERROR, spent=4), group("b", "s")], ""),
}


@pytest.mark.parametrize(("groups", "why"), NOTHING.values(), ids=NOTHING)
def test_a_job_of_which_nothing_starts_is_given_up(groups: list[GroupObserved], why: str) -> None:
    found = nothing_starts(groups, want(groupSize=2).spec)
    assert found == (Hopeless("NothingStarts", why) if why else None)


def test_of_many_that_run_at_once_the_first_few_suffice() -> None:
    firsts: list[Session | tuple[str, None, None]] = [absent("a")] * FIRST
    assert verdict([*firsts, RUNS, RUNS], together=512, total=999) == AGENT
    assert verdict([*firsts[1:], RUNS], together=512, total=999) is None


def test_what_was_said_stays_whatever_they_come_to_that_are_stopped_for_it() -> None:
    firsts = Firsts()
    ends = [unjudged("a"), ended("b", R.ABORTED, turns=2), ended("c", None, turns=2)]
    for number, (uid, _, _) in enumerate(ends):
        firsts = firsts.opened(Ref("shop", uid, number, 0).name, uid)
    found = []
    for number, (uid, one, sample) in enumerate(ends):
        firsts = firsts.ended(replace(one, ref=Ref("shop", uid, number, 0)), sample)
        found.append(firsts.hopeless(together=1, total=3, tasks=3, more=False))
        firsts = replace(firsts, said=found[-1])
    assert found == [Hopeless("ProgramMissing", "verifier: judge.py: Permission denied")] * 3


def test_what_is_followed_is_bounded() -> None:
    firsts = Firsts()
    for number in range(KEPT_MAX + 1):
        firsts = firsts.opened(f"s{number}", "a")
    assert (firsts.passed, firsts.ends) == (True, {})


# -- what the planner makes of it -------------------------------------------------------------------------------------

WHY = Hopeless("ProgramMissing", f"agent: {PATH}")


def test_a_hopeless_job_stops_what_runs_and_starts_nothing() -> None:
    found = plan_job(want(parallelism=9, groupSize=2), seen(group("a", "i r"), fresh="b", hopeless=WHY), 1.0)
    stop = Stop(R.ABORTED, WHY.message)
    assert [one for one in found if not isinstance(one, WriteStatus)] == [StopAttempt(ref("a", 1), stop)]


def test_it_fails_with_its_cause_once_nothing_runs_and_its_groups_stay_open() -> None:
    """Whoever mends the cause goes on: a gateway that was told that a group is over takes no more of it."""
    (status,) = plan_job(want(groupSize=2), seen(group("a", "i u"), fresh="b", hopeless=WHY), 1.0)
    assert isinstance(status, WriteStatus)
    (failed,) = [one for one in status.status.conditions if one.type == JobCondition.FAILED]
    assert (failed.status, failed.reason, failed.message) == (ConditionStatus.TRUE, WHY.reason, WHY.message)
    running = job_status(want(groupSize=2), seen(group("a", "i r"), hopeless=WHY), 1.0)
    assert all(one.status is not ConditionStatus.TRUE for one in running.conditions if one.type == "Failed")
