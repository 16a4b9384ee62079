"""A replica whose logprobs are of another mode than records would say is not used."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine import logprobs_check
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.logprobs import BELIEVED, against, kind_of, kind_of_alone
from sandgate.gateway.engine.responses import SENTINEL
from sandgate.gateway.engine.scripted.script import Ask, Player, ScriptedRefusal
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VllmEngine, measure
from sandgate.gateway.engine.wire import GenerateEndpoint
from sandgate.gateway.journal.top_logprobs import Top
from tests.support.vllm import FLAGS, Vllm, another
from tests.support.waiting import until

PROCESSED, RAW = "processed_logprobs", "raw_logprobs"
RAW_FLAGS = [flag for flag in FLAGS if flag not in ("--logprobs-mode", PROCESSED)]
"""As somebody starts vLLM who has not read our README."""


def softmax(*logits: float) -> Top:
    total = math.log(sum(map(math.exp, logits)))
    return tuple((at, logit - total) for at, logit in enumerate(logits))


def near(*logits: float) -> Top:
    """Of a large vocabulary: five of its tokens have some of the probability."""
    return tuple((at, p - 1.0) for at, (_, p) in enumerate(softmax(*logits)))


LOST = tuple((at, SENTINEL) for at in range(1, 5))
KINDS: dict[str, tuple[Top, str]] = {
    "only the best is left by top_k 1: processed": (((0, 0.0), *LOST), "processed"),
    "two that tie are both left: processed": (
        ((0, math.log(0.5)), (1, math.log(0.5)), *LOST[1:]),
        "processed",
    ),
    "all five are there: raw": (near(4, 2, 1, 0, -1), "raw"),
    "raw where the best is nearly certain": (softmax(40, 2, 1, 0, -1), "raw"),
    "raw in bfloat16, where neighbours tie": (near(4, 2, 2, 2, 2), "raw"),
    "numbers above zero: logits": (((0, 4.0), (1, 2.0), (2, 1.0)), "logits"),
    "more than one in sum: logits": (((0, -0.1), (1, -0.1)), "logits"),
    "filtered, and not one in sum: processed logits": (((0, -3.0), *LOST), "logits"),
    "five that tie say nothing": (near(1, 1, 1, 1, 1), "unclear"),
    "one token says nothing": (((0, 0.0),), "unclear"),
    "no alternatives say nothing": ((), "unclear"),
    "only missing ones say nothing": (LOST, "unclear"),
}


@pytest.mark.parametrize(("listed", "kind"), KINDS.values(), ids=KINDS)
def test_kind_of_logprobs(listed: Top, kind: str) -> None:
    assert kind_of(listed) == kind


ALONE: dict[str, tuple[tuple[float, float, float], str]] = {
    "each is certain where no other is allowed: processed": ((0.0, 0.0, -3.0), "processed"),
    "the restriction does not show: raw": ((-9.0, -4.0, -0.5), "raw"),
    "raw where one of them is nearly certain": ((-1e-7, -17.0, -1e-7), "raw"),
    "above zero: logits": ((3.0, -2.0, 4.0), "logits"),
    "only the best is above zero: logits": ((-3.0, -2.0, 4.0), "logits"),
    "more than one in sum: logits": ((-0.1, -0.1, -0.05), "logits"),
    "a missing one says nothing": ((SENTINEL, -4.0, -0.5), "unclear"),
}


@pytest.mark.parametrize(("told", "kind"), ALONE.values(), ids=ALONE)
def test_kind_of_logprobs_without_alternatives(told: tuple[float, float, float], kind: str) -> None:
    assert kind_of_alone(told[:2], told[2]) == kind


VERDICTS: dict[str, tuple[Any, str, str]] = {
    "as told": ("processed", PROCESSED, ""),
    "raw, as told": ("raw", RAW, ""),
    "raw, told otherwise": ("raw", PROCESSED, "start it with --logprobs-mode processed_logprobs, or set"),
    "processed, told otherwise": ("processed", RAW, "set engine.logprobsMode: processed_logprobs"),
    "logits, told processed": ("logits", PROCESSED, "logits, not log-probabilities"),
    "logits, told raw": ("logits", RAW, "logits, not log-probabilities"),
    "an answer that does not tell": ("unclear", PROCESSED, "do not show in which --logprobs-mode it is"),
}


@pytest.mark.parametrize(("kind", "mode", "why"), VERDICTS.values(), ids=VERDICTS)
def test_what_speaks_against_a_replica(kind: Any, mode: str, why: str) -> None:
    found = against(kind, mode)
    assert why in found
    assert bool(found) == bool(why)


def player(mode: str = PROCESSED) -> Player:
    made = Player([[11, 12]])
    made.logprobs_mode = mode
    return made


def prompt(affinity: str = "") -> Prompt:
    ids, sampling = array("i", [5, 6, 7]), SamplingParams()
    return Prompt(request_id=f"r{affinity}", ids=ids, sampling=sampling, max_tokens=9, affinity=affinity)


@asynccontextmanager
async def connected(*urls: str, mode: str = PROCESSED, **more: Any) -> AsyncIterator[VllmEngine]:
    engine = await VllmEngine.connect(urls, logprobs_mode=mode, **more)
    try:
        yield engine
    finally:
        await engine.aclose()


@pytest.mark.parametrize("scale_out", [True, False], ids=["generate", "completions"])
async def test_an_engine_in_another_mode_is_refused_with_what_to_do(scale_out: bool) -> None:
    async with ScriptedServer(player(RAW), generate_open=scale_out) as server:
        with pytest.raises(
            EngineFailed, match=r"its logprobs are raw, but .* --logprobs-mode processed_logprobs"
        ):
            await VllmEngine.connect([server.url], logprobs_mode=PROCESSED)
        async with connected(server.url, mode=RAW) as engine:
            assert (await engine.generate(prompt())).ids.tolist() == [11, 12]
    assert server.player.counts["generations"] == 1, "what is measured is beside the script"


async def test_one_of_two_in_another_mode_takes_no_turn_and_says_why() -> None:
    async with (
        ScriptedServer(player()) as good,
        ScriptedServer(player(RAW)) as bad,
        connected(bad.url, good.url, patient=True) as engine,
    ):
        for group in "abcd":
            assert (await engine.generate(prompt(group))).engine == good.url
        seen = {each.url: each for each in engine.status()}
        assert seen[good.url].healthy
        assert not seen[bad.url].healthy
        assert "its logprobs are raw" in seen[bad.url].detail
        await engine.set_urls([bad.url])
        with pytest.raises(EngineUnavailable, match="its logprobs are raw"):
            await engine.generate(prompt())
    assert bad.player.counts["generations"] == 0


async def test_one_that_joins_in_another_mode_takes_no_turn() -> None:
    async with (
        ScriptedServer(player()) as good,
        ScriptedServer(player(RAW)) as bad,
        connected(good.url) as engine,
    ):
        await engine.set_urls([good.url, bad.url])
        await engine._logprobs.settle()
        assert [each.healthy for each in engine.status()] == [True, False]
        for group in "abcd":
            assert (await engine.generate(prompt(group))).engine == good.url


async def test_a_turn_waits_for_a_measurement_that_a_paused_engine_holds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprobs_check, "SETTLE_S", 0.05)
    async with ScriptedServer(player()) as server:
        server.player.pause("keep")
        async with connected(server.url) as engine:
            (seen,) = engine.status()
            assert (seen.healthy, seen.detail) == (True, "its logprobs are not measured yet")
            turn = asyncio.create_task(engine.generate(prompt()))
            done, _ = await asyncio.wait([turn], timeout=0.2)
            assert not done
            server.player.resume()
            assert (await turn).ids.tolist() == [11, 12]


async def test_an_engine_that_starts_again_in_another_mode_is_not_used() -> None:
    async with ScriptedServer(player()) as first:
        port = int(first.url.rpartition(":")[2])
        async with connected(first.url, probe_s=0.05) as engine:

            async def raw() -> bool:
                return "its logprobs are raw" in engine.status()[0].detail

            async def up() -> bool:
                return engine.status()[0].healthy

            async def dead() -> bool:  # as a vLLM is for half a minute while it starts
                return not engine.table.replicas[first.url].healthy

            assert (await engine.generate(prompt())).ids.tolist() == [11, 12]
            await first.__aexit__(None, None, None)
            with pytest.raises(EngineUnavailable):
                await engine.generate(prompt())
            async with ScriptedServer(player(RAW), port=port) as second:
                await until(raw, what="it was measured")
                with pytest.raises(EngineUnavailable, match="its logprobs are raw"):
                    await engine.generate(prompt())
                assert second.player.counts["generations"] == 0
            await until(dead, what="it was missed")
            async with ScriptedServer(player(), port=port):
                await until(up, what="it is up")
                assert (await engine.generate(prompt())).ids.tolist() == [11, 12]


@pytest.mark.parametrize("scale_out", [True, False], ids=["generate", "completions"])
@pytest.mark.parametrize("mode", [RAW, PROCESSED, "raw_logits", "processed_logits"])
async def test_the_mode_is_measured_of_an_engine_that_gives_no_alternatives(
    scale_out: bool, mode: str
) -> None:
    """vLLM with `--max-logprobs 0`, as is usual where only the sampled token's logprob is asked for."""
    played = player(mode)
    played.max_logprobs = 0
    async with ScriptedServer(played, generate_open=scale_out) as server:
        if mode == PROCESSED:
            async with connected(server.url) as engine:
                assert (await engine.generate(prompt())).ids.tolist() == [11, 12]
            return
        with pytest.raises(
            EngineFailed, match="its logprobs are raw" if mode == RAW else "it reports logits"
        ):
            await VllmEngine.connect([server.url], logprobs_mode=PROCESSED)


async def test_an_engine_that_refuses_the_question_is_not_used_until_it_answers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(_: Player, __: Ask) -> None:
        raise ScriptedRefusal(400, "logprobs: none")

    async def up() -> bool:
        return engine.status()[0].healthy

    with monkeypatch.context() as patched:
        patched.setattr(Player, "measured", refuses)
        async with ScriptedServer(player()) as server:
            with pytest.raises(EngineFailed, match=r"could not be measured.*logprobs: none"):
                await VllmEngine.connect([server.url], logprobs_mode=PROCESSED)
            async with connected(server.url, patient=True, probe_s=0.02) as engine:
                with pytest.raises(EngineUnavailable, match=r"could not be measured.*logprobs: none"):
                    await engine.generate(prompt())
                patched.undo()
                await until(up, what="it was asked again")
                assert (await engine.generate(prompt())).ids.tolist() == [11, 12]
    assert caplog.text.count("is not used: its logprobs could not be measured") == 2, "once for each pool"


async def test_a_server_that_knows_the_mode_of_its_engines_is_believed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the relay to verl's servers: it has no alternatives to give."""

    async def refuses(_: Player, __: Ask) -> None:
        raise ScriptedRefusal(400, f"verl's client gives no alternatives: {BELIEVED}")

    monkeypatch.setattr(Player, "measured", refuses)
    async with ScriptedServer(player()) as server, connected(server.url) as engine:
        assert (await engine.generate(prompt())).ids.tolist() == [11, 12]
    assert "are taken for processed_logprobs, unmeasured" in caplog.text


async def test_an_engine_that_cannot_answer_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_check, "PROBE_S", 0.02)
    answers, real = iter([503, 429, 500]), Player.measured

    async def busy(self: Player, ask: Ask) -> Any:
        if (status := next(answers, 0)) != 0:
            raise ScriptedRefusal(status, "later")
        return await real(self, ask)

    monkeypatch.setattr(Player, "measured", busy)
    async with ScriptedServer(player(RAW)) as server:
        with pytest.raises(EngineFailed, match="its logprobs are raw"):
            await VllmEngine.connect([server.url], logprobs_mode=PROCESSED)


async def test_nothing_told_is_nothing_to_measure() -> None:
    async with ScriptedServer(player(RAW)) as server, connected(server.url, mode="unknown") as engine:
        assert engine.status()[0].healthy


async def test_a_gateway_that_closes_stops_measuring() -> None:
    async with ScriptedServer(player()) as server:
        server.player.pause("keep")
        engine = VllmEngine([server.url], logprobs_mode=PROCESSED)
        await engine._learn(server.url)
        await engine.aclose()
        assert not engine._logprobs._running
        assert not server.player.running


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_vllm_in_the_mode_that_ours_are_started_in(vllm: Vllm) -> None:
    assert await _measured(vllm) == ["processed", "processed"]


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.endurance
@pytest.mark.parametrize("more", [[], ["--max-logprobs", "1"]], ids=["its defaults", "few alternatives"])
async def test_vllm_as_it_starts_by_itself_is_refused(more: list[str]) -> None:
    with another([*RAW_FLAGS, *more]) as raw:
        assert await _measured(raw) == ["raw", "raw"]
        with pytest.raises(EngineFailed, match="its logprobs are raw"):
            await VllmEngine.connect([raw.url], model=raw.model, logprobs_mode=PROCESSED)


async def _measured(vllm: Vllm) -> list[str]:
    http = Transport()
    try:
        return [await measure(http, vllm.url, door, model=vllm.model) for door in GenerateEndpoint]
    finally:
        await http.aclose()
