"""What goes wrong in an engine becomes one precise error, or is survived with every sampled id kept."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import sandgate
from sandgate.contract.errors import (
    EngineFailed,
    EngineUnavailable,
    Overloaded,
    RefusedByEngine,
    SandgateError,
)
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Delta, Holdable, Prompt, VersionSpan
from sandgate.gateway.engine.generation import RESUMES_MAX
from sandgate.gateway.engine.pool import EnginePool
from sandgate.gateway.engine.scripted.engine import Fault, Gate, Player, Reply, logprob_of
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.vllm import VllmEngine
from tests.gateway.engine.subjects import EOS, VOCABULARY, Subject, decode, in_process, over_http, sglang

SUBJECTS: dict[str, Callable[..., AbstractAsyncContextManager[Subject]]] = {
    "scripted": in_process,
    "over http": over_http,
    "sglang": sglang,
    "sglang with new tokens only": lambda *script, **more: sglang(
        *script, server={"incremental": True}, **more
    ),
}
WIRES = {name: opens for name, opens in SUBJECTS.items() if name != "scripted"}
IDS = [11, 12, 13, 14, 15, 16]
PROMPT = [5, 6, 7]
LOGPROBS = array("f", [logprob_of(token, len(PROMPT) + at) for at, token in enumerate(IDS)])

Open = Callable[[Any], AbstractAsyncContextManager[Subject]]


@pytest.fixture(params=SUBJECTS)
def opens(request: pytest.FixtureRequest) -> Open:
    made: Open = SUBJECTS[request.param]
    return made


REFUSED: dict[str, tuple[Fault, type[SandgateError], str, float | None]] = {
    "500 is a failure": (Fault("status", message="CUDA error"), EngineFailed, "500: CUDA error", None),
    "400 is the caller's, in its words": (Fault("status", 0, 400, "bad regex"), RefusedByEngine, "bad regex", None),
    "429 is overload, as long as told": (Fault("status", status=429, retry_after="3"), Overloaded, "overloaded", 3.0),
    "503 is unavailable": (Fault("status", status=503, retry_after="2"), EngineUnavailable, "503", 2.0),
    "a sentinel logprob": (Fault("sentinel"), EngineFailed, "id 11): logprob -9999", None),
    "a sentinel in the middle": (Fault("sentinel", after=3), EngineFailed, "id 14): logprob -9999", None),
    "a missing logprob": (Fault("misaligned", after=2), EngineFailed, "logprobs", None),
    "a positive logprob": (Fault("positive", after=2), EngineFailed, "logprob 0.5 is positive", None),
    "an id that does not exist": (Fault("foreign_id", after=2), EngineFailed, "-7", None),
}  # fmt: skip


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("fault", "kind", "text", "seconds"), REFUSED.values(), ids=REFUSED)
async def test_refused(
    opens: Open, streamed: bool, fault: Fault, kind: type[SandgateError], text: str, seconds: float | None
) -> None:
    async with opens([Reply(IDS, fault=fault)]) as subject:
        with pytest.raises(kind) as caught:
            await subject.engine.generate(subject.prompt(), (lambda _: None) if streamed else None)
        assert text in str(caught.value)
        assert caught.value.retry_after == seconds
        assert [each.in_flight for each in subject.engine.status()] == [0]


@pytest.mark.parametrize("after", [0, 1, 4, 5])
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_aborted_generation_is_taken_up_again(opens: Open, streamed: bool, after: int) -> None:
    deltas: list[Delta] = []
    async with opens([Reply(IDS, fault=Fault("abort", after=after)), "never"]) as subject:
        sample = await subject.engine.generate(subject.prompt(), deltas.append if streamed else None)
    assert (sample.ids.tolist(), sample.logprobs) == (IDS, LOGPROBS)
    assert (sample.finish, sample.resumed) == ("stop", 1)
    assert [token for delta in deltas for token in delta.ids] == (IDS if streamed else [])


@pytest.mark.parametrize("after", [1, 4, 5])
async def test_a_stream_that_breaks_goes_on_after_its_last_id(opens: Open, after: int) -> None:
    deltas: list[Delta] = []
    async with opens([Reply(IDS, fault=Fault("reset", after=after)), "never"]) as subject:
        sample = await subject.engine.generate(subject.prompt(version=2), deltas.append)
        assert subject.player is not None
        assert subject.player.counts["resumed"] == 1
    assert (sample.ids.tolist(), sample.logprobs) == (IDS, LOGPROBS)
    assert sample.versions == (VersionSpan(2, 0, len(IDS)),)
    assert [token for delta in deltas for token in delta.ids] == IDS


BUSY = Fault("status", 3, 503, "the queue is full")
"""Behind the third token, as an event of the stream."""
GRAMMAR = {"regex": "a+"}


@asynccontextmanager
async def two_of(kind: str, script: Any) -> AsyncIterator[tuple[Player, EnginePool]]:
    """Replicas that play one script between them."""
    player = Player(script, decode=decode, eos_ids=EOS, vocab_size=VOCABULARY)
    server, engine = (ScriptedServer, VllmEngine) if kind == "vllm" else (ScriptedSglang, SglangEngine)
    async with server(player) as one, server(player) as other:
        made = await engine.connect([one.url, other.url], model="scripted", vocab_size=VOCABULARY)
        async with aclosing(made):
            yield player, made


def asked(**more: Any) -> Prompt:
    wanted = {"max_tokens": 20, "model": "scripted", **more}
    return Prompt(request_id="r", ids=array("i", PROMPT), sampling=SamplingParams(), **wanted)


async def test_a_refusal_in_the_middle_of_a_stream_keeps_what_was_sampled() -> None:
    deltas: list[Delta] = []
    async with two_of("sglang", [Reply(IDS, fault=BUSY), "never"]) as (player, engine):
        sample = await engine.generate(asked(), deltas.append)
        assert player.counts["resumed"] == 1
    assert (sample.ids.tolist(), sample.logprobs, sample.resumed) == (IDS, LOGPROBS, 1)
    assert [token for delta in deltas for token in delta.ids] == IDS


async def test_a_grammar_is_not_begun_anew_behind_what_was_told() -> None:
    """The second engine would hold the rest to the whole of it: `{"a": {"a": 1}`."""
    told: list[Delta] = []
    async with two_of("sglang", [Reply(IDS, fault=BUSY), [21, 22]]) as (player, engine):
        with pytest.raises(
            EngineUnavailable, match=r"a grammar cannot be taken up in the middle; .*queue is full"
        ):
            await engine.generate(asked(constraint=GRAMMAR), told.append)
        assert player.counts["generations"] == 1
        again = await engine.generate(asked(constraint=GRAMMAR), told.append)
    assert again.ids.tolist() == [21, 22], "and the engine that was busy is still one of two"


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
async def test_a_penalty_is_not_begun_anew_behind_what_was_told(opens: Open, name: Any) -> None:
    """The engine would count only what it samples behind the cut, and the record would say the penalty."""
    more: dict[str, Any] = {name: 1.5}
    sampling = SamplingParams(**more)
    async with opens([Reply(IDS, fault=Fault("abort", after=3)), [21, 22]]) as subject:
        sample = await subject.engine.generate(subject.prompt(sampling=sampling))
    assert (sample.ids.tolist(), sample.resumed) == ([21, 22], 1), "nothing was told: it starts again"
    async with opens([Reply(IDS, fault=Fault("abort", after=3)), "never"]) as subject:
        with pytest.raises(EngineUnavailable, match=f"{name}, which .* in the middle; the engine aborted it"):
            await subject.engine.generate(subject.prompt(sampling=sampling), lambda _: None)


@asynccontextmanager
async def capped(most: int, **more: Any) -> AsyncIterator[Subject]:
    """vLLM without --enable-scale-out, whose generation config has a max_new_tokens."""
    async with over_http(
        lambda ids, _: IDS[len(ids) - len(PROMPT) :], server={"generate_open": False}, **more
    ) as subject:
        assert subject.player is not None
        subject.player.max_new_tokens = most
        yield subject


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_goes_on_behind_a_limit_of_the_engines_own(
    streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    deltas: list[Delta] = []
    async with capped(4) as subject:
        for max_tokens, finish in ((20, "stop"), (5, "length"), (4, "length")):
            wanted = subject.prompt(max_tokens=max_tokens)
            deltas.clear()
            sample = await subject.engine.generate(wanted, deltas.append if streamed else None)
            assert (sample.ids.tolist(), sample.finish) == (IDS[:max_tokens], finish)
            assert sample.logprobs == LOGPROBS[:max_tokens]
            assert [token for delta in deltas for token in delta.ids] == (
                IDS[:max_tokens] if streamed else []
            )
    assert caplog.text.count("a max_new_tokens in its generation config") == 1


class Hold:
    """A weight update that begins when the first piece is being sampled."""

    def __init__(self) -> None:
        self.asked, self.reached, self.over = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.asked += 1
        if self.asked > 1:
            self.reached.set()
            await self.over.wait()


@pytest.mark.parametrize("kind", ["abort", "reset"])
async def test_what_an_engine_ended_too_early_is_not_taken_up_before_the_gateway_goes_on(kind: str) -> None:
    hold = Hold()
    async with over_http([Reply(IDS, fault=Fault(kind, after=3)), IDS[3:]]) as subject:  # type: ignore[arg-type]
        assert isinstance(subject.engine, Holdable)
        subject.engine.hold = hold
        task = asyncio.create_task(subject.engine.generate(subject.prompt(), lambda _: None))
        await hold.reached.wait()
        assert subject.player is not None
        assert subject.player.counts["generations"] == 1
        assert [one.in_flight for one in subject.engine.status()] == [0], (
            "a swap that waits does not wait for it"
        )
        hold.over.set()
        assert (await task).ids.tolist() == IDS


async def test_an_answer_behind_a_limit_of_the_engines_own_ends_before_a_swap_that_waits() -> None:
    async with capped(4) as subject:
        assert isinstance(subject.engine, Holdable)
        subject.engine.hold = hold = Hold()
        assert (await subject.engine.generate(subject.prompt())).ids.tolist() == IDS
    assert hold.asked == 1


CAPPED: dict[str, tuple[int, dict[str, Any]]] = {
    "a grammar, which cannot go on": (4, {"constraint": GRAMMAR}),
    "a penalty, which cannot go on": (4, {"sampling": SamplingParams(frequency_penalty=1.5)}),
    "a limit that is far too small": (0, {}),
}


@pytest.mark.parametrize(("most", "more"), CAPPED.values(), ids=CAPPED)
async def test_what_cannot_go_on_behind_a_limit_of_the_engines_own_has_ended_there(
    most: int, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Not failed: a policy could choose its engine's failure by a long answer, or an agent by a penalty."""
    async with capped(most) as subject:
        if not most:  # the script ends each piece without a token
            subject.player._script = lambda _, __: Reply([], finish="length")  # type: ignore[union-attr]
        sample = await subject.engine.generate(subject.prompt(**more))
    assert (sample.ids.tolist(), sample.finish) == (IDS[:most], "length")
    assert caplog.text.count("a max_new_tokens in its generation config") == 1


async def test_a_long_answer_goes_on_behind_as_many_limits_as_it_takes() -> None:
    async with capped(1) as subject:
        subject.player._script = lambda ids, _: [11] * (40 - (len(ids) - len(PROMPT)))  # type: ignore[union-attr]
        sample = await subject.engine.generate(subject.prompt(max_tokens=30))
    assert (len(sample.ids), sample.finish, sample.resumed) == (30, "length", 29)


async def test_an_engine_whose_window_is_full_ends_an_answer_rightly() -> None:
    async with capped(3, max_model_len=len(PROMPT) + 3) as subject:
        sample = await subject.engine.generate(subject.prompt())
    assert (sample.ids.tolist(), sample.finish, sample.resumed) == (IDS[:3], "length", 0)


async def test_an_engine_that_fails_in_the_middle_is_not_asked_elsewhere() -> None:
    """vLLM: an error event says nothing of what may be tried again."""
    async with two_of("vllm", [Reply(IDS, fault=BUSY), "never"]) as (player, engine):
        with pytest.raises(EngineFailed, match="queue is full"):
            await engine.generate(asked(constraint=GRAMMAR), lambda _: None)
        assert player.counts["generations"] == 1


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
async def test_what_breaks_before_anything_was_heard_is_asked_again(wire: Open) -> None:
    async with wire([Reply(IDS, fault=Fault("reset", after=3)), Reply([21, 22])]) as subject:
        sample = await subject.engine.generate(subject.prompt())
    assert (sample.ids.tolist(), sample.resumed) == ([21, 22], 0)


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
async def test_what_breaks_again_and_again_is_unavailable(wire: Open) -> None:
    async with wire([Reply(IDS, fault=Fault("reset"))]) as subject:
        with pytest.raises(EngineUnavailable):
            await subject.engine.generate(subject.prompt())
        assert not subject.engine.status()[0].healthy


async def test_an_engine_that_aborts_for_ever_is_given_up(opens: Open) -> None:
    class AbortsAll(Player):
        def _plan(self, ask: Any) -> Any:
            run = super()._plan(ask)
            run.aborted.set()
            return run

    async with opens([Reply(IDS)]) as subject:
        assert subject.player is not None
        subject.player.__class__ = AbortsAll
        with pytest.raises(EngineUnavailable, match=f"cut {RESUMES_MAX} times"):
            await subject.engine.generate(subject.prompt())
        assert subject.player.counts["aborted"] == RESUMES_MAX + 1


async def test_versions_are_told_per_piece_when_the_weights_change_in_the_middle(opens: Open) -> None:
    gate = Gate()
    async with opens([Reply(IDS, gate=gate, gate_at=2)]) as subject:
        await subject.label("step-7")
        task = asyncio.create_task(subject.engine.generate(subject.prompt(version=1)))
        await gate.reached.wait()
        await subject.pause("abort")
        await subject.label("step-8")
        await subject.resume()
        sample = await task
    assert sample.versions == (VersionSpan(7, 0, 2), VersionSpan(8, 2, 6))
    assert (sample.logprobs, sample.resumed) == (LOGPROBS, 1)


async def test_a_frozen_generation_goes_on_by_itself(opens: Open) -> None:
    gate = Gate()
    async with opens([Reply(IDS, gate=gate, gate_at=2)]) as subject:
        await subject.label("7")
        task = asyncio.create_task(subject.engine.generate(subject.prompt()))
        await gate.reached.wait()
        await subject.pause("keep")
        gate.open.set()
        await subject.label("8")
        assert not task.done()
        await subject.resume()
        sample = await task
    assert (sample.versions, sample.resumed) == ((VersionSpan(7, 0, 2), VersionSpan(8, 2, 6)), 0)


@pytest.mark.parametrize("streamed", [True, False])
async def test_without_reports_a_stream_is_of_what_was_told_as_its_tokens_came(streamed: bool) -> None:
    """An answer that is not streamed is of the oldest version that it can be of: nobody knows when its tokens came."""
    gate, told, deltas = Gate(), [3], list[Delta]()
    player = Player([Reply(IDS, gate=gate, gate_at=2)], decode=decode, eos_ids=EOS, vocab_size=VOCABULARY)
    came = asyncio.Event()

    def take(delta: Delta) -> None:
        deltas.append(delta)
        if sum(len(each.ids) for each in deltas) >= 2:
            came.set()

    async with ScriptedServer(player, versions=False) as server:
        engine = await VllmEngine.connect([server.url], model="scripted", version_now=lambda: told[0])
        async with aclosing(engine):
            prompt = Prompt(
                request_id="r", ids=array("i", PROMPT), sampling=SamplingParams(), max_tokens=20,
                model="scripted", version=3,
            )  # fmt: skip
            task = asyncio.create_task(engine.generate(prompt, take if streamed else None))
            await (came if streamed else gate.reached).wait()
            player.pause("keep")
            told[0] = 4
            player.resume()
            gate.open.set()
            sample = await task
    assert sample.ids.tolist() == IDS
    whole = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 6)) if streamed else (VersionSpan(3, 0, 6),)
    assert (sample.versions, sample.resumed) == (whole, 0)
    assert [each.version for each in deltas for _ in each.ids] == ([3, 3, 4, 4, 4, 4] if streamed else [])


@pytest.mark.parametrize("mode", ["abort", "wait"])
@pytest.mark.parametrize("refuses", [True, False], ids=["503 as 0.33", "waits as 0.32"])
async def test_a_new_request_waits_for_the_end_of_a_pause(opens: Open, refuses: bool, mode: str) -> None:
    async with opens([Reply(IDS)]) as subject:
        assert subject.player is not None
        subject.player.refuse_paused = refuses
        await subject.pause(mode)
        task = asyncio.create_task(subject.engine.generate(subject.prompt()))
        asyncio.get_running_loop().call_later(0.05, subject.player.resume)
        assert (await task).ids.tolist() == IDS


async def test_closing_ends_what_runs_and_refuses_what_comes(opens: Open) -> None:
    gate = Gate()
    async with opens([Reply(IDS, gate=gate)]) as subject:
        task = asyncio.create_task(subject.engine.generate(subject.prompt()))
        await gate.reached.wait()
        await subject.engine.aclose()
        with pytest.raises(EngineUnavailable, match="clos"):
            await task
        with pytest.raises(EngineUnavailable, match="closed"):
            await subject.engine.generate(subject.prompt())
        assert subject.player is not None
        assert subject.player.running == 0


OURS = tuple(f"{Path(root).resolve()}/" for root in sandgate.__path__)
"""Where the code of the rooms lies. Not any path with `sandgate` in it: a clone's folder has that name, too."""


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    code = [getattr(task.get_coro(), "cr_code", None) for task in asyncio.all_tasks()]
    assert not [c.co_qualname for c in code if c is not None and c.co_filename.startswith(OURS)]
