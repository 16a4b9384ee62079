"""Whatever is wrong with a body, the answer is a 400 that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.protocols.anthropic_blocks import FAILED
from sandgate.gateway.protocols.base import Adapter
from sandgate.gateway.protocols.openai_sampling import NotTaken, refused_fields
from sandgate.gateway.protocols.table import ADAPTERS
from tests.gateway.protocols.bodies import CHAT, VALID, Spoiling
from tests.gateway.protocols.golden import CHAT as ADAPTER
from tests.gateway.protocols.golden import MESSAGES as ANTHROPIC
from tests.gateway.protocols.messages_bodies import MESSAGES
from tests.gateway.protocols.messages_bodies import VALID as SAID

DIALECTS: dict[str, tuple[Adapter, Spoiling]] = {"chat": (ADAPTER, CHAT), "messages": (ANTHROPIC, MESSAGES)}
SPOILT = [
    pytest.param(adapter, field, body, id=f"{dialect}: {name}")
    for dialect, (adapter, spoiling) in DIALECTS.items()
    for name, field, body in spoiling.spoilt()
]
MESSAGE_CHARS_MAX = 300


def test_the_body_is_good_before_it_is_spoilt() -> None:
    request = ADAPTER.decode(json.dumps(VALID).encode(), {})
    assert (request.model, len(request.messages), request.n) == ("tiny", 4, 2)
    said = ANTHROPIC.decode(json.dumps(SAID).encode(), {})
    assert (said.model, len(said.messages), said.tool_choice.name) == ("tiny", 4, "search")
    for _, spoiling in DIALECTS.values():
        assert len(list(spoiling.spoilt())) >= 200


@pytest.mark.parametrize(("adapter", "field", "body"), SPOILT)
def test_refused(adapter: Adapter, field: str, body: bytes) -> None:
    with pytest.raises(BadRequest) as seen:
        adapter.decode(body, {})
    assert seen.value.field == field
    assert seen.value.status == 400
    said = json.loads(adapter.error_body(seen.value))["error"]
    assert said["type"] == "invalid_request_error"
    if adapter is ADAPTER:
        assert said["param"] == field
    else:  # it has no place for the field but its words
        assert field == "body" or field in said["message"]
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
        "chat_template": "", "modalities": [], "documents": [], "vllm_xargs": None, "watermarking": False, "regex": "",
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


def test_responses_are_sampled_as_they_ask() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "repetition_penalty": 1.1, "seed": 7,
    }  # fmt: skip
    body = {"model": "m", "input": "x", "max_output_tokens": 9, "stop": "END", **asked}
    request = ADAPTERS["/responses"].decode(json.dumps(body).encode(), {})
    assert request.sampling == SamplingParams(max_tokens=9, stop=("END",), **asked)


NO_HARM: dict[str, dict[str, object]] = {
    "null where a field may be left out": {name: None for name in SAID if name not in ("model", "messages")},
    "a field that nobody knows": {"frobnicate": {"deep": [1, {"a": None}]}},
    "fields that are known and do no harm": {
        "metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}, "betas": ["x"],
        "cache_control": {"type": "ephemeral"}, "inference_geo": "eu", "speed": "fast",
    },
    "refused fields that ask for nothing": {"mcp_servers": [], "container": None, "thread": None},
    "bounds are inclusive": {
        "temperature": 2, "top_p": 1, "top_k": -1, "max_tokens": 1, "stop_sequences": ["x" * 256] * 16,
    },
}  # fmt: skip


def _messages(*blocks: dict[str, object]) -> dict[str, object]:
    """A request of these blocks of the user, after a call."""
    call = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}]
    return SAID | {"messages": [*said, {"role": "user", "content": list(blocks)}]}


def _document(**more: object) -> dict[str, object]:
    source = {"type": "text", "media_type": "text/plain", "data": "prices"}
    return {"type": "document", "source": source, **more}


_RESULT = {"type": "tool_result", "tool_use_id": "c1"}
SHOWN: dict[str, tuple[dict[str, object], str]] = {
    "a failure without words": (_RESULT | {"is_error": True}, FAILED),
    "a failure with words": (_RESULT | {"is_error": True, "content": "no such file"}, "no such file"),
    "a success without words": (_RESULT | {"is_error": False}, ""),
    "tools that a search of tools found": (
        _RESULT | {"content": [{"type": "tool_reference", "tool_name": one} for one in ("read", "write")]},
        "Tool available: read\nTool available: write",
    ),
    "a document's title and context": (_document(title="May", context="of the shop"), "May\nof the shop\nprices"),
    "a document of no title": (_document(title=None, context="", citations={"enabled": False}), "prices"),
}  # fmt: skip


@pytest.mark.parametrize(("block", "text"), SHOWN.values(), ids=SHOWN)
def test_what_the_model_is_shown_of_a_block(block: dict[str, object], text: str) -> None:
    assert ANTHROPIC.decode(json.dumps(_messages(block)).encode(), {}).messages[-1].text == text


def test_a_refusal_without_content_is_what_was_said() -> None:
    said = {"role": "assistant", "content": None, "refusal": "I will not."}
    body = VALID | {"messages": [{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}]}
    assert ADAPTER.decode(json.dumps(body).encode(), {}).messages[1].text == "I will not."


GENERATE: dict[str, object] = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}
TEXTS: dict[str, object] = {"model": "tiny", "prompt": "x"}
_TWO_TOOLS = [
    {"type": "function", "name": "a__b"},
    {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
]
_ONE_NAME = [{"type": "function", "name": "x"}, {"type": "custom", "name": "x"}]
_FILE = {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}
NAMED: dict[str, tuple[str, dict[str, object], str]] = {
    "chat: a prompt that is cut": ("openai_chat", VALID | {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    "chat: no turn to sample": ("openai_chat", VALID | {"add_generation_prompt": False}, "add_generation_prompt"),
    "chat: the stop string in the text": (
        "openai_chat", VALID | {"include_stop_str_in_output": True}, "include_stop_str_in_output",
    ),
    "chat: an end of thinking": ("openai_chat", VALID | {"thinking_token_budget": 9}, "thinking_token_budget"),
    "completions: a prompt that is cut": (
        "openai_completions", TEXTS | {"truncate_prompt_tokens": -1}, "truncate_prompt_tokens",
    ),
    "token requests: a prompt that is cut": (
        "token_generate", GENERATE | {"sampling_params": {"truncate_prompt_tokens": 1}},
        "sampling_params.truncate_prompt_tokens",
    ),
    "token requests: an end of thinking": (
        "token_generate", GENERATE | {"sampling_params": {"thinking_token_budget": 1}},
        "sampling_params.thinking_token_budget",
    ),
    "messages: citations": (
        "anthropic_messages", _messages(_document(citations={"enabled": True})),
        "messages[2].content[0].citations.enabled",
    ),
    "messages: a search result": (
        "anthropic_messages", _messages({"type": "search_result", "source": "https://x", "title": "t", "content": []}),
        "messages[2].content[0].type",
    ),
    "messages: an image whose source is text": (
        "anthropic_messages", _messages({"type": "image", "source": "https://x"}), "messages[2].content[0].source",
    ),
    "responses: biased tokens": (
        "openai_responses", {"model": "m", "input": "x", "logit_bias": {"5": -100}}, "logit_bias",
    ),
    "responses: a form under vLLM's name": (
        "openai_responses", {"model": "m", "input": "x", "structured_outputs": {"json": {}}}, "structured_outputs",
    ),
    "responses: what was said before, under vLLM's name": (
        "openai_responses", {"model": "m", "input": "x", "previous_input_messages": [{"role": "user"}]},
        "previous_input_messages",
    ),
    "responses: an earlier response itself": (
        "openai_responses", {"model": "m", "input": "x", "previous_response": {"id": "resp_1"}}, "previous_response",
    ),
    "responses: a penalty beyond its bounds": (
        "openai_responses", {"model": "m", "input": "x", "presence_penalty": 3}, "presence_penalty",
    ),
    "responses: two tools under one shown name": (
        "openai_responses", {"model": "m", "input": "x", "tools": _TWO_TOOLS}, "tools[1].tools[0].name",
    ),
    "responses: the same, the other way": (
        "openai_responses", {"model": "m", "input": "x", "tools": _TWO_TOOLS[::-1]}, "tools[1].name",
    ),
    "responses: a function and a custom tool of one name": (
        "openai_responses", {"model": "m", "input": "x", "tools": _ONE_NAME}, "tools[1].name",
    ),
    "responses: an image that is kept elsewhere": (
        "openai_responses", {"model": "m", "input": [_FILE]}, "input[0].content[0].file_id",
    ),
}  # fmt: skip


BODIES: dict[str, dict[str, object]] = {
    "openai_chat": VALID,
    "openai_responses": {"model": "m", "input": "x"},
    "anthropic_messages": SAID,
}
ASKS: dict[str, object] = {name: [{"a": 1}] for name in refused_fields(NotTaken, frozenset())}
ASKS |= {"add_generation_prompt": False, "min_tokens": 5, "chat_template": "{{x}}", "ignore_eos": True}


@pytest.mark.parametrize("dialect", BODIES)
def test_what_one_dialect_refuses_no_other_ignores(dialect: str) -> None:
    adapter = next(one for one in ADAPTERS.values() if one.name == dialect)
    assert {"stop_token_ids", "thinking_token_budget", "truncate_prompt_tokens", "vllm_xargs"} <= ASKS.keys()
    for field, value in ASKS.items():
        with pytest.raises(BadRequest) as seen:
            adapter.decode(json.dumps(BODIES[dialect] | {field: value}).encode(), {})
        assert seen.value.field == field
    nothing = dict.fromkeys(ASKS, None)
    assert adapter.decode(json.dumps(BODIES[dialect] | nothing).encode(), {}).model


BEGUN: dict[str, dict[str, object]] = {
    "a message that is under way": {"role": "assistant", "content": "Dear ", "status": "in_progress"},
    "a message that was cut": {
        "type": "message",
        "role": "assistant",
        "content": "Dear ",
        "status": "incomplete",
    },
}


@pytest.mark.parametrize("item", BEGUN.values(), ids=BEGUN)
def test_an_answer_that_the_client_begins_is_refused_and_a_cut_one_goes_on(item: dict[str, object]) -> None:
    adapter = ADAPTERS["/responses"]
    user = {"role": "user", "content": "x"}
    with pytest.raises(BadRequest) as seen:
        adapter.decode(json.dumps({"model": "m", "input": [user, item]}).encode(), {})
    assert seen.value.field == "input[1].status"
    gone_on = adapter.decode(json.dumps({"model": "m", "input": [user, item, user]}).encode(), {})
    assert [message.role for message in gone_on.messages] == ["user", "assistant", "user"]
    done = item | {"status": "completed"}
    assert len(adapter.decode(json.dumps({"model": "m", "input": [user, done]}).encode(), {}).messages) == 2


def test_a_thought_that_was_cut_comes_back_as_its_agents_loop_sends_it() -> None:
    user = {"role": "user", "content": "x"}
    text = [{"type": "reasoning_text", "text": "hm"}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": text, "status": "incomplete"}
    request = ADAPTERS["/responses"].decode(json.dumps({"model": "m", "input": [user, item]}).encode(), {})
    assert [message.role for message in request.messages] == ["user", "assistant"]
    assert request.messages[-1].reasoning == "hm"


@pytest.mark.parametrize("more", [{}, {"encrypted_content": "gAAAA"}], ids=["of nothing", "of another house"])
def test_a_thought_that_cannot_be_read_is_no_turn(more: dict[str, object]) -> None:
    user = {"role": "user", "content": "x"}
    body = {"model": "m", "input": [user, {"type": "reasoning", "id": "rs_1", "summary": [], **more}, user]}
    request = ADAPTERS["/responses"].decode(json.dumps(body).encode(), {})
    assert [message.role for message in request.messages] == ["user", "user"]


@pytest.mark.parametrize(("dialect", "body", "field"), NAMED.values(), ids=NAMED)
def test_what_cannot_be_honoured_is_refused_by_name(
    dialect: str, body: dict[str, object], field: str
) -> None:
    adapter = next(one for one in ADAPTERS.values() if one.name == dialect)
    with pytest.raises(BadRequest) as seen:
        adapter.decode(json.dumps(body).encode(), {})
    assert seen.value.field == field
    assert field.rpartition(".")[2] in str(seen.value)


@pytest.mark.parametrize("more", NO_HARM.values(), ids=NO_HARM)
def test_understood_as_messages(more: dict[str, object]) -> None:
    request = ANTHROPIC.decode(json.dumps(SAID | more).encode(), {})
    good = ANTHROPIC.decode(json.dumps(SAID | {"system": (SAID | more)["system"]}).encode(), {})
    assert request.messages == good.messages


@pytest.mark.parametrize(("adapter", "valid"), [(ADAPTER, VALID), (ANTHROPIC, SAID)], ids=DIALECTS)
def test_a_limit_beyond_32_bits_means_as_much_as_fits(adapter: Adapter, valid: dict[str, object]) -> None:
    request = adapter.decode(json.dumps(valid | {"max_tokens": 10**300}).encode(), {})
    assert request.sampling.max_tokens == 2**31 - 1


@pytest.mark.parametrize("adapter", [ADAPTER, ANTHROPIC], ids=DIALECTS)
def test_of_a_key_given_twice_the_last_counts(adapter: Adapter) -> None:
    """As in every JSON reader that clients are tested against."""
    body = b'{"model":"a","messages":[{"role":"user","content":"1","content":"2"}],"model":"b"}'
    request = adapter.decode(body, {})
    assert (request.model, request.messages[0].text) == ("b", "2")


INPUTS = {
    "spaces and escapes": (b'{ "a" :\t"\\u00e9\\/" }', '{"a":"é/"}'),
    "of a key given twice the last counts": (b'{"a":1,"a":2}', '{"a":2}'),
    "numbers keep their kind": (b'{"a":7.0,"c":1' + b"0" * 30 + b"}", '{"a":7.0,"c":1' + "0" * 30 + "}"),
    "a number beyond doubles stays as it is": (b'{ "a":1e400}', '{ "a":1e400}'),
    "what was no object is its text again": (b'{"_unparsed": "7 kiwi"}', "7 kiwi"),
    "an argument of that name": (b'{"_unparsed":"x","a":1}', '{"_unparsed":"x","a":1}'),
    "a value of that name that is no text": (b'{"_unparsed":[1]}', '{"_unparsed":[1]}'),
    "an empty object": (b"{}", "{}"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "kept"), INPUTS.values(), ids=INPUTS)
def test_the_input_of_a_call(given: bytes, kept: str) -> None:
    said = json.dumps(SAID).encode().replace(b'{"q": "kiwi"}', given)
    (call,) = ANTHROPIC.decode(said, {}).messages[2].tool_calls
    assert call.arguments == kept
