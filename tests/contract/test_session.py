"""What is said about sessions: bodies, handles without keys in sight, outcomes, termination messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureReason
from sandgate.contract.session import (
    DETAIL_CHARS_MAX,
    OUTCOME_BYTES_MAX,
    SessionHandle,
    SessionOutcome,
    SessionSpec,
    SessionState,
    SessionSummary,
    TerminationMessage,
    finite,
    parse_termination,
    termination_of,
    termination_text,
)
from sandgate.contract.status import MESSAGE_CHARS_MAX

HANDLE = {
    "session_id": "s",
    "base_url": "http://g/sessions/s/v1",
    "anthropic_base_url": "http://g/sessions/s",
    "complete_url": "http://g/sessions/s/complete",
    "reward_url": "http://g/v1/sessions/s/reward",
    "api_key": "sk-sg-agent",
    "reward_key": "sk-sg-reward",
    "expires_at": 5,
}


def test_a_handle_never_shows_its_keys() -> None:
    handle = SessionHandle.of(HANDLE)
    assert (handle.api_key, handle.reward_key, handle.expires_at) == ("sk-sg-agent", "sk-sg-reward", 5.0)
    assert "sk-sg" not in repr(handle)


@pytest.mark.parametrize("name", HANDLE)
def test_a_handle_without_a_field_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        SessionHandle.of({key: value for key, value in HANDLE.items() if key != name})
    assert refused.value.field == name


def test_a_spec_says_only_what_it_has_to_say() -> None:
    assert SessionSpec(session_id="s", job="j", sample_index=0).body() == {
        "session_id": "s",
        "sample_index": 0,
        "group_size": 1,
        "job": "j",
        "attempt": 0,
        "reward_source": "trainer",
    }


def test_a_summary_ignores_what_a_newer_gateway_adds() -> None:
    said = SessionSummary.of({"session_id": "s", "state": "complete", "turns": 3, "reward": None, "new": 1})
    assert (said.state, said.turns, said.reward, said.state.ended) == (SessionState.COMPLETE, 3, None, False)


@pytest.mark.parametrize(
    "body", [[], None, {"state": "open"}, {"session_id": "s"}, {"session_id": "s", "state": "x"}]
)
def test_what_is_no_summary_is_refused(body: Any) -> None:
    with pytest.raises(InvalidBody):
        SessionSummary.of(body)


def test_an_outcome_names_class_and_reason_and_is_bounded() -> None:
    body = SessionOutcome(failure_reason=FailureReason.EVICTED, detail="x" * 9999).body()
    assert body["outcome"]["failure_class"] == "infra"
    assert body["outcome"]["failure_reason"] == "Evicted"
    assert len(body["outcome"]["detail"]) == DETAIL_CHARS_MAX
    assert body["outcome"]["complete"] is False
    assert "reward" not in body


def test_a_good_outcome_carries_its_reward() -> None:
    body = SessionOutcome(reward=0.0, reward_info={"a": 1}, discount=0.9).body()
    assert body == {
        "outcome": {"complete": True},
        "trajectories": False,
        "reward": 0.0,
        "reward_info": {"a": 1},
        "discount": 0.9,
    }


def test_an_outcome_discounts_what_others_gave() -> None:
    assert SessionOutcome(discount=0.9).body() == {
        "outcome": {"complete": True},
        "trajectories": False,
        "discount": 0.9,
    }
    assert "discount" not in SessionOutcome().body(), "as it is without one"


def test_every_reason_has_a_class() -> None:
    assert FAILURE_CLASS.keys() == set(FailureReason)


MESSAGES = {
    "an empty termination message": (b"", TerminationMessage()),
    "a reward with info": (
        b'{"reward": 1, "reward_info": {"a": 2}}',
        TerminationMessage(1.0, {"a": 2}, {"reward": 1, "reward_info": {"a": 2}}),
    ),
    "a text is a text": (b"done\n", TerminationMessage(value="done")),
    "a bare number is no reward": (b"0.5", TerminationMessage(value=0.5)),
    "true is no reward": (b'{"reward": true}', TerminationMessage(None, {}, {"reward": True})),
    "a reward that is not finite is none, and the message no JSON that anybody can keep": (
        b'{"reward": 1e999}',
        TerminationMessage(None, {}, '{"reward": 1e999}'),
    ),
    "info that is no object is left out": (
        b'{"reward": 2, "reward_info": 3}',
        TerminationMessage(2.0, {}, {"reward": 2, "reward_info": 3}),
    ),
}


@pytest.mark.parametrize(("raw", "message"), MESSAGES.values(), ids=MESSAGES)
def test_termination_messages(raw: bytes, message: TerminationMessage) -> None:
    assert parse_termination(raw) == message


@given(raw=st.binary(max_size=2 * OUTCOME_BYTES_MAX))
def test_any_termination_message_is_read_without_an_error(raw: bytes) -> None:
    message = parse_termination(raw)
    assert message.reward is None or finite(message.reward) == message.reward


AS_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["", "{}", "1", "\0"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["reward", "reward_info", "x"]), inner),
    max_leaves=8,
)


@given(raw=st.binary(max_size=99) | st.builds(lambda value: json.dumps(value).encode(), AS_JSON))
@example(raw=b'"{\\"reward\\": 1}"')
@example(raw=b"[" + b"1e22," * 800 + b"1]")
@example(raw=b"\1" * OUTCOME_BYTES_MAX)
@example(raw=b"\0" * OUTCOME_BYTES_MAX)
@example(raw=b"{" * OUTCOME_BYTES_MAX)
def test_a_message_that_is_kept_as_text_is_the_same_when_it_is_read(raw: bytes) -> None:
    message = parse_termination(raw)
    text = termination_text(message)
    assert "\0" not in text
    assert len(text) <= MESSAGE_CHARS_MAX
    assert termination_of(text, message.cut) == message


def test_only_what_kubernetes_keeps_is_read() -> None:
    padded = b'{"reward": 1}' + b" " * OUTCOME_BYTES_MAX + b"x"
    assert parse_termination(padded).reward == 1.0
    assert parse_termination(b"[" * 4000).reward is None
