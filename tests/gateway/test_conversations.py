"""Conversations through the HTTP API: each turn hangs where it belongs, and its prompt is what was there, id for id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.gateway import app
from sandgate.gateway.journal.memory import MemoryStore
from tests.support.gateway import (
    BUY,
    Running,
    admin_key,
    bearer,
    call_text,
    codec,
    config_in,
    engine,
    gateway,
    user,
)

SYSTEM = {"role": "system", "content": "You sell fruit."}
SELL: Any = {
    "type": "function",
    "function": {"name": "sell", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda ids, number: f"answer {number}") as running:
        yield running


async def _talk(agent: Any, *texts: str, **more: Any) -> list[Any]:
    history: list[Any] = [SYSTEM]
    for text in texts:
        history.append(user(text))
        history.append(await agent.ask(*history, **more))
    return history


async def test_a_conversation_is_one_branch(g: Running) -> None:
    agent = await g.session()
    await _talk(agent, "one", "two", "three")
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    assert [turn["fork"] for turn in turns] == [None] * 3
    assert len(await g.finalize(agent)) == 1


@pytest.mark.parametrize("words", ["", "I buy."], ids=["a bare call", "words and a call"])
async def test_a_result_that_the_agent_clears_is_an_edit_of_a_tool_wherever_it_stands(words: str) -> None:
    """As agents do that run out of room: all that the model said stands as it did."""
    answers = [words + call_text("buy", item="kiwi", n=7), "done", "bye"]
    async with gateway(answers) as g:
        agent = await g.session()
        first = await agent.ask(user("buy"), tools=[BUY])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "7 kiwi: 14.00"}
        second = await agent.ask(user("buy"), first, result, tools=[BUY])
        cleared = {**result, "content": "[cleared]"}
        answer = await agent.post(user("buy"), first, cleared, second, user("again"), tools=[BUY])
        assert answer.headers["x-sandgate-fork"] == "user_or_tool_edited"
        assert (await g.tree(agent))[-1]["fork"] == "user_or_tool_edited"


def _edited_user(history: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return [SYSTEM, user("ONE"), *history[2:], user("more")], {}


def _edited_assistant(history: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return [*history[:-1], {"role": "assistant", "content": "I never said that"}, user("more")], {}


def _tools(history: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return [*history, user("more")], {"tools": [SELL]}


def _system(history: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return [{"role": "system", "content": "You sell cars."}, *history[1:], user("more")], {}


FORKS = {
    "edited user message": (_edited_user, "user_or_tool_edited"),
    "edited assistant message": (_edited_assistant, "assistant_edited"),
    "other tools": (_tools, "tools_changed"),
    "a request with another system prompt": (_system, "system_changed"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("case", FORKS)
async def test_a_rewritten_history_is_a_fork_with_its_reason_in_header_and_tree(
    g: Running, case: str, stream: bool
) -> None:
    rewrite, reason = FORKS[case]
    agent = await g.session()
    history = await _talk(agent, "one", "two", tools=[BUY])
    messages, more = rewrite(history)
    answer = await agent.post(*messages, stream=stream, **{"tools": [BUY], **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-sandgate-fork"] == reason
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None, None, reason]
    seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert seen["forks"] == {reason: 1}
    assert f'sandgate_forks_total{{reason="{reason}"}} 1.0' in (await g.admin.get("/metrics")).text
    assert len(await g.finalize(agent)) == 2


async def test_two_calls_at_once_from_one_place_are_two_named_branches(g: Running) -> None:
    """Neither sees the other when it starts; the one that commits second says why it left the branch."""
    agent = await g.session()
    history = await _talk(agent, "one")
    answers = await asyncio.gather(agent.post(*history, user("left")), agent.post(*history, user("right")))
    assert [answer.status_code for answer in answers] == [200, 200]
    first, *both = await g.tree(agent)
    assert [turn["parent"] for turn in both] == [first["turn"]] * 2
    assert both[0]["fork"] is None
    assert both[1]["fork"] is not None


async def test_a_tool_round_trip_keeps_what_was_sampled(g: Running) -> None:
    """The SDK re-serialises the arguments; the prompt holds them as sampled all the same."""
    sampled = call_text("buy", item="kiwi", n=7).replace('": ', '" :  ')
    async with gateway([sampled, "receipt 44"]) as other:
        agent = await other.session()
        said = await agent.ask("buy 7 kiwi", tools=[BUY])
        call = said["tool_calls"][0]
        call["function"]["arguments"] = '{"n":7,"item":"kiwi"}'
        result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        await agent.ask("buy 7 kiwi", said, result, tools=[BUY])
        first, second = await other.tree(agent)
        assert (second["parent"], second["fork"]) == (first["turn"], None)
        one, two = other.engine.prompts
        sampled_ids = first["spans"][1]["ids"]
        assert list(two.ids)[: len(one.ids) + len(sampled_ids)] == list(one.ids) + sampled_ids
        assert sampled in codec().decode(two.ids)


# -- any conversation -----------------------------------------------------------------------------------------------

REPLIES = (
    "sure",
    "  leading and trailing  ",
    "two\n\nlines",
    "naïve 🙂",
    call_text("buy", item="kiwi", n=7),
    "on it\n" + call_text("buy", item="lime", n=1) + "\n" + call_text("sell"),
    "<tool_call>\n{broken\n</tool_call>",
    "<think>\nhm\n</think>\n\ndone",
    "",
)
texts = st.sampled_from(["hi", "more", "kiwi " * 30, "你好", "<|im_end|>", "", "  x  ", "<tool_call>"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go on", "go on", "again", "edit", "cut", "new", "tools", "branch", "n"]),
        st.integers(0, 30),
        texts,
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


class Shop:
    """A gateway for many examples."""

    def __init__(self, runner: asyncio.Runner, running: Any) -> None:
        self.runner, self.running = runner, running


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        source = engine(lambda ids, number: REPLIES[(sum(ids) + len(source.prompts)) % len(REPLIES)], chunk=3)

        async def start() -> tuple[Any, Any]:
            stack = app.gateway(
                config_in(Path(folder)), origin="http://g", engine=source, store=MemoryStore(), codec=codec()
            )
            return stack, await stack.__aenter__()

        stack, running = runner.run(start())
        yield Shop(runner, running)
        runner.run(stack.__aexit__(None, None, None))


class Talk:
    """A client with several histories of one session."""

    def __init__(self, http: httpx.AsyncClient, handle: dict[str, Any]) -> None:
        self.http, self.handle = http, handle
        self.branches: list[tuple[list[Any], str | None, int]] = [([], None, 0)]
        """(messages, the turn that ends them, which tools)."""
        self.expected: dict[str, str | None] = {}
        """Turn -> its parent, where nothing was rewritten."""

    async def ask(self, messages: list[Any], tools: int, n: int, stream: bool) -> list[tuple[Any, str]]:
        body = {"model": "shop", "messages": messages, "tools": [BUY, SELL][: tools % 3], "n": n}
        if not tools % 3:
            del body["tools"]
        answer = await self.http.post(
            self.handle["base_url"] + "/chat/completions",
            json={**body, "stream": stream},
            headers={
                **bearer(self.handle["api_key"]),
                **({"x-stainless-retry-count": "1"} if stream else {}),
            },
        )
        assert answer.status_code == 200, answer.text
        if stream:  # then the same answer again, as JSON
            answer = await self.http.post(
                self.handle["base_url"] + "/chat/completions",
                json=body,
                headers={**bearer(self.handle["api_key"]), "x-stainless-retry-count": "1"},
            )
        turns = [answer.headers["x-sandgate-turn"]]
        return [(choice["message"], turns[0]) for choice in answer.json()["choices"]]

    async def step(self, what: str, pick: int, text: str, stream: bool) -> None:
        messages, last, tools = self.branches[pick % len(self.branches)]
        tail = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call in (messages[-1].get("tool_calls") or () if messages else ())
        ] or [user(text)]
        rewritten = False
        if what == "again" and messages:
            messages, tail, rewritten = messages[:-1], [], True
        elif what == "edit" and messages:
            at = pick % len(messages)
            messages = [*messages[:at], user(f"edited {pick}"), *messages[at + 1 :]]
            rewritten = True
        elif what == "cut":
            messages, rewritten = messages[: pick % (len(messages) + 1)], True
        elif what == "new":
            messages, last, rewritten = [], None, True
        elif what == "tools":
            tools, rewritten = tools + 1, True
        asked = [*messages, *tail] or [user(text)]
        answers = await self.ask(asked, tools, 2 if what == "n" else 1, stream)
        for message, turn in answers[:1]:
            if not rewritten:
                self.expected.setdefault(turn, last)
            grown = ([*asked, message], turn, tools)
            if what == "branch" or rewritten:
                self.branches.append(grown)
            else:
                self.branches[pick % len(self.branches)] = grown


@settings(max_examples=max(60, settings().max_examples // 2))
@given(script=steps)
def test_each_prompt_starts_with_its_parents_prompt_and_response_id_for_id(
    shop: Shop, script: list[tuple[str, int, str, bool]]
) -> None:
    running = shop.running

    async def converse() -> tuple[Talk, list[dict[str, Any]], list[dict[str, Any]], dict[str, list[int]]]:
        source = running.core.engine
        source.prompts.clear()
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(running.app), base_url="http://g", headers=bearer(admin_key())
        ) as http:
            talk = Talk(http, (await http.post("/v1/sessions", json={})).json())
            for what, pick, text, stream in script:
                await talk.step(what, pick, text, stream)
            prompts = {prompt.request_id.split("-")[0]: list(prompt.ids) for prompt in source.prompts}
            name = talk.handle["session_id"]
            turns = (await http.get(f"/v1/sessions/{name}/tree")).json()["turns"]
            rows = (await http.post(f"/v1/sessions/{name}/finalize", json={})).json()["trajectories"]
            return talk, turns, rows, prompts

    talk, turns, rows, prompts = shop.runner.run(converse())
    whole: dict[str, list[int]] = {}
    for turn in turns:
        context, sampled = (span["ids"] for span in turn["spans"])
        head = whole[turn["parent"]] if turn["parent"] else []
        assert prompts[turn["turn"]] == head + context, "the engine got the parent's ids, and this turn's"
        whole[turn["turn"]] = head + context + sampled
    parents = {turn["turn"]: turn["parent"] for turn in turns}
    for turn_id, parent in talk.expected.items():
        assert parents[turn_id] == parent, "a history that nobody rewrote goes on where it was"
    trained = [
        token
        for row in rows
        for token, mask in zip(row["response_ids"], row["loss_mask"], strict=True)
        if mask
    ]
    for row in rows:
        assert row["prompt_ids"] + row["response_ids"] == whole[row["turn_ids"][-1]]
        assert len(row["response_ids"]) == len(row["response_logprobs"]) == len(row["versions"])
    kept = {turn for row in rows for turn in row["turn_ids"]}
    sampled_kept = sum(turn["sampled_tokens"] for turn in turns if turn["turn"] in kept)
    assert len(trained) == sampled_kept, "each sampled token of the rows is trained on exactly once"
