"""What is long is rendered in a thread, whatever makes it long; what no window could hold is not rendered at all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sandgate.gateway.conversation.messages import Message, Tool
from sandgate.gateway.tokens.template import ChatTemplate
from tests.support.gateway import gateway, user

LONG = "word " * 4_000


def _tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def _call(**said: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}", **said}}


def _said(**more: Any) -> list[Any]:
    return [user("go"), {"role": "assistant", "content": "x", **more}, user("on")]


HEAVY: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text": ([user(LONG)], {}),
    "reasoning": (_said(reasoning_content=LONG), {}),
    "a name": ([{**user("go"), "name": LONG}], {}),
    "a call's arguments": (_said(tool_calls=[_call(arguments='{"a":"' + LONG + '"}')]), {}),
    "a call's name": (_said(tool_calls=[_call(name=LONG)]), {}),
    "a call's id": (_said(tool_calls=[{**_call(), "id": LONG}]), {}),
    "a result's call": (
        [*_said(tool_calls=[_call()]), {"role": "tool", "content": "x", "tool_call_id": LONG}],
        {},
    ),
    "a tool's description": ([user("go")], _tool(description=LONG)),
    "a tool's schema": ([user("go")], _tool(parameters={"type": "object", "description": LONG})),
}


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that rendered what is long."""
    seen: list[str] = []
    inner = ChatTemplate.render

    def render(
        self: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool] = (), **more: Any
    ) -> str:
        text = inner(self, messages, tools, **more)
        if LONG[:1_000] in str((messages, tools)):
            seen.append(threading.current_thread().name)
        return text

    monkeypatch.setattr(ChatTemplate, "render", render)
    return seen


@pytest.mark.parametrize(("messages", "more"), HEAVY.values(), ids=HEAVY)
async def test_what_is_long_is_rendered_in_a_thread(
    rendered: list[str], messages: list[Any], more: dict[str, Any]
) -> None:
    async with gateway(["done"] * 3) as g:
        agent = await g.session()
        answer = await agent.post(*messages, **more)
        assert answer.status_code in (200, 400), answer.text
        assert rendered, "it was rendered"
        assert all(name.startswith("render") for name in rendered)


async def test_what_no_window_could_hold_is_refused_unrendered(rendered: list[str]) -> None:
    async with gateway(["done"]) as g:
        agent = await g.session()
        answer = await agent.post(LONG * 60)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "4096 tokens" in error["message"]
        assert rendered == []
        assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["limit_reached"] == "context"


async def test_tools_beyond_any_window_are_refused_by_name() -> None:
    async with gateway(["done"]) as g:
        agent = await g.session()
        answer = await agent.post("go", **_tool(description="word " * 500_000))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
