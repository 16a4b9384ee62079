"""What exit codes, signals and hangs are worth where `reward.source` is exitCode: a row is an end, its name what must
hold. (tests/adversary has real agents that try to be taken for better ones.)"""

from __future__ import annotations

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RewardSource, RolloutJobSpec
from sandgate.operator.plan.actions import Action, SealSession, SessionObserved, Stop
from sandgate.operator.plan.session import plan_session
from tests.operator.plans import TRAINER, VERIFIER, after, ended, said, scored, seal, spec, timed_out, told

R = FailureReason
KEPT = "no   disk" + "x" * 502 + "…"
"""Of a line that a terminal, a journal or a status would not take."""

CODES: dict[str, tuple[RolloutJobSpec, SessionObserved, list[Action]]] = {
    "exit 0 is a good end": (spec(), after(ended()), scored(0, True)),
    "exit 1 is a wrong answer: the policy's": (
        spec(),
        after(ended(1, detail="wanted 7 kiwi")),
        seal(
            R.ANSWER_WRONG,
            "exit code 1: wanted 7 kiwi",
            reward=0.0,
            reward_info={"exit_code": 1} | told(detail="wanted 7 kiwi"),
        ),
    ),
    "with a traceback too, and it says so": (
        spec(),
        after(ended(1, detail="ValueError: x", traceback=True)),
        seal(
            R.ANSWER_WRONG,
            "exit code 1 with a traceback: ValueError: x",
            reward=0.0,
            reward_info={"exit_code": 1} | told(detail="ValueError: x", traceback=True),
        ),
    ),
    **{
        f"exit {code} is the agent's": (
            spec(),
            after(ended(code, detail="no disk")),
            seal(
                R.AGENT_EXIT,
                f"exit code {code}: no disk",
                reward=0.0,
                reward_info={"exit_code": code} | told(detail="no disk"),
            ),
        )
        for code in (2, 3, 126, 127, 255)
    },
    "where something else gives the reward, exit 1 is the agent's as any other": (
        spec(**TRAINER),
        after(ended(1, detail="ValueError: x")),
        seal(R.AGENT_EXIT, "exit code 1: ValueError: x"),
    ),
    "a signal is the agent's, and has a name": (
        spec(),
        after(ended(None, signal=11, detail="panic")),
        seal(
            R.AGENT_SIGNAL,
            "killed by SIGSEGV: panic",
            reward=0.0,
            reward_info={"exit_code": None} | told("SIGSEGV", "panic"),
        ),
    ),
    "whatever gives the reward": (
        spec(**TRAINER),
        after(ended(None, signal=9)),
        seal(R.AGENT_SIGNAL, "killed by SIGKILL"),
    ),
    "a program that is missing is the agent's": (
        spec(),
        after(ended(None, reason=R.AGENT_MISSING, detail="pythonx is not on PATH")),
        seal(
            R.AGENT_MISSING,
            "pythonx is not on PATH",
            reward=0.0,
            reward_info={"exit_code": None} | told(detail="pythonx is not on PATH"),
        ),
    ),
    "there is nothing to verify of it": (
        spec(**VERIFIER),
        after(ended(None, reason=R.AGENT_MISSING, detail="pythonx is not on PATH")),
        seal(R.AGENT_MISSING, "pythonx is not on PATH"),
    ),
    "what it wrote is kept as one line that can be stored": (
        spec(),
        after(ended(3, detail="\x1b[31mno\x00 \ud800disk\x1b[0m" + "x" * 9_999)),
        seal(
            R.AGENT_EXIT,
            "exit code 3: " + KEPT,
            reward=0.0,
            reward_info={"exit_code": 3} | told(detail=KEPT),
        ),
    ),
    "as is why it never ran": (
        spec(),
        after(ended(None, reason=R.START_FAILED, detail="init container clone: a\0b")),
        seal(R.START_FAILED, "init container clone: a b"),
    ),
    "also if it takes its stop for a success": (
        spec(),
        after(ended(0, at=101.5), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        timed_out("too long"),
    ),
    "also by a clock that differs by some seconds": (
        spec(),
        after(ended(0, at=92.0), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        timed_out("too long"),
    ),
    "or by any, where its node says that it was stopped": (
        spec(),
        after(ended(0, at=41.0, stopped=True), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        timed_out("too long"),
    ),
    "an end that was well before its time was up counts, however late it was seen": (
        spec(),
        after(ended(0, at=41.0), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        scored(0, True),
    ),
    "as a wrong one does": (
        spec(),
        after(ended(1, at=41.0), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "one that its node ended is its node's, stopped or not": (
        spec(),
        after(ended(None, at=41.0, reason=R.NODE_LOST), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        timed_out("too long"),
    ),
    "a POST to /complete makes a hang no success where the exit is the end": (
        spec(),
        after(
            ended(None, signal=15, at=101.5),
            said("complete", turns=1),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        timed_out("too long"),
    ),
    "nor where the trainer gives the reward": (
        spec(**TRAINER),
        after(
            ended(None, signal=15, at=101.5),
            said("complete", turns=1),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        seal(R.SESSION_TIMEOUT, "too long"),
    ),
    "nor does it change a code": (
        spec(),
        after(ended(1), said("complete", turns=1, complete_info={"reward": 1.0})),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "nor a signal": (
        spec(),
        after(ended(None, signal=9), said("complete", turns=1, complete_info={"exit_code": 0})),
        seal(
            R.AGENT_SIGNAL,
            "killed by SIGKILL",
            reward=0.0,
            reward_info={"exit_code": None} | told("SIGKILL"),
        ),
    ),
    "a stop that this version cannot read is no completion": (
        spec(),
        after(ended(0), said("complete", turns=1), stop=Stop(None, "Meteor")),
        seal(R.ABORTED, "Meteor"),
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "actions"), CODES.values(), ids=CODES)
def test_how_a_session_ended(
    wanted: RolloutJobSpec, observed: SessionObserved, actions: list[Action]
) -> None:
    assert plan_session(wanted, observed, 30.0) == actions


def test_only_an_exit_code_0_that_was_seen_is_a_reward_of_1() -> None:
    """The law behind the table, for rewards by exit code."""
    by_code = [
        (seen, one.outcome)
        for wanted, seen, actions in CODES.values()
        for one in actions
        if isinstance(one, SealSession) and wanted.reward.source is RewardSource.EXIT_CODE
    ]
    right = [seen.sandbox.exit for seen, outcome in by_code if outcome.reward and seen.sandbox]
    assert len(by_code) > 10
    assert right
    assert all(end is not None and (end.code, end.signal) == (0, None) for end in right)
