"""What is refused is refused in OpenAI's words, with the field's name; nothing that a client sends is a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.gateway import app
from sandgate.gateway.conversation.messages import Message, TextPart
from sandgate.gateway.journal.memory import MemoryStore
from tests.support.gateway import (
    Running,
    Wire,
    admin_key,
    bearer,
    codec,
    config_in,
    engine,
    gateway,
    user,
)


@pytest.fixture
async def g() -> Any:
    async with gateway(["hello"] * 9, limits={"body_bytes": 200_000}) as running:
        yield running


async def test_a_wrong_model_is_404_model_not_found(g: Running) -> None:
    agent = await g.session()
    with pytest.raises(openai.NotFoundError) as caught:
        await agent.openai().chat.completions.create(
            model="gpt-9", messages=[{"role": "user", "content": "x"}]
        )
    assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")
    assert "`gpt-9`" in caught.value.message
    assert g.generations == 0


@pytest.mark.parametrize("path", ["v1/chat/completions", "complete"])
async def test_an_announced_body_over_the_limit_is_413_before_it_is_read(g: Running, path: str) -> None:
    agent = await g.session()
    answer = await agent.http.post(path, content=b"[" + b" " * 300_000 + b"]")
    assert answer.status_code == 413
    assert "200000" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/sessions/{id}/v1/chat/completions", "/v1/sessions", "/v1/leases"])
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_an_oversized_body_is_413_with_or_without_a_good_key(
    g: Running, path: str, chunked: bool
) -> None:
    agent = await g.session()

    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 10_000

    content: Any = chunks() if chunked else b" " * 300_000
    key = agent.handle["api_key"] if "chat" in path else admin_key()
    answer = await g.admin.post(path.format(id=agent.id), content=content, headers=bearer(key))
    assert answer.status_code == 413, answer.text
    assert answer.headers["x-sandgate-reason"] == "TooLarge"


async def test_an_oversized_prompt_is_400_context_length_exceeded_with_real_numbers(g: Running) -> None:
    agent = await g.session()
    text = "kiwi " * 5000
    with pytest.raises(openai.BadRequestError) as caught:
        await agent.openai().chat.completions.create(
            model="shop", messages=[{"role": "user", "content": text}]
        )
    assert caught.value.code == "context_length_exceeded"
    tokens = len(codec().render([Message("user", (TextPart(text),))], ()))
    assert f"maximum context length is 4096 tokens. However, your messages resulted in {tokens} tokens" in (
        caught.value.message
    )
    assert g.generations == 0
    assert (await g.admin.get("/v1/status")).json()["in_flight"] == 0


async def test_a_streamed_oversized_prompt_is_a_status_not_an_event(g: Running) -> None:
    agent = await g.session()
    answer = await agent.post("kiwi " * 5000, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_max_tokens_is_clamped_to_the_window(g: Running) -> None:
    agent = await g.session()
    for asked in (128_000, 32_000, None, 5):
        more: dict[str, Any] = {} if asked is None else {"max_tokens": asked}
        assert (await agent.post(f"ask {asked}", **more)).status_code == 200
    rooms = [4096 - len(prompt.ids) for prompt in g.engine.prompts]
    assert [prompt.max_tokens for prompt in g.engine.prompts] == [rooms[0], rooms[1], rooms[2], 5]


async def test_unknown_fields_are_ignored(g: Running) -> None:
    agent = await g.session()
    body = agent.body("hi", store=True, prompt_cache_key="x", metadata={"a": "b"}, from_2031={"deep": [1]})
    answer = await agent.http.post("v1/chat/completions", json=body)
    assert answer.status_code == 200


BAD_BODIES: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "body"),
    "empty": (b"", "body"),
    "a list": ([], "body"),
    "no messages": ({"model": "shop"}, "messages"),
    "empty messages": ({"model": "shop", "messages": []}, "messages"),
    "messages is text": ({"model": "shop", "messages": "hi"}, "messages"),
    "no model": ({"messages": [user("hi")]}, "model"),
    "an unknown role": ({"model": "shop", "messages": [{"role": "bot"}]}, "messages[0].role"),
    "a part without text": (
        {"model": "shop", "messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    "temperature 3": ({"model": "shop", "messages": [user("hi")], "temperature": 3}, "temperature"),
    "n 99": ({"model": "shop", "messages": [user("hi")], "n": 99}, "n"),
    "n 0": ({"model": "shop", "messages": [user("hi")], "n": 0}, "n"),
    "max_tokens 0": ({"model": "shop", "messages": [user("hi")], "max_tokens": 0}, "max_tokens"),
    "a choice that is no tool": (
        {
            "model": "shop",
            "messages": [user("hi")],
            "tool_choice": {"type": "function", "function": {"name": "x"}},
        },
        "tool_choice",
    ),
    "logit_bias": ({"model": "shop", "messages": [user("hi")], "logit_bias": {"5": 1}}, "logit_bias"),
    "an image": (
        {
            "model": "shop",
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}],
                }
            ],
        },
        "",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("case", BAD_BODIES)
async def test_a_bad_body_is_400_naming_the_field(g: Running, case: str, stream: bool) -> None:
    body, field = BAD_BODIES[case]
    agent = await g.session()
    if isinstance(body, dict):
        body = {**body, "stream": stream}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await agent.http.post("v1/chat/completions", content=raw)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(field)
    assert field in error["message"]
    assert g.generations == 0
    assert g.core.turns.load.in_flight == 0


async def test_a_bug_is_a_500_in_json_without_a_traceback(
    g: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await g.session()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    for name, owner, attribute in (
        ("decoding", g.core.turns, "begin"),
        ("sampling", g.engine, "generate"),
        ("listing", g.core.sessions, "page"),
        ("models", g.core.sessions, "find"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(owner), attribute, broken)
            if name == "listing":
                answer = await g.admin.get("/v1/sessions")
            elif name == "models":
                answer = await agent.http.get("v1/models")
            else:
                answer = await agent.post("hi")
        assert answer.status_code == 500, name
        assert answer.headers["content-type"] == "application/json", name
        error = answer.json()["error"]
        assert error["message"] == "internal error; the gateway's log has the details", name
        assert "secret detail" not in answer.text
    assert "secret detail" in caplog.text, "the log has the details"
    assert (await agent.post("hi")).status_code == 200, "nothing leaked: slots are released"
    assert g.core.turns.load.in_flight == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/nowhere", 404),
        ("DELETE", "/v1/sessions", 405),
        ("GET", "/v1/chat/completions", 404),
        ("POST", "/sessions/x/nowhere", 404),
        ("GET", "/v1/models/other", 404),
    ],
)
async def test_what_is_not_there_is_said_in_json(g: Running, method: str, path: str, status: int) -> None:
    agent = await g.session()
    key = agent.handle["api_key"] if "models" in path or "/sessions/x" in path else admin_key()
    url = path.replace("/sessions/x", f"/sessions/{agent.id}")
    answer = await g.admin.request(method, url, headers=bearer(key))
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


async def test_a_websocket_upgrade_is_426(g: Running) -> None:
    """Codex falls back to HTTP on it at once."""
    agent = await g.session()
    answer = await agent.http.get(
        "v1/responses",
        headers={
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        },
    )
    assert answer.status_code == 426


async def test_the_models_endpoint_lists_the_jobs_model(g: Running) -> None:
    agent = await g.session()
    models = await agent.openai().models.list()
    assert [model.id for model in models.data] == ["shop"]
    assert (await agent.openai().models.retrieve("shop")).id == "shop"


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["no HTTP", "a bad escape", "a negative length"],
)
async def test_broken_http_ends_the_connection_not_the_gateway(g: Running, raw: bytes) -> None:
    agent = await g.session()
    url = httpx.URL(g.origin)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    wire = Wire(reader, writer)
    writer.write(raw)
    seen = await wire.until(b"HTTP/1.1 4")
    assert b" 500 " not in seen
    await wire.cut()
    assert (await agent.post("hi")).status_code == 200


# -- anything at all ------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}
text = st.text(max_size=8) | st.sampled_from(["shop", "user", "assistant", "tool", "\x00", "s-1", "…"])
numbers = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**53, 2**63])
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
CHAT = (
    "model messages tools tool_choice response_format temperature top_p top_k n stream stop max_tokens logprobs "
    "top_logprobs seed stream_options parallel_tool_calls"
).split()
CONTROL = (
    "session_id uid sample_index group_size job attempt model sampling limits reward_source task metadata reward "
    "interaction_id reward_info outcome discount trajectories max_groups max_tokens ttl_s whole_groups version"
).split()
chats = st.fixed_dictionaries(
    {"model": st.just("shop"), "messages": st.just([user("hi")])},
    optional={name: values for name in CHAT if name not in ("model", "messages")},
) | st.dictionaries(st.sampled_from(CHAT), values, max_size=5)
controls = st.dictionaries(st.sampled_from(CONTROL), values, max_size=4)
bodies = st.one_of(
    chats.map(lambda body: json.dumps(body).encode()),
    (controls | st.lists(controls, max_size=2)).map(lambda body: json.dumps(body).encode()),
    values.map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=20),
    st.integers(1, 2000).map(lambda depth: b"[" * depth + b"]" * depth),
    st.integers(90, 400).map(lambda depth: b'{"metadata":' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)),
)
paths = st.sampled_from(
    [
        "/v1/chat/completions",
        "/sessions/ID/v1/chat/completions",
        "/sessions/ID/complete",
        "/v1/complete",
        "/v1/models",
        "/v1/models/x",
        "/v1/sessions",
        "/v1/sessions/ID",
        "/v1/sessions/ID/wait?timeout_s=0",
        "/v1/sessions/ID/reward",
        "/v1/sessions/ID/tree",
        "/v1/sessions/nobody/tree",
        "/v1/leases",
        "/v1/leases/x/ack",
        "/v1/groups/close",
        "/v1/events?wait_s=0",
        "/v1/events?wait_s=0&after=-5",
        "/v1/events?wait_s=0&after=99999999999999999999999",
        "/v1/sessions?limit=-1&state=x&after=%00",
        "/v1/policy-version",
        "/v1/status",
        "/metrics",
        "/openapi.json",
        "/healthz",
        "/readyz",
    ]
) | st.text(max_size=12).map(lambda rest: "/" + rest.replace("?", "").replace("#", ""))
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
headers = st.dictionaries(
    st.sampled_from(
        ["x-stainless-retry-count", "content-type", "accept", "upgrade", "x-api-key", "content-length"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12),
    max_size=3,
)


@contextmanager
def _any_gateway() -> Iterator[tuple[asyncio.Runner, Any]]:
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        config = config_in(Path(folder), limits={"pause_hold_s": 0.0})

        async def start() -> Any:
            stack = app.gateway(
                config,
                origin="http://g",
                engine=engine(lambda ids, number: "ok"),
                store=MemoryStore(),
                codec=codec(),
            )
            running = await stack.__aenter__()
            return stack, running

        stack, running = runner.run(start())
        yield runner, running
        runner.run(stack.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def anything() -> Iterator[tuple[asyncio.Runner, Any, dict[str, Any]]]:
    with _any_gateway() as (runner, running):

        async def first() -> dict[str, Any]:
            async with _asgi(running) as http:
                made = await http.post("/v1/sessions", json={"session_id": "ID"}, headers=bearer(admin_key()))
                handle: dict[str, Any] = made.json()
                return handle

        yield runner, running, runner.run(first())


def _asgi(running: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(running.app), base_url="http://g")


@settings(max_examples=max(400, settings().max_examples))
@given(
    method=methods,
    path=paths,
    body=bodies,
    more=headers,
    who=st.sampled_from(["api_key", "reward_key", "admin", "nobody"]),
)
def test_nothing_that_a_client_sends_is_a_500(
    anything: tuple[asyncio.Runner, Any, dict[str, Any]],
    method: str,
    path: str,
    body: bytes,
    more: dict[str, str],
    who: str,
) -> None:
    runner, running, handle = anything
    key = {"admin": admin_key(), "nobody": ""}.get(who) or handle.get(who, "")

    async def ask() -> httpx.Response:
        running.core.turns.admission.resume()
        async with _asgi(running) as http:
            request = http.build_request(
                method,
                httpx.URL("http://g" + _quoted(path)),
                content=body,
                headers={**JSON, **more, **bearer(key)},
            )
            return await http.send(request)

    answer = runner.run(ask())
    assert answer.status_code < 500 or answer.headers["x-sandgate-reason"] == "Paused", answer.text
    assert "Traceback" not in answer.text
    if answer.status_code >= 400 and method != "HEAD" and answer.status_code not in (408, 426):
        assert answer.json()["error"]["message"]
    assert running.core.turns.load.in_flight == 0
    assert not running.core.turns.registry.calls


def _quoted(path: str) -> str:
    return quote(path, safe="/?&=%", encoding="utf-8", errors="replace")
