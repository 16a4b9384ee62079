"""Real gateway processes over many engines: are these evenly used, are prefixes found, what do losses and new ones do?

    python -m tests.bench.fleet --gateways 8 --engines 64 --sessions 1024 --turns 10 --seconds 120

Gateways are processes, journals on disk; engines are scripted, with slots, a queue and a prefix cache, all in this
process, behind vLLM's wire. Agents come in groups that share a prompt, each group at one gateway, and speak chat
completions, some of them streamed. Engines and gateways are told to be on nodes, one after the other. What engines saw
is judged by `fleet_checker`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from sandgate.gateway.config import Peers
from sandgate.gateway.engine.responses import Step
from sandgate.gateway.engine.scripted.script import Ask, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from tests.bench.fleet_checker import Judged, Seen, Span, judged
from tests.bench.load import heard
from tests.bench.wire import Connection
from tests.gateway.engine.fleet_simulation import Shape
from tests.support.gateway import admin_key, codec, ids, text
from tests.support.many_gateways import cpu_s, started
from tests.support.process import Process

TASK_WORDS, SAMPLED_TOKENS, TOOL_WORDS = 150, 40, 24
"""An eighth of what the simulation has: 256 tokens, 40 and 40."""
WINDOW = 4096
CHUNK = 10
"""Tokens that an engine samples at once: each costs a wake-up here."""
BLOCKS = 4096
"""Of an engine's prefix cache: 65,536 tokens, of some hundred sessions."""
STREAMED = 4
"""One of so many agents: a stream costs a gateway three times as much."""
TURNS_MAX = 1_000
"""Of a session that may have as many as it likes."""
SETTLE_S = 10.0
"""From a change of the engines until the work is shared out again."""
WORDS = "kiwi apple buy sell receipt total paper stone water light under over seven nine return open close left".split()


class Recorder(Player):
    """A player that keeps what it saw."""

    def __init__(self, seen: list[Seen], **more: Any) -> None:
        super().__init__(**more)
        self.url = ""
        self._seen = seen

    async def play(self, ask: Ask) -> AsyncGenerator[Step, None]:
        one = Seen(self.url, ask.ids, time.monotonic(), self.running + self.waiting)
        self._seen.append(one)
        try:
            async with aclosing(super().play(ask)) as steps:
                async for step in steps:
                    one.sampled.extend(step.ids)
                    one.whole = step.finish in ("stop", "length")
                    yield step
        finally:
            one.gone = time.monotonic()


class Fleet:
    """Make it with `fleet`."""

    def __init__(self, shape: Shape, slots: int, seed: int) -> None:
        self.shape, self.slots = shape, slots
        self.chance = random.Random(seed)
        self.seen: list[Seen] = []
        self.failures: list[str] = []
        """Of agents' requests, whatever the reason."""
        self.answered = 0
        """Turns that agents had an answer to."""
        self.nodes: dict[str, str] = {}
        """Engine that is up -> its node."""
        self.known: dict[str, str] = {}
        """The same of all there ever were."""
        self.gateways: list[Process] = []
        self.pids: list[int] = []
        """Of the gateways."""
        self._servers: dict[str, ScriptedServer] = {}
        self._numbers, self._groups = itertools.count(), itertools.count()
        self._stopping = asyncio.Event()
        self._agents: set[asyncio.Task[None]] = set()
        self._replies = [self._reply() for _ in range(512)]

    def _words(self, count: int, chance: random.Random | None = None) -> str:
        return " ".join((chance or self.chance).choices(WORDS, k=count))

    def _reply(self) -> list[int]:
        count = round(SAMPLED_TOKENS * self.chance.uniform(0.5, 1.5))
        return [*ids(self._words(SAMPLED_TOKENS * 2))[: count - 1], codec().stop_ids[0]]

    def node(self, number: int) -> str:
        """Of gateway or engine `number`."""
        return f"node-{number % (self.shape.nodes or self.shape.gateways)}"

    def node_of(self, group: int) -> str:
        """Of the gateway that has the group."""
        return self.node(group % self.shape.gateways)

    # -- engines -----------------------------------------------------------------------------------------------------

    async def add(self) -> str:
        """An engine comes up; gateways are not told."""
        player = Recorder(
            self.seen,
            script=lambda _, __: Reply(self.chance.choice(self._replies)),
            eos_ids=codec().stop_ids,
            chunk=CHUNK,
            max_model_len=WINDOW,
            token_s=self.shape.generate_s / SAMPLED_TOKENS,
            slots=self.slots,
            cache_blocks=BLOCKS,
        )
        server = ScriptedServer(player, model="shop")
        await server.__aenter__()
        player.url = server.url
        self._servers[server.url] = server
        self.nodes[server.url] = self.known[server.url] = self.node(next(self._numbers))
        return server.url

    async def lose(self, url: str) -> None:
        """An engine dies in the middle of its work; gateways are not told."""
        del self.nodes[url]
        server = self._servers.pop(url)
        server.player.restart()
        await server.__aexit__(None, None, None)

    async def close(self) -> None:
        """Engines end together: each takes half a second to let go of what runs."""
        await asyncio.gather(*map(self.lose, list(self.nodes)))

    async def tell(self) -> None:
        """All gateways learn which engines there are, as from their operator."""
        told = {"urls": list(self.nodes), "nodes": self.known if self.shape.nodes else {}}

        async def put(process: Process) -> None:
            async with process.admin() as admin:
                answer = await admin.put("/v1/engines", json=told)
                assert answer.status_code == 200, answer.text

        await asyncio.gather(*map(put, self.gateways))

    # -- agents ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Groups begin, and others after them, until `rest`."""
        for _ in range(self.shape.sessions // self.shape.group):
            task = asyncio.create_task(self._groups_one_by_one(self.chance.uniform(0, self.shape.stagger_s)))
            self._agents.add(task)

    async def rest(self) -> None:
        """No turn begins any more; returns when all have ended."""
        self._stopping.set()
        await asyncio.gather(*self._agents)
        self._agents.clear()
        self._stopping.clear()

    async def passes(self, seconds: float) -> Span:
        """Time goes by, with an agent's failure as its only end before."""
        start = time.monotonic()
        done, _ = await asyncio.wait(self._agents, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return Span(start, time.monotonic())

    async def _pause(self, seconds: float) -> None:
        """A tool's time, or what is left of it."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _groups_one_by_one(self, after_s: float) -> None:
        await self._pause(after_s)
        most = self.chance.randint(1, self.shape.turns)  # as if the first had begun before, not all together
        while not self._stopping.is_set():
            group = next(self._groups)
            task = self._words(TASK_WORDS, random.Random(group))
            samples = range(self.shape.group)
            await asyncio.gather(*(self._session(group, sample, task, most) for sample in samples))
            most = TURNS_MAX

    async def _session(self, group: int, sample: int, task: str, most: int) -> None:
        process = self.gateways[group % len(self.gateways)]
        turns = min(most, max(1, round(self.chance.gauss(self.shape.turns, self.shape.turns / 4))))
        spec = {"uid": f"group-{group}", "sample_index": sample, "group_size": self.shape.group}
        connection = await Connection.open(process.origin)
        made = await connection.ask("POST", "/v1/sessions", orjson.dumps(spec), admin_key())
        handle = orjson.loads(made.body)
        path = f"/sessions/{handle['session_id']}/v1/chat/completions"
        said = {"role": "user", "content": f"group {group}, {task}. sample {sample} begins."}
        messages: list[dict[str, Any]] = [said]
        stream = sample % STREAMED == 0
        for _ in range(turns):
            asked = {"model": "shop", "messages": messages, "stream": stream}
            if stream:
                asked["stream_options"] = {"include_usage": True}
            answer = await connection.ask("POST", path, orjson.dumps(asked), handle["api_key"])
            if answer.status != 200 or b'"error":{' in answer.body:
                self.failures.append(f"{answer.status}: {answer.body[-300:]!r}")
                break
            self.answered += 1
            message, _ = heard(answer.body, stream=stream)
            messages += [message, {"role": "user", "content": self._words(TOOL_WORDS)}]
            await self._pause(self.chance.expovariate(1 / self.shape.tools_s))
            if self._stopping.is_set():
                break
        await connection.ask("POST", f"/v1/sessions/{handle['session_id']}/finalize", b"{}", admin_key())
        connection.close()

    # -- results -----------------------------------------------------------------------------------------------------

    def judge(self, span: Span, nodes: Mapping[str, str]) -> Judged:
        """Of what these engines (URL -> node) saw in `span`. It takes seconds: not while engines work here."""
        for one in self.seen:
            if one.group < 0:
                one.name(text)
        return judged(self.seen, nodes, span, slots=self.slots, blocks=BLOCKS, node_of=self.node_of)

    async def told_by_gateways(self) -> dict[str, int]:
        """`sandgate_turns_by_node_total` of all gateways together."""
        found = {"true": 0, "false": 0, "unknown": 0}
        for process in self.gateways:
            async with process.admin() as admin:
                page = (await admin.get("/metrics")).text
            for same, count in re.findall(
                r'^sandgate_turns_by_node_total{same_node="(\w+)"} (\S+)', page, re.MULTILINE
            ):
                found[same] += int(float(count))
        return found

    def seen_by_engines(self) -> dict[str, int]:
        """The same, of what engines answered whole."""
        found = {"true": 0, "false": 0, "unknown": 0}
        for one in self.seen:
            if one.whole:
                same = self.known[one.engine] == self.node_of(one.group)
                found[("true" if same else "false")] += 1
        return found

    def cpu(self) -> dict[str, float]:
        """Of the gateways, and of this process (engines and agents)."""
        own = os.times()
        return {"gateways": sum(map(cpu_s, self.pids)), "engines and agents": own.user + own.system}


@asynccontextmanager
async def fleet(shape: Shape, *, slots: int, seed: int = 1) -> AsyncIterator[Fleet]:
    """Gateways that know their engines; nobody works yet."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = Fleet(shape, slots, seed)
        for number in range(shape.gateways):
            own = folder / f"gateway-{number}"
            own.mkdir()
            peers = Peers(count=shape.gateways, name=f"gateway-{number}")
            process = Process(own, "", wait=True, node=made.node(number), peers=peers)
            made.gateways.append(await stack.enter_async_context(process))
        stack.push_async_callback(made.close)
        for _ in range(shape.engines):
            await made.add()
        made.pids = await stack.enter_async_context(started(made.gateways, folder / "gateways.log"))
        await made.tell()
        yield made


@dataclass(frozen=True, slots=True)
class Found:
    """Of one run."""

    whole: Judged
    """With the engines of the start."""
    changed: Judged
    """From `SETTLE_S` after one engine was lost and another added."""
    new: float
    """What the new engine had in flight then, as a multiple of the mean."""
    failures: list[str]
    told: dict[str, int]
    seen: dict[str, int]
    answered: int
    cpu_s: dict[str, float]
    wall_s: float


async def run(shape: Shape, *, slots: int, warm_s: float, seconds: float, changed_s: float = 0.0) -> Found:
    """Even use for `seconds`; then one engine is lost and another comes up, and `SETTLE_S` later `changed_s` more."""
    began = time.monotonic()
    async with fleet(shape, slots=slots) as made:
        made.work()
        await made.passes(warm_s)
        nodes, whole = dict(made.nodes), await made.passes(seconds)
        changed, new = whole, ""
        if changed_s:
            await made.lose(next(iter(made.nodes)))
            new = await made.add()
            await made.tell()
            await made.passes(SETTLE_S)
            changed = await made.passes(changed_s)
        after_nodes = dict(made.nodes)
        await made.rest()
        told, cpu = await made.told_by_gateways(), made.cpu()
    after = made.judge(changed, after_nodes)
    return Found(
        made.judge(whole, nodes),
        after,
        after.loads[new] * len(after.loads) / sum(after.loads.values()) if new else 1.0,
        made.failures,
        told,
        made.seen_by_engines(),
        made.answered,
        cpu,
        time.monotonic() - began,
    )


def line(name: str, one: Judged) -> str:
    """For people."""
    return (
        f"{name:<8} busiest {one.busiest:.2f} x mean, idle {one.idle:.1%}, hits {one.hits:.1%} (sticky sessions "
        f"{one.by_session:.1%}, sticky groups {one.by_group:.1%}), on their node {one.here:.1%}, "
        f"waited {one.waited:.1%}, moved {one.moved:.1%}, {one.turns} turns, "
        f"{sum(one.loads.values()) / len(one.loads):.1f} in flight"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--sessions", type=int, default=512, help="at once")
    parser.add_argument("--turns", type=int, default=4, help="of a session, on average")
    parser.add_argument("--generate-s", type=float, default=3.0)
    parser.add_argument("--tools-s", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=12, help="of an engine")
    parser.add_argument("--no-nodes", action="store_true", help="nobody knows where engines are")
    parser.add_argument("--warm-s", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--changed-s", type=float, default=20.0)
    args = parser.parse_args()
    shape = Shape(
        gateways=args.gateways,
        engines=args.engines,
        sessions=args.sessions,
        turns=args.turns,
        generate_s=args.generate_s,
        tools_s=args.tools_s,
        stagger_s=args.warm_s / 2,
        nodes=0 if args.no_nodes else args.gateways,
    )
    found = uvloop.run(
        run(shape, slots=args.slots, warm_s=args.warm_s, seconds=args.seconds, changed_s=args.changed_s)
    )
    print(line("whole", found.whole))
    print(line("changed", found.changed))
    print(f"new engine {found.new:.2f} x mean; {len(found.failures)} failures {found.failures[:1]}")
    print(f"turns by node: gateways say {found.told}, engines saw {found.seen}, agents had {found.answered}")
    print(f"{found.wall_s:.0f} s; CPU {found.cpu_s}")


if __name__ == "__main__":
    main()
