"""Whatever is wrong with a body, the answer is a 400 that names the field."""

from __future__ import annotations

import json

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.gateway.protocols.openai_chat import OpenAIChat
from tests.gateway.protocols.bodies import VALID, spoilt

ADAPTER = OpenAIChat()
SPOILT = list(spoilt())
MESSAGE_CHARS_MAX = 300


def test_the_body_is_good_before_it_is_spoilt() -> None:
    request = ADAPTER.decode(json.dumps(VALID).encode(), {})
    assert (request.model, len(request.messages), request.n) == ("tiny", 4, 2)
    assert len(SPOILT) >= 200


@pytest.mark.parametrize(("_", "field", "body"), SPOILT, ids=[name for name, _, _ in SPOILT])
def test_refused(_: str, field: str, body: bytes) -> None:
    with pytest.raises(BadRequest) as seen:
        ADAPTER.decode(body, {})
    assert seen.value.field == field
    assert seen.value.status == 400
    said = json.loads(ADAPTER.error_body(seen.value))["error"]
    assert said["param"] == field
    assert said["type"] == "invalid_request_error"
    assert len(said["message"]) <= MESSAGE_CHARS_MAX, "a client's own bytes are not sent back at length"


UNDERSTOOD = {
    "null where a field may be left out": {
        name: None
        for name in VALID
        if name not in ("model", "messages", "top_logprobs")
    }
    | {"top_logprobs": None},
    "a field that nobody knows": {"frobnicate": {"deep": [1, {"a": None}]}},
    "fields that are known and do no harm": {
        "store": True, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "reasoning_effort": "high",
        "prompt_cache_key": "k", "client_metadata": {}, "include": [], "thinking": {"type": "enabled"},
        "context_management": {}, "prediction": {"type": "content", "content": "x"},
    },
    "refused fields that ask for nothing": {
        "logit_bias": {}, "audio": None, "functions": [], "guided_json": None, "min_tokens": 0, "ignore_eos": False,
        "chat_template": "", "modalities": [],
    },
    "bounds are inclusive": {
        "temperature": 2, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": -2, "frequency_penalty": 2,
        "repetition_penalty": 10, "seed": -(2**63), "n": 8, "top_logprobs": 20, "max_tokens": 1,
        "stop": ["x" * 256] * 16,
    },
}  # fmt: skip


@pytest.mark.parametrize("more", UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_understood(more: dict[str, object]) -> None:
    request = ADAPTER.decode(json.dumps(VALID | more).encode(), {})
    assert request.messages == ADAPTER.decode(json.dumps(VALID).encode(), {}).messages


def test_a_limit_beyond_32_bits_means_as_much_as_fits() -> None:
    request = ADAPTER.decode(json.dumps(VALID | {"max_tokens": 10**300}).encode(), {})
    assert request.sampling.max_tokens == 2**31 - 1


def test_of_a_key_given_twice_the_last_counts() -> None:
    """As in every JSON reader that clients are tested against."""
    body = b'{"model":"a","messages":[{"role":"user","content":"1","content":"2"}],"model":"b"}'
    request = ADAPTER.decode(body, {})
    assert (request.model, request.messages[0].text) == ("b", "2")
