"""Weight updates of SGLang: what its refusals of a load mean, and a pause that does not hold what cannot be swapped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable, SandgateError
from sandgate.gateway.engine.scripted.script import Player
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang import control as module
from sandgate.gateway.engine.sglang.control import SglangControl

NO_FOLDER = "Failed to get weights iterator: [Errno 2] No such file or directory: '/ckpt/2'."


@asynccontextmanager
async def controlled(**server: Any) -> AsyncIterator[tuple[ScriptedSglang, SglangControl]]:
    async with (
        ScriptedSglang(Player([[1]]), **server) as serving,
        SglangControl([serving.url]) as control,
    ):
        yield serving, control


LOADS: dict[str, tuple[int, str, dict[str, Any], type[SandgateError]]] = {
    "a folder that it does not find: nothing was loaded": (400, NO_FOLDER, {}, EngineFailed),
    "a loader that it does not have: nothing was loaded": (
        400, "Failed to get model loader: <DummyModelLoader>.", {}, EngineFailed,
    ),
    "a model that cannot be updated: nothing was loaded": (
        400, "Online weight updates are not supported while x.", {}, EngineFailed,
    ),
    "a body that it does not take: nothing was loaded": (422, "Field required", {}, EngineFailed),
    "a key that it does not take: nothing was loaded": (401, "Unauthorized", {}, EngineFailed),
    "a cache that was not cleared: the new ones are there": (
        400, "Weights were updated, but the cache was not flushed because requests are still running or queued.", {},
        EngineUnavailable,
    ),
    "a roll back, which loads the new folder again": (
        400, "Failed to update weights: shape.\nRolling back to original weights.", {}, EngineUnavailable,
    ),
    "a rank of several: the others may have loaded": (
        400, f"{NO_FOLDER} | Succeeded to update model weights.", {}, EngineUnavailable,
    ),
    "a draft model's folder, behind the model's own": (
        400, NO_FOLDER, {"speculative_algorithm": "EAGLE"}, EngineUnavailable,
    ),
    "the first of several machines": (400, NO_FOLDER, {"nnodes": 2}, EngineUnavailable),
    "a 400 in other words": (400, "oh", {}, EngineUnavailable),
    "a failure": (500, "oh", {}, EngineUnavailable),
}  # fmt: skip


@pytest.mark.parametrize(("status", "words", "settings", "kind"), LOADS.values(), ids=LOADS)
async def test_a_load_that_fails_leaves_the_old_weights_only_where_that_is_known(
    status: int, words: str, settings: dict[str, Any], kind: type[SandgateError]
) -> None:
    async with controlled(settings=settings) as (server, control):
        server.load_answer = status, words
        with pytest.raises(SandgateError) as caught:
            await control.reload_weights("/ckpt/2")
        assert isinstance(caught.value, EngineFailed) is (kind is EngineFailed)
        assert isinstance(caught.value, EngineUnavailable) is (kind is EngineUnavailable)
        assert ("nobody knows what weights" in str(caught.value)) is (kind is EngineUnavailable)


MODES: list[Literal["abort", "wait", "keep"]] = ["abort", "wait", "keep"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("older", [False, True], ids=["0.5.23", "older"])
async def test_a_pause_clears_the_cache_before_anything_is_swapped(
    mode: Literal["abort", "wait", "keep"], older: bool
) -> None:
    async with controlled(old_paths=older) as (server, control):
        await control.pause(mode)
        assert (server.player.paused, server.flushed) == (True, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_a_pause_lets_grammars_through_that_would_hold_the_cache_for_ever(
    mode: Literal["abort", "wait", "keep"],
) -> None:
    """A paused scheduler does not look at them (0.5.23, `event_loop_normal`)."""
    async with controlled() as (server, control):
        server.queued = 2
        await control.pause(mode)
        assert (server.player.paused, server.queued, server.flushed) == (True, 0, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cache_that_is_never_cleared_is_an_error_before_the_swap(
    mode: Literal["abort", "wait", "keep"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITS_S", (0.0, 0.0))
    async with controlled() as (server, control):
        server.queued = 100
        with pytest.raises(EngineFailed, match=r"does not clear its cache.*Flush cache failed"):
            await control.pause(mode)


async def test_what_was_paused_before_never_goes_on_for_a_grammar() -> None:
    """An update before left it so: nobody knows its weights."""
    async with controlled() as (server, control):
        server.player.pause("keep")
        server._frozen, server.queued = True, 1
        await control.pause("keep")
        assert (server.player.paused, server.queued) == (True, 1)


async def test_what_was_frozen_before_is_not_asked_to_abort() -> None:
    """SGLang waits for the end of what it aborts, in a lock that its continuation needs: a frozen scheduler never ends
    what waits for a grammar."""
    async with controlled() as (server, control):
        await control.pause("keep")
        await control.pause("abort")
        assert server._frozen


async def test_one_that_cannot_say_whether_it_was_paused_is_not_let_go_on() -> None:
    async with controlled(old_paths=True) as (server, control):
        server.queued = 1
        with pytest.raises(EngineFailed, match="does not clear its cache"):
            await control.pause("keep")
        assert (server.player.paused, server.queued) == (True, 1)


async def test_sglang_says_whether_it_is_paused() -> None:
    async with controlled() as (_, control):
        assert await control.is_paused() == [False]
        await control.pause("keep")
        assert await control.is_paused() == [True]
        await control.resume()
        assert await control.is_paused() == [False]


async def test_an_older_one_does_not_say_whether_it_is_paused() -> None:
    async with controlled(old_paths=True) as (_, control):
        with pytest.raises(EngineFailed, match="no such endpoint"):
            await control.is_paused()
