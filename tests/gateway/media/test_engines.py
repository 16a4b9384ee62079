"""What engines are sent of pictures, and whether they saw what was meant: vLLM's client, and a server that plays it."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Delta, Prompt
from sandgate.gateway.engine.scripted.script import Fault, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import Picture, read
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.spans import Spans
from sandgate.gateway.media.vision import Vision
from tests.gateway.media.seeing import RULE, encoded, picture

PAD = 9
VISION = Vision(PAD, "<|image_pad|>", RULE)
COARSE = Vision(PAD, "<|image_pad|>", GridRule(28, 2, RULE.min_pixels, RULE.max_pixels))
"""Of an engine whose processor is set otherwise."""


def asked(*colors: str, ids: Sequence[int] = (), **more: Any) -> Prompt:
    """Of a prompt with a picture for each colour, between words."""
    pictures = [read(encoded(picture(color)), RULE) for color in colors]
    collapsed = array("i", ids or [1, *(token for _ in colors for token in (7, PAD, 8)), 2])
    return prompt_of(VISION, *expand(collapsed, VISION, pictures), pictures, **more)


def prompt_of(vision: Vision, ids: Ids, media: Spans, pictures: Sequence[Picture], **more: Any) -> Prompt:
    """As the pipeline makes it."""
    return Prompt(
        request_id=more.pop("name", "t1"), ids=ids, sampling=SamplingParams(), max_tokens=16, media=media,
        pictures=tuple(pictures), told=vision.told(ids, media) if media else None, **more,
    )  # fmt: skip


@asynccontextmanager
async def playing(player: Player, vision: Vision = VISION, **more: Any) -> AsyncIterator[VllmEngine]:
    async with ScriptedServer(player, vision=vision, **more) as server:
        engine = await VllmEngine.connect([server.url])
        try:
            yield engine
        finally:
            await engine.aclose()


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_the_engine_makes_the_ids_that_were_meant(stream: bool) -> None:
    prompts: list[list[int]] = []

    def script(ids: Sequence[int], _: int) -> Reply:
        prompts.append(list(ids))
        return Reply([3, 4])

    player, deltas = Player(script), list[Delta]()
    prompt = asked("red", "green")
    async with playing(player) as engine:
        sample = await engine.generate(prompt, deltas.append if stream else None)
        assert sample.ids.tolist() == [3, 4]
    assert prompts == [prompt.ids.tolist()]
    assert player.shown[-1] == tuple(one.png for one in prompt.pictures)
    assert bool(deltas) is stream


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_an_engine_that_cuts_pictures_otherwise_is_refused_before_anything_is_told(
    stream: bool,
) -> None:
    player, deltas = Player([Reply([3, 4])]), list[Delta]()
    async with playing(player, COARSE) as engine:
        with pytest.raises(EngineFailed, match="was to make 11 prompt ids with images at"):
            await engine.generate(
                asked("red", ids=[1, 2, 3, 4, PAD, 5, 6, 7]), deltas.append if stream else None
            )
    assert deltas == []


async def test_an_engine_that_says_nothing_of_its_prompt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedServer, "_see", lambda _, asked: (array("i", asked.token_ids), [], []))
    async with playing(Player([Reply([3])])) as engine:
        with pytest.raises(EngineFailed, match="and made 5 ids with images at"):
            await engine.generate(asked("red"))


async def test_an_engine_without_the_token_endpoint_takes_no_pictures() -> None:
    async with playing(Player([Reply([3])]), generate_open=False) as engine:
        with pytest.raises(EngineFailed, match="--enable-scale-out"):
            await engine.generate(asked("red"))


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_generation_with_pictures_is_taken_up_after_an_abort(stream: bool) -> None:
    player = Player([Reply([3, 4, 5, 6], fault=Fault("abort", after=2))])
    async with playing(player) as engine:
        deltas = list[Delta]()
        sample = await engine.generate(asked("red"), deltas.append if stream else None)
        assert (sample.ids.tolist(), sample.resumed) == ([3, 4, 5, 6], 1)
    assert len(player.shown) == 2
