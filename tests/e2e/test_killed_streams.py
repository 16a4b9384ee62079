"""kill -9 between any two events of a stream, at any token of it, and behind a history that the server keeps."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from sandgate.gateway.engine.scripted.script import Gate, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from tests.support.gateway import Agent, call_text, client, codec, ids, within
from tests.support.held_gateway import HEADER
from tests.support.process import Process
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

BROKEN = (openai.APIError, anthropic.APIError, httpx.HTTPError, httpx2.HTTPError)
RETRY = {"x-stainless-retry-count": "1"}
SAID = "<think>\nso\n</think>\n\nI buy." + call_text("buy", n=7) + "\n" + call_text("buy", n=2)
SCHEMA: Any = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Protocol:
    """One protocol by its real SDK."""

    def __init__(self, agent: Agent, text: str, max_retries: int = 0) -> None:
        self.agent, self.text, self.max_retries = agent, text, max_retries
        self.sdk: Any = self.make()

    def make(self) -> Any:
        return self.agent.openai(max_retries=self.max_retries)

    @property
    def body(self) -> dict[str, Any]:
        """Of the request; the SDK adds `stream`."""
        raise NotImplementedError

    async def ask(self, **more: Any) -> Any:
        """An answer, or the stream of its events."""
        raise NotImplementedError

    async def added_up(self) -> Any:
        """The answer, as the SDK's own helper adds a retried stream up."""
        raise NotImplementedError

    def items(self, answer: Any) -> Any:
        """Ids, texts and calls of an answer."""
        raise NotImplementedError


class Responses(Protocol):
    """POST /v1/responses."""

    @property
    def body(self) -> dict[str, Any]:
        tool = {"type": "function", "name": "buy", "parameters": SCHEMA, "strict": False}
        return {"model": "shop", "input": self.text, "tools": [tool]}

    async def ask(self, **more: Any) -> Any:
        return await self.sdk.responses.create(**self.body, **more)

    async def added_up(self) -> Any:
        async with self.sdk.responses.stream(**self.body, extra_headers=RETRY) as events:
            return await events.get_final_response()

    def items(self, answer: Any) -> Any:
        kept = ("id", "type", "call_id", "name", "arguments", "content", "summary")
        dumped = [item.model_dump(mode="json", include=set(kept)) for item in answer.output]
        for item in dumped:
            for part in item.get("content") or ():
                part.pop("parsed", None)
        return [answer.id, *dumped]


class Messages(Protocol):
    """POST /v1/messages."""

    def make(self) -> Any:
        base = self.agent.handle["anthropic_base_url"]
        made = anthropic.AsyncAnthropic(
            base_url=base,
            api_key=self.agent.handle["api_key"],
            max_retries=self.max_retries,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=False),
        )
        self.agent._clients.append(made)
        return made

    @property
    def body(self) -> dict[str, Any]:
        tool = {"name": "buy", "input_schema": SCHEMA}
        asked = [{"role": "user", "content": self.text}]
        return {"model": "shop", "max_tokens": 500, "messages": asked, "tools": [tool]}

    async def ask(self, **more: Any) -> Any:
        return await self.sdk.messages.create(**self.body, **more)

    async def added_up(self) -> Any:
        async with self.sdk.messages.stream(**self.body, extra_headers=RETRY) as events:
            return await events.get_final_message()

    def items(self, answer: Any) -> Any:
        kept = ("id", "type", "text", "thinking", "signature", "name", "input")
        return [answer.id, *[block.model_dump(mode="json", include=set(kept)) for block in answer.content]]


class Chat(Protocol):
    """POST /v1/chat/completions."""

    @property
    def body(self) -> dict[str, Any]:
        tool = {"type": "function", "function": {"name": "buy", "parameters": SCHEMA}}
        return {"model": "shop", "messages": [{"role": "user", "content": self.text}], "tools": [tool]}

    async def ask(self, **more: Any) -> Any:
        return await self.sdk.chat.completions.create(**self.body, **more)

    async def added_up(self) -> Any:
        async with self.sdk.chat.completions.stream(**self.body, extra_headers=RETRY) as events:
            return await events.get_final_completion()

    def items(self, answer: Any) -> Any:
        message = answer.choices[0].message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
        return [answer.id, message.content, message.reasoning_content, calls]


PROTOCOLS: dict[str, tuple[type[Protocol], str]] = {
    "responses": (Responses, "v1/responses"),
    "messages": (Messages, "v1/messages"),
    "chat": (Chat, "v1/chat/completions"),
}


@dataclass
class World:
    """A gateway's process through its lives, and the engine beside them."""

    process: Process
    agents: dict[str, Agent] = field(default_factory=dict)
    gates: dict[str, tuple[int, Gate]] = field(default_factory=dict)
    """For a session: where its first generation stands still."""
    sampled: Counter[str] = field(default_factory=Counter)
    """Generations of each session."""
    reading: list[asyncio.Future[None]] = field(default_factory=list)

    def reply(self, prompt: Any, number: int) -> Reply:
        """Sessions name themselves to the engine in what they say."""
        name = re.findall(r"<(\w+)>", codec().decode(prompt))[-1]
        self.sampled[name] += 1
        if name in self.gates and self.sampled[name] == 1:
            at, gate = self.gates[name]
            return Reply(SAID, gate=gate, gate_at=at)
        return Reply(SAID)

    async def sessions(self, *names: str) -> None:
        async with self.process.admin() as admin:
            made = await admin.post("/v1/sessions", json=[{"session_id": name} for name in names])
            for handle in made.json():
                base = f"{self.process.origin}/sessions/{handle['session_id']}/"
                self.agents[handle["session_id"]] = Agent(handle, client(base, handle["api_key"]))

    async def turns(self, name: str) -> list[Any]:
        async with self.process.admin() as admin:
            told: list[Any] = (await admin.get(f"/v1/sessions/{name}/tree")).json()["turns"]
            return told

    async def all_durable(self, names: set[str]) -> None:
        async with self.process.admin() as admin:

            async def durable() -> bool:
                told = (await admin.get("/v1/sessions")).json()["sessions"]
                return {one["session_id"] for one in told if one["turns"]} >= names

            await until(durable, what="each turn is on disk")

    async def killed(self) -> None:
        """SIGKILL, and the next life."""
        await self.process.kill()
        self.process.module = "sandgate.gateway"
        await self.process.start()

    async def aclose(self) -> None:
        for agent in self.agents.values():
            await agent.aclose()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        player = Player((), encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
        server = await stack.enter_async_context(ScriptedServer(player, model="shop"))
        process = await stack.enter_async_context(Process(folder, server.url))
        process.module = "tests.support.held_gateway"
        made = World(process)
        player._script = made.reply
        stack.push_async_callback(made.aclose)
        await process.start()
        yield made


class Seen:
    """What a client saw of a stream before it broke."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.turn = ""
        self.enough = asyncio.Event()

    async def read(self, asked: Any, enough: int) -> None:
        try:
            stream = await asked
            self.turn = stream.response.headers["x-sandgate-turn"]
            while True:
                if len(self.events) >= enough:
                    self.enough.set()
                self.events.append((await anext(stream)).model_dump(mode="json"))
        except (*BROKEN, StopAsyncIteration):
            self.enough.set()


def names_of(raw: bytes) -> list[str]:
    """Of a stream's events: its own words, where it has any."""
    return [
        next((line[7:] for line in event.split("\n") if line.startswith("event: ")), "chunk")
        for event in raw.decode().split("\n\n")
        if event
    ]


async def after_each_event(alive: World, kind: str) -> dict[str, tuple[Protocol, Seen, str]]:
    """A session for each place between two events of a stream, held there, with its turn on disk. By session."""
    speaks, path = PROTOCOLS[kind]
    await alive.sessions("whole")
    whole = speaks(alive.agents["whole"], "<whole>")
    raw = (await whole.agent.http.post(path, json={**whole.body, "stream": True})).content
    events = names_of(raw)
    shown = len(events) - raw.endswith(b"data: [DONE]\n\n")
    assert len(events) >= 10
    await alive.sessions(*[f"s{number}" for number in range(len(events) + 1)])
    cases: dict[str, tuple[Protocol, Seen, str]] = {}
    for number, last in enumerate(["the headers", *events]):
        name = f"s{number}"
        case, seen = speaks(alive.agents[name], f"<{name}>"), Seen()
        cases[name] = case, seen, f"event {number}, {last}"
        asked = case.ask(stream=True, extra_headers={HEADER: str(number)})
        alive.reading.append(asyncio.ensure_future(seen.read(asked, min(number, shown))))
    for _, seen, where in cases.values():
        await within(seen.enough, where)
    await alive.all_durable({*cases})
    return cases


async def at_each_token(alive: World, kind: str) -> dict[str, Protocol]:
    """A session for each token of an answer, at which its stream stands still in the engine. By session."""
    names = [f"t{at}" for at in range(len(ids(SAID)) + 1)]
    await alive.sessions(*names)
    cases: dict[str, Protocol] = {}
    for at, name in enumerate(names):
        alive.gates[name] = at, Gate()
        cases[name] = PROTOCOLS[kind][0](alive.agents[name], f"<{name}>")
        asked = cases[name].ask(stream=True)
        alive.reading.append(asyncio.ensure_future(Seen().read(asked, 10**6)))
    for name, (_, gate) in alive.gates.items():
        await within(gate.reached, name)
    return cases


async def before_the_body(alive: World, kind: str) -> tuple[Protocol, asyncio.Future[Any]]:
    """A session whose answer is no stream and is on disk, and of which not one byte was sent."""
    await alive.sessions("json")
    case = PROTOCOLS[kind][0](alive.agents["json"], "<json>", max_retries=9)
    asked = asyncio.ensure_future(case.ask(extra_headers={HEADER: "0"}))
    await alive.all_durable({"json"})
    return case, asked


async def wrong_of(alive: World, name: str, case: Protocol, seen: Seen, *, json_first: bool) -> list[str]:
    """What is wrong with the retries of a stream whose turn was on disk."""
    whole = await case.ask() if json_first else None
    again = Seen()
    await again.read(case.ask(stream=True, extra_headers=RETRY if json_first else {}), 10**6)
    whole = whole or await case.ask(extra_headers=RETRY)
    added = await case.added_up()
    said = {
        "another event": again.events[: len(seen.events)] == seen.events,
        "another turn in x-sandgate-turn": again.turn == seen.turn,
        "other items than the whole answer has": case.items(added) == case.items(whole),
        "no id of the turn": case.items(whole)[0].endswith(seen.turn),
        "sampled again": alive.sampled[name] == 1,
        "another turn in the tree": [turn["turn"] for turn in await alive.turns(name)] == [seen.turn],
    }
    if isinstance(case, Responses):
        read = await case.sdk.responses.retrieve(whole.id)
        listed = await case.agent.http.get(f"v1/responses/{whole.id}/input_items")
        (item,) = listed.json()["data"]
        said["not the same when it is read"] = read.model_dump() == whole.model_dump()
        said["other input items"] = item["content"][0]["text"] == case.text
    return [what for what, held in said.items() if not held]


async def wrong_of_token(alive: World, name: str, case: Protocol) -> list[str]:
    """What is wrong with the retries of a stream whose turn was not on disk."""
    again = Seen()
    await again.read(case.ask(stream=True), 10**6)
    whole = await case.ask(extra_headers=RETRY)
    said = {
        "other items than the whole answer has": case.items(await case.added_up()) == case.items(whole),
        "not one turn, and sampled once more": [
            (turn["turn"], turn["resampled"]) for turn in await alive.turns(name)
        ]
        == [(again.turn, True)],
        "sampled too often": alive.sampled[name] == 2,
    }
    return [what for what, held in said.items() if not held]


@pytest.mark.parametrize("kind", PROTOCOLS)
async def test_killed_between_any_two_events_the_retry_has_the_same_items(tmp_path: Path, kind: str) -> None:
    async with world(tmp_path) as alive:
        told = await after_each_event(alive, kind)
        sampling = await at_each_token(alive, kind)
        by_itself, asked = await before_the_body(alive, kind)
        await alive.killed()
        await asyncio.gather(*alive.reading)
        wrong = {
            where: found
            for number, (name, (case, seen, where)) in enumerate(told.items())
            if (found := await wrong_of(alive, name, case, seen, json_first=number % 2 == 1))
        }
        wrong |= {
            name: found
            for name, case in sampling.items()
            if (found := await wrong_of_token(alive, name, case))
        }
        assert not wrong
        answer = by_itself.items(await asked)
        assert by_itself.items(await by_itself.added_up()) == answer, "asked as JSON, again as a stream"
        assert alive.sampled["json"] == 1
        assert {len(seen.events) for _, seen, _ in told.values()} >= {*range(len(told) - 1)}


async def chain_of(agent: Agent, texts: list[str]) -> list[Any]:
    """Responses that go on from each other."""
    made: list[Any] = []
    for text in texts:
        before = made[-1].id if made else openai.omit
        asked = agent.openai().responses.create(model="shop", input=text, previous_response_id=before)
        made.append(await asked)
    return made


async def test_a_history_that_the_server_keeps_outlives_a_kill(tmp_path: Path) -> None:
    async with world(tmp_path) as alive:
        await alive.sessions("kept")
        agent = alive.agents["kept"]
        sdk = agent.openai()
        first, second, third, gone = await chain_of(agent, [f"<kept> {number}" for number in range(4)])
        await sdk.responses.delete(gone.id)
        await alive.killed()

        for made in (first, second, third):
            assert (await sdk.responses.retrieve(made.id)).model_dump() == made.model_dump()
            (item,) = (await sdk.responses.input_items.list(made.id)).data
            content: Any = getattr(item, "content", None)
            assert content[0].text == f"<kept> {[first, second, third].index(made)}"
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(gone.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="shop", input="x", previous_response_id=gone.id)
        assert refused.value.code == "previous_response_not_found"

        more = await sdk.responses.create(model="shop", input="<kept> on", previous_response_id=third.id)
        references: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
        asked: Any = [{"role": "user", "content": "<kept> 0"}, *references]
        forked = await sdk.responses.create(
            model="shop", input=[*asked, {"role": "user", "content": "<kept> else"}]
        )
        parents = {turn["turn"]: turn["parent"] for turn in await alive.turns("kept")}
        turns = [made.id.removeprefix("resp_") for made in (first, second, third, gone, more, forked)]
        assert parents == dict(
            zip(turns, [None, turns[0], turns[1], turns[2], turns[2], turns[0]], strict=True)
        )

        asked_again = await sdk.responses.create(
            model="shop", input="<kept> 3", previous_response_id=third.id, extra_headers=RETRY
        )
        assert asked_again.id == gone.id, "a retry gets its answer, although it is kept no more"
        assert alive.sampled["kept"] == 6
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(gone.id)
        await sdk.responses.delete(second.id)
        await alive.killed()
        for broken in (second, third):
            with pytest.raises(openai.BadRequestError):
                await sdk.responses.create(model="shop", input="x", previous_response_id=broken.id)
        assert (await sdk.responses.retrieve(more.id)).output_text == more.output_text
