"""What is said where nobody was given a reward."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandgate.contract.choices import RewardSource
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionState, SessionSummary, parse_termination
from sandgate.contract.status import JobCondition
from sandgate.operator.observed.pod_record import pod_seen
from sandgate.operator.plan.actions import SampleObserved, SampleTally
from sandgate.operator.plan.conditions import find
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.rewards import none_has_one
from sandgate.operator.plan.settling import ended_as
from sandgate.operator.plan.status import NO_TURN, job_status
from tests.operator.plans import seen, want
from tests.operator.pods import CREATED, ended, pod

HINT = (
    "no session has a reward: with reward.source agent the agent writes "
    '{"reward": n} to $SANDGATE_TERMINATION_LOG'
)
MESSAGES: dict[str, tuple[Any, str]] = {
    "nobody knows it": (None, ""),
    "nothing": (b"", "; the last message was empty"),
    "another field": (b'{"score": 1.0}', "; the last message had the keys: score"),
    "text": (b"done", "; the last message was no JSON object"),
    "a verdict that was cut": (
        b'{"reward": 1.0, "reward_info": {"log": "' + b"x" * 4096,
        "; the last message was cut at 4,096 bytes and so is no JSON",
    ),
    "a long text": (b"x" * 9999, "; the last message was no JSON object"),
    "no number": (b'{"reward": "1"}', "; the last message's reward is no finite number"),
    "NaN, which no JSON has and Python writes": (
        b'{"reward": NaN}',
        "; the last message's reward is no finite number",
    ),
    "more than a double holds": (b'{"reward": 1e400}', "; the last message's reward is no finite number"),
    "more digits than can be kept": (
        b'{"reward": ' + b"9" * 400 + b"}",
        "; the last message's reward is no finite number",
    ),
    "NaN in a field that is no reward": (b'{"score": NaN}', "; the last message had the keys: score"),
    "the text of an object": (b'"{\\"reward\\": 1}"', "; the last message was no JSON object"),
    "a list of NaN": (b"[NaN]", "; the last message was no JSON object"),
    "no field": (b"{}", "; the last message was an empty object"),
    "names that would move a terminal": (
        json.dumps({"a\x1b[2J\n": 1, "x" * 99: 2}).encode(),
        f"; the last message had the keys: a[2J, {'x' * 40}",
    ),
    "many fields": (
        json.dumps({str(n): n for n in range(9)}).encode(),
        "; the last message had the keys: 0, 1, 2, 3, 4, 5, 6, 7, ...",
    ),
}


@pytest.mark.parametrize(("raw", "text"), MESSAGES.values(), ids=MESSAGES)
def test_what_the_last_agent_left_instead_is_said(raw: bytes | None, text: str) -> None:
    last = None if raw is None else parse_termination(raw)
    assert none_has_one(RewardSource.AGENT, 0, 4, last) == HINT + text


LONG = json.dumps({"reward": 1.0, "reward_info": {"log": "é" * 1200}}, ensure_ascii=False)
CUT = (
    "; the last message was cut at {} bytes, its share of what Kubernetes keeps of a pod's containers together,"
    " and so is no JSON"
)
SHARES: dict[str, tuple[int, int, str]] = {
    "three containers have 4,096 bytes each": (1, 2, ""),
    "four have 3,072": (2, 2, ""),
    "six have 2,048": (3, 3, CUT.format("2,048")),
    "twelve have 1,024": (6, 6, CUT.format("1,024")),
}


@pytest.mark.parametrize(("containers", "inits", "text"), SHARES.values(), ids=SHARES)
def test_a_message_that_its_pod_was_too_large_for_is_known(containers: int, inits: int, text: str) -> None:
    """As a kubelet cuts it: within a character, maybe."""
    share = min(4096, 12 * 1024 // (containers + inits))
    kept = LONG.encode()[:share].decode("utf-8", "replace")
    body = pod("Succeeded", ended(0, message=kept))
    body["spec"] |= {
        "containers": [{"name": "agent"}, *({"name": f"mesh-{n}"} for n in range(containers - 1))],
        "initContainers": [{"name": f"init-{n}"} for n in range(inits)],
    }
    end = pod_seen(body, CREATED + 50).running.exit
    assert end is not None
    if text:
        assert none_has_one(RewardSource.AGENT, 0, 4, end.message) == HINT + text
        assert end.message.reward_info == {"/dropped": f"the message was cut at {share:,} bytes"}
    else:
        assert end.message.reward == 1.0


@pytest.mark.parametrize(
    ("source", "scored", "unscored"),
    [(RewardSource.AGENT, 1, 3), (RewardSource.AGENT, 0, 0), (RewardSource.TRAINER, 0, 4)],
    ids=["one has a reward", "none ended well", "a trainer gives them"],
)
def test_nothing_is_said_where_rewards_are_given_or_come_later(
    source: RewardSource, scored: int, unscored: int
) -> None:
    assert none_has_one(source, scored, unscored) == ""


CRASH = FruitlessSamples.of([("AgentExit", "exit code 2")])
TALLIES: dict[str, tuple[SampleTally, bool, str]] = {
    "no reward at all": (SampleTally(ended=3, failed=1, fruitless=CRASH, unscored=2), False, HINT),
    "one reward": (SampleTally(ended=3, failed=1, fruitless=CRASH, unscored=1), False, ""),
    "no turn at all": (
        SampleTally(ended=3, failed=1, fruitless=CRASH, unscored=2, rowless=2),
        False,
        NO_TURN,
    ),
    "one turn": (SampleTally(ended=3, failed=1, fruitless=CRASH, rowless=1), False, ""),
    "an agent elsewhere may have taken one": (SampleTally(ended=2, rowless=2), True, ""),
    "an agent elsewhere may have one": (SampleTally(ended=2, unscored=2), True, ""),
}


@pytest.mark.parametrize(("tally", "elsewhere", "message"), TALLIES.values(), ids=TALLIES)
def test_the_condition_complete_says_it_once(tally: SampleTally, elsewhere: bool, message: str) -> None:
    over = seen(tally=tally, total=tally.ended, elsewhere=elsewhere)
    wanted = want(reward={"source": "agent"})
    status = job_status(wanted, over, 9.0)
    complete = find(status, JobCondition.COMPLETE)
    assert complete is not None
    assert (complete.reason, complete.message) == ("AllEnded", message)
    restarted = seen(tally=SampleTally(ended=tally.ended), total=tally.ended, status=status)
    assert find(job_status(wanted, restarted, 99.0), JobCondition.COMPLETE) == complete, "as it was"
    assert "reward" not in str(job_status(want(), over, 9.0).conditions), "exit codes are rewards"


ENDS: dict[str, tuple[dict[str, Any], bool]] = {
    "well, without one": ({}, True),
    "well, with one": ({"reward": 0.0}, False),
    "by a limit, without one": (
        {"failure_reason": FailureReason.TURN_LIMIT.value, "failure_class": "policy"}, True,
    ),
    "the agent failed": ({"failure_reason": FailureReason.AGENT_EXIT.value, "failure_class": "agent"}, False),
    "its gateway knows no more": ({"retired": True}, False),
}  # fmt: skip


@pytest.mark.parametrize(("members", "unscored"), ENDS.values(), ids=ENDS)
def test_a_sample_that_wants_a_reward_is_known(members: dict[str, Any], unscored: bool) -> None:
    said = SessionSummary(session_id="a", state=SessionState.FINALIZED, **members)
    assert ended_as(said, SampleObserved()).unscored is unscored
