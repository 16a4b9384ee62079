"""A gateway on hold starts nothing at an engine, wherever a turn waited when the hold came: a trainer that swaps
weights by itself looks at what engines have in flight, and a turn that waits is in none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sandgate.gateway.engine import logprobs_check, tries
from sandgate.gateway.engine.scripted.script import Gate, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.service.sessions import Sessions
from tests.support.gateway import Latch, codec, eventually, gateway, ids, rest, within

PROCESSED = "processed_logprobs"
LOOKS = 20
"""At what engines have in flight, while a turn could go on."""


class Way:
    """Of a turn to its engine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.player = Player(["kiwi"], encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
        self.player.logprobs_mode, self.player.refuse_paused = PROCESSED, True
        self.latch, self.waits, self._patch = Latch(), asyncio.Event(), patch
        self.tells(logprobs_check.LogprobsCheck, "next_of")
        self.tells(tries.Tries, "wait_out_pause")

    def tells(self, of: type, name: str) -> None:
        """That the turn waits."""
        real: Callable[..., Awaitable[object]] = getattr(of, name)

        async def call(*args: object) -> object:
            self.waits.set()
            await self.latch()
            return await real(*args)

        self._patch.setattr(of, name, call)

    def pause(self, mode: str) -> Callable[[], None]:
        self.player.pause(mode)
        return self.player.resume

    def shut(self) -> Callable[[], None]:
        self.tells(Sessions, "intend")
        self.latch.shut()
        return self.latch.open


PLACES: dict[str, tuple[Callable[[Way], Callable[[], None]], bool]] = {
    "for the measurement of its replica's logprobs": (lambda way: way.pause("keep"), True),
    "for an engine that is paused": (lambda way: way.pause("abort"), False),
    "for its intent to be on the disk": (lambda way: way.shut(), False),
}
"""What stops a turn there, which gives what lets it go on; and whether that comes before the engine is known."""


@pytest.mark.parametrize("place", PLACES)
async def test_no_turn_is_sampled_in_the_middle_of_a_swap_that_waited(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, early = PLACES[place]
    monkeypatch.setattr(tries, "PAUSED_WAITS_S", (0.0,))
    monkeypatch.setattr(logprobs_check, "SETTLE_S", 0.0 if early else 20.0)
    way, version = Way(monkeypatch), [0]
    async with ScriptedServer(way.player, model="shop") as server:
        go_on = stop(way) if early else None
        engine = await VllmEngine.connect(
            [server.url], logprobs_mode=PROCESSED, model="shop", version_now=lambda: version[0]
        )
        async with gateway(engine) as g:
            agent = await g.session()
            go_on = go_on or stop(way)
            turn = asyncio.ensure_future(agent.post("hi"))
            await within(way.waits, "it waits")
            holding = asyncio.ensure_future(g.admin.post("/v1/pause"))
            await eventually(lambda: g.core.turns.load.paused, "the gateway is on hold")
            await eventually(lambda: engine.status()[0].in_flight == 0, "nothing is in flight")
            go_on()
            assert (await holding).status_code == 200
            for _ in range(LOOKS):
                (seen,) = (await g.admin.get("/v1/status")).json()["engines"]
                assert seen["in_flight"] == 0
                await rest()
            assert (way.player.counts["generations"], turn.done()) == (0, False)
            version[0] = 5
            await g.admin.put("/v1/policy-version", json={"version": 5})
            await g.admin.post("/v1/resume")
            assert (await turn).status_code == 200
            (told,) = await g.tree(agent)
            assert told["versions"] == [[5, 0, told["sampled_tokens"]]]


@pytest.mark.parametrize("refuses", [False, True], ids=["queues it (vLLM 0.32)", "refuses it (0.33)"])
async def test_a_swap_that_takes_longer_than_turns_are_held_ends_none_that_had_begun(
    *, refuses: bool
) -> None:
    """Its engine aborted it, and takes it up again."""
    gate = Gate()
    script = [Reply("kiwi apple pear banana", gate=gate, gate_at=2)]
    player = Player(script, encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
    player.refuse_paused = refuses
    async with ScriptedServer(player, model="shop") as server:
        engine = await VllmEngine.connect([server.url], model="shop", version_now=lambda: 0)
        async with gateway(engine, limits={"pause_hold_s": 0.01}) as g:
            agent = await g.session()
            turn = asyncio.ensure_future(agent.post("hi"))
            await within(gate.reached, "it is sampled")
            await g.admin.post("/v1/pause")
            player.pause("abort")
            held = await agent.post("other")
            assert held.status_code == 503, "a new one is held no longer"
            gate.open.set()
            player.resume()
            await g.admin.post("/v1/resume")
            assert (await turn).status_code == 200
            said = (await g.admin.get(f"/v1/sessions/{agent.handle['session_id']}")).json()
    assert said["engine_errors"] == 0
