"""OpenAI's own SDK reads our bytes into its types. The SDK and its HTTP client are real; only the socket is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sandgate.contract import errors
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.protocols.base import ModelNotFound
from sandgate.gateway.protocols.openai_chat_out import finish_reason
from tests.gateway.protocols.golden import CHAT, Case, cases


def client(status: int, content: bytes, kind: str) -> openai.OpenAI:
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(status, content=content, headers={"content-type": kind})
    )
    return openai.OpenAI(
        api_key="k", base_url="http://gateway/v1", max_retries=0, http_client=httpx2.Client(transport=answer)
    )


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], **more)


@pytest.fixture(params=cases(CHAT), ids=lambda folder: folder.name)
def case(request: pytest.FixtureRequest) -> Case:
    folder: Path = request.param
    return Case(folder)


def test_json(case: Case) -> None:
    with client(200, (case.folder / "response.json").read_bytes(), "application/json") as sdk:
        answer: ChatCompletion = ask(sdk)
    ChatCompletion.model_validate(
        answer.model_dump(), strict=False
    )  # the SDK itself constructs without checking
    assert answer.id == "chatcmpl-turn0"
    assert answer.usage is not None
    assert answer.usage.total_tokens == case.usage.prompt + case.usage.completion
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == case.usage.cached
    for at, (told, choice) in enumerate(zip(answer.choices, case.choices, strict=True)):
        assert (told.message.content or "") == choice.reply.text
        assert (getattr(told.message, "reasoning_content", None) or "") == choice.reply.reasoning
        assert [one.id for one in told.message.tool_calls or ()] == [
            call_id(f"turn{at}", index) for index in range(len(choice.reply.tool_calls))
        ]
        assert (
            tuple(
                ReplyCall(one.function.name, one.function.arguments)
                for one in told.message.tool_calls or ()
                if one.type == "function"
            )
            == choice.reply.tool_calls
        )
        assert told.finish_reason == finish_reason(choice)
        assert (told.logprobs is not None) == (choice.tokens is not None)
        if told.logprobs and told.logprobs.content and choice.tokens:
            assert [one.logprob for one in told.logprobs.content] == list(choice.tokens.logprobs)


def collected(chunks: Iterator[ChatCompletionChunk], choices: int) -> list[dict[str, Any]]:
    """What a client that adds up deltas ends with, per choice."""
    out: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "reasoning_content": "", "calls": [], "finish": None, "logprobs": []}
        for _ in range(choices)
    ]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=False)
        for choice in chunk.choices:
            one = out[choice.index]
            one["content"] += choice.delta.content or ""
            for name in ("reasoning", "reasoning_content"):
                one[name] += getattr(choice.delta, name, None) or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index == len(one["calls"]):
                    assert call.type == "function"
                    one["calls"].append([call.id, call.function.name, ""])
                one["calls"][call.index][2] += call.function.arguments or ""
            if choice.logprobs:
                one["logprobs"] += [token.logprob for token in choice.logprobs.content or ()]
            one["finish"] = choice.finish_reason or one["finish"]
    return out


def test_sse(case: Case) -> None:
    with (
        client(200, (case.folder / "response.sse").read_bytes(), "text/event-stream") as sdk,
        ask(sdk, stream=True) as chunks,
    ):
        seen: list[ChatCompletionChunk] = list(chunks)
    for at, (told, choice) in enumerate(
        zip(collected(iter(seen), len(case.choices)), case.choices, strict=True)
    ):
        assert told == {
            "content": choice.reply.text,
            "reasoning": choice.reply.reasoning,
            "reasoning_content": choice.reply.reasoning,
            "calls": [
                [call_id(f"turn{at}", index), call.name, call.arguments]
                for index, call in enumerate(choice.reply.tool_calls)
            ],
            "finish": finish_reason(choice),
            "logprobs": list(choice.tokens.logprobs) if choice.tokens and case.request.logprobs else [],
        }
    usage = seen[-1].usage
    assert (usage is not None) == case.request.include_usage
    if usage:
        assert (usage.prompt_tokens, usage.completion_tokens) == (case.usage.prompt, case.usage.completion)


def test_the_sdks_own_accumulator_agrees(case: Case) -> None:
    """`client.chat.completions.stream` adds deltas up itself and refuses chunks that do not fit together."""
    content = (case.folder / "response.sse").read_bytes()
    with (
        client(200, content, "text/event-stream") as sdk,
        sdk.chat.completions.stream(model="tiny", messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        try:
            answer = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            answer = error.completion  # type: ignore[assignment]
    for told, choice in zip(answer.choices, case.choices, strict=True):
        assert (told.message.content or "") == choice.reply.text
        assert [(one.function.name, one.function.arguments) for one in told.message.tool_calls or ()] == [
            (one.name, one.arguments) for one in choice.reply.tool_calls
        ]


RAISES: dict[str, tuple[errors.SandgateError, type[openai.APIStatusError], str, str | None, str | None]] = {
    "a bad field": (
        errors.InvalidBody("n is 9", field="n"),
        openai.BadRequestError,
        "invalid_request_error",
        "n",
        None,
    ),
    "an unsupported field": (
        errors.Unsupported("audio is not supported", field="audio"),
        openai.BadRequestError,
        "invalid_request_error",
        "audio",
        "unsupported_value",
    ),
    "a prompt over the window": (
        errors.PromptTooLong(tokens=5000, limit=4096),
        openai.BadRequestError,
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    ),
    "a session's limit": (
        errors.LimitReached("turns", used=21, limit=20),
        openai.BadRequestError,
        "invalid_request_error",
        "turns",
        None,
    ),
    "no key": (
        errors.Unauthorized("no key"),
        openai.AuthenticationError,
        "authentication_error",
        None,
        "invalid_api_key",
    ),
    "a foreign key": (
        errors.Forbidden("not yours"),
        openai.PermissionDeniedError,
        "permission_error",
        None,
        None,
    ),
    "no such session": (errors.NotFound("no session"), openai.NotFoundError, "not_found_error", None, None),
    "no such model": (
        ModelNotFound("no model"),
        openai.NotFoundError,
        "invalid_request_error",
        None,
        "model_not_found",
    ),
    "another meaning": (errors.Conflict("taken"), openai.ConflictError, "invalid_request_error", None, None),
    "an ended session": (
        errors.Gone("ended"),
        openai.APIStatusError,
        "invalid_request_error",
        None,
        "session_ended",
    ),
    "a huge body": (
        errors.TooLarge("too big"),
        openai.APIStatusError,
        "invalid_request_error",
        None,
        "request_too_large",
    ),
    "too many requests": (
        errors.Overloaded("later"),
        openai.RateLimitError,
        "rate_limit_error",
        None,
        "rate_limit_exceeded",
    ),
    "a bad engine": (errors.EngineFailed("nonsense"), openai.InternalServerError, "server_error", None, None),
    "a pause": (errors.Paused("weights"), openai.InternalServerError, "server_error", None, None),
}


@pytest.mark.parametrize(("error", "raised", "kind", "param", "code"), RAISES.values(), ids=RAISES)
def test_errors(
    error: errors.SandgateError,
    raised: type[openai.APIStatusError],
    kind: str,
    param: str | None,
    code: str | None,
) -> None:
    with (
        client(error.status, CHAT.error_body(error), "application/json") as sdk,
        pytest.raises(raised) as seen,
    ):
        ask(sdk)
    assert (seen.value.status_code, seen.value.type, seen.value.param, seen.value.code) == (
        error.status,
        kind,
        param,
        code,
    )


def test_a_prompt_over_the_window_is_told_in_openais_words() -> None:
    body = CHAT.error_body(errors.PromptTooLong(tokens=5000, limit=4096))
    assert (
        b"This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."
        in body
    )


def test_an_error_in_a_stream_is_raised(case: Case) -> None:
    stream = CHAT.stream(case.context)
    content = stream.start() + stream.error(errors.EngineFailed("the engine went away"))
    with (
        client(200, content, "text/event-stream") as sdk,
        ask(sdk, stream=True) as chunks,
        pytest.raises(openai.APIError, match="the engine went away"),
    ):
        list(chunks)
