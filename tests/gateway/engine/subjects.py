"""What the conformance suite runs on: an engine, its controls, and what only the suite may know about it."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Engine, Prompt
from sandgate.gateway.engine.control import EngineControl
from sandgate.gateway.engine.pool import EnginePool
from sandgate.gateway.engine.scripted.engine import Player, Script, ScriptedEngine
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang.control import SglangControl
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.load import read_checkpoint
from tests.support.vllm import Vllm

WINDOW, VOCABULARY = 4_096, 1_024
EOS = (1_017,)
ENDLESS = 1_500
"""Tokens: some seconds of a real model on a busy machine, time enough for what a test does in the middle."""
REPEATING = SamplingParams(temperature=0.0, repetition_penalty=0.05)
GREEDY = SamplingParams(temperature=0.0)
"""For SGLang, whose repetition penalty does not count the prompt."""


def decode(ids: Sequence[int]) -> str:
    """Of the scripted engines: every token is one letter."""
    return "".join(chr(97 + token % 26) for token in ids)


TRIES = 24
"""A generation of some thousand tokens takes a second, and on a busy machine its server says nothing until it is done;
that it is always missed is no accident any more."""
METRICS_S = 60.0
"""A busy engine on a busy machine was seen to take more than 10 s for them."""

T = TypeVar("T")


def babble(ids: array[int], _: int) -> list[int]:
    """A script without an end: depends on the prompt only."""
    return [(sum(ids[:3]) + 7 * at) % 1_000 for at in range(3_000)]


@dataclass(slots=True)
class Subject:
    """One engine under test."""

    engine: Engine
    pause: Callable[[str], Awaitable[None]]
    resume: Callable[[], Awaitable[None]]
    label: Callable[[str], Awaitable[None]]
    running: Callable[[], Awaitable[int]]
    """Generations that the engine itself works on."""
    decode: Callable[[Sequence[int]], str]
    model: str = "scripted"
    player: Player | None = None
    repeating: SamplingParams = REPEATING
    """Of an endless generation; one that goes on behind a cut."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def prompt(self, **more: Any) -> Prompt:
        """Three ids, 20 tokens, seeded."""
        base: dict[str, Any] = {
            "request_id": f"conformance-{id(self)}-{next(self.numbers)}",
            "ids": array("i", [5, 6, 7]),
            "sampling": SamplingParams(temperature=1.0, seed=3),
            "max_tokens": 20,
            "model": self.model,
        }
        return Prompt(**{**base, **more})

    async def busy(self, start: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """A task of `start()` that the engine works on now. A real engine may be done before anybody looks: then
        it is started again, a few times."""
        for _ in range(TRIES):
            task = asyncio.create_task(start())
            while not task.done():
                if await self.running() > 0:
                    return task
                await asyncio.sleep(0)
            await task
        raise AssertionError(f"done {TRIES} times before it was seen to run")

    def endless(self, **more: Any) -> Prompt:
        """Does not end before its ENDLESS tokens: this penalty makes a model repeat itself."""
        return self.prompt(**{"sampling": self.repeating, "max_tokens": ENDLESS, **more})


@asynccontextmanager
async def in_process(script: Script = babble, **more: Any) -> AsyncIterator[Subject]:
    """ScriptedEngine."""
    engine = ScriptedEngine(
        script,
        **{"decode": decode, "eos_ids": EOS, "max_model_len": WINDOW, "vocab_size": VOCABULARY, **more},
    )
    player = engine.player

    async def pause(mode: str) -> None:
        player.pause(mode)

    async def resume() -> None:
        player.resume()

    async def label(version: str) -> None:
        player.label = version

    async def running() -> int:
        return player.running

    try:
        yield Subject(engine, pause, resume, label, running, decode, player=player)
    finally:
        await engine.aclose()


@asynccontextmanager
async def over_http(
    script: Script = babble, *, server: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Subject]:
    """VllmEngine against the scripted server."""
    player = Player(
        script,
        **{"decode": decode, "eos_ids": EOS, "max_model_len": WINDOW, "vocab_size": VOCABULARY, **more},
    )
    async with (
        ScriptedServer(player, **(server or {})) as serving,
        _client(serving.url, "scripted") as subject,
    ):
        subject.player = player
        yield subject


@asynccontextmanager
async def real(vllm: Vllm) -> AsyncIterator[Subject]:
    """VllmEngine against vLLM, with its weight label as it was at the start."""
    async with _client(vllm.url, vllm.model) as subject:
        subject.decode = read_checkpoint(vllm.folder).vocab.decode
        try:
            yield subject
        finally:
            await subject.resume()
            await subject.label("default")


@asynccontextmanager
async def sglang(
    script: Script = babble, *, server: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Subject]:
    """SglangEngine against the scripted server that speaks SGLang's wire."""
    player = Player(
        script,
        **{"decode": decode, "eos_ids": EOS, "max_model_len": WINDOW, "vocab_size": VOCABULARY, **more},
    )
    async with (
        ScriptedSglang(player, **(server or {})) as serving,
        _client(serving.url, "scripted", SglangEngine, SglangControl, "sglang:num_running_reqs") as subject,
    ):
        subject.player = player
        yield subject


@asynccontextmanager
async def own_sglang(url: str, model: str = "scripted") -> AsyncIterator[Subject]:
    """SglangEngine against SGLang's own HTTP server, with its label as it was at the start."""
    async with _client(url, model, SglangEngine, SglangControl, "sglang:num_running_reqs") as subject:
        try:
            yield subject
        finally:
            await subject.resume()
            await subject.label("default")


@asynccontextmanager
async def _client(
    url: str,
    model: str,
    kind: type[EnginePool] = VllmEngine,
    controls: type[EngineControl | SglangControl] = EngineControl,
    gauge: str = "vllm:num_requests_running",
) -> AsyncIterator[Subject]:
    engine = await kind.connect([url], model=model, vocab_size=VOCABULARY)
    http = Transport()

    async def running() -> int:
        text = (await http.ask("GET", f"{url}/metrics", timeout_s=METRICS_S)).body.decode()
        lines = [line for line in text.splitlines() if line.startswith(gauge)]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))

    async with controls([url]) as control:
        try:
            yield Subject(
                engine,
                control.pause,  # type: ignore[arg-type]  # a str that is one of the modes
                control.resume,
                control.update_weight_version,
                running,
                decode,
                model,
                repeating=GREEDY if kind is SglangEngine else REPEATING,
            )
        finally:
            await engine.aclose()
            await http.aclose()
