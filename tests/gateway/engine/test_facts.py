"""What is learned about an engine at start-up, and its controls."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from array import array
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.control import EngineControl
from sandgate.gateway.engine.facts import label_of, probe
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.transport import HttpAnswer, Transport
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.engine.wire import GenerateEndpoint
from tests.support.vllm import Vllm


async def _probe(player: Player, *, model: str = "scripted", **server: Any) -> Any:
    http = Transport()
    try:
        async with ScriptedServer(player, **server) as serving:
            return await probe(http, serving.url, model=model, logprobs_mode="raw_logprobs")
    finally:
        await http.aclose()


async def test_an_engine_says_what_it_is() -> None:
    player = Player([[1]], max_model_len=777)
    found = await _probe(player, version="0.33.1")
    assert (found.facts.version, found.facts.max_model_len, found.facts.models) == (
        "0.33.1",
        777,
        ["scripted"],
    )
    assert (found.facts.logprobs_mode, found.endpoint, found.notes) == (
        "raw_logprobs",
        GenerateEndpoint.GENERATE,
        [],
    )
    assert player.counts["generations"] == 0, "asking what it is samples nothing"


async def test_a_closed_door_is_noted_with_the_flag_that_opens_it() -> None:
    found = await _probe(Player([[1]]), generate_open=False)
    assert found.endpoint is GenerateEndpoint.COMPLETIONS
    assert "--enable-scale-out" in found.notes[0]


async def test_another_model_is_noted_with_those_there_are() -> None:
    found = await _probe(Player([[1]]), model="qwen")
    assert found.notes == ["model 'qwen' is not served; there are ['scripted']"]
    assert found.facts.max_model_len == 0


async def test_what_is_no_vllm_is_refused_at_once() -> None:
    server = ScriptedServer(Player([[1]]))
    server._version = 7  # type: ignore[assignment]  # not what a vLLM answers
    async with server:
        with pytest.raises(EngineFailed, match="not a vLLM server"):
            await VllmEngine.connect([server.url])


class Garbage(Transport):
    """To a server of something else: JSON that is no UTF-8."""

    async def ask(self, method: str, url: str, **more: Any) -> HttpAnswer:
        return HttpAnswer(200, b'{"version": "\xff", "weight_version": "\xff"}')


async def test_what_answers_in_another_encoding_is_no_vllm() -> None:
    async with aclosing(Garbage()) as http:
        with pytest.raises(EngineFailed, match="not a vLLM server"):
            await probe(http, "http://engine", model="scripted", logprobs_mode="raw_logprobs")
        assert await label_of(http, "http://engine") is None


async def test_controls_act_on_every_replica() -> None:
    async with (
        ScriptedServer(Player([[1]])) as one,
        ScriptedServer(Player([[1]])) as two,
        EngineControl([one.url, two.url, one.url]) as control,
    ):
        await control.pause("keep")
        assert await control.is_paused() == [True, True]
        await control.update_weight_version(8)
        await control.reload_weights("/models/step-8")
        await control.reset_prefix_cache()
        await control.resume()
        assert await control.is_paused() == [False, False]
        assert await control.weight_versions() == ["8", "8"]


async def test_a_control_is_not_lost_in_a_connection_that_the_engine_is_closing() -> None:
    """uvicorn closes one behind an exception, and does not say so before: what is sent into it then gets no answer."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in ("500 Internal Server Error", ""):
            try:
                asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
            except asyncio.IncompleteReadError:
                break
            if status:
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as served,
        EngineControl([f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}"]) as control,
    ):
        for _ in range(2):
            with pytest.raises(EngineFailed, match="/resume answers 500"):
                await control.resume()
    assert asked == [b"/resume", b"/resume"]


async def test_controls_name_the_replica_that_did_not() -> None:
    async with ScriptedServer(Player([[1]])) as one:
        async with EngineControl([one.url, "http://127.0.0.1:1"]) as control:
            with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1/pause"):
                await control.pause()
            assert one.player.paused, "the others were asked all the same"
        async with EngineControl([one.url]) as control:
            with pytest.raises(EngineFailed, match="mode is abort, wait or keep"):
                await control.pause("stop")  # type: ignore[arg-type]


async def test_the_scripted_server_runs_by_itself(tmp_path: Path) -> None:
    """As a user starts it: a model folder and a script of texts."""
    model = Path(__file__).parents[3] / "examples" / "shop" / "model"
    script = tmp_path / "replies.jsonl"
    script.write_text('"hello"\n{"ids": [7, 8], "finish": "length"}\n')
    command = [sys.executable, "-m", "sandgate.gateway.engine.scripted.server"]
    command += ["--model-dir", str(model), "--script", str(script)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["listening"]
        engine = await VllmEngine.connect([url])
        prompt = Prompt(request_id="r", ids=array("i", [5]), sampling=SamplingParams(), max_tokens=9)
        first, second = await engine.generate(prompt), await engine.generate(prompt)
        await engine.aclose()
    finally:
        process.terminate()
        await process.wait()
    assert (first.finish, first.ids[-1], second.ids.tolist(), second.finish) == (
        "stop",
        1017,
        [7, 8],
        "length",
    )


def test_a_script_that_cannot_be_read_names_its_line(tmp_path: Path) -> None:
    script = tmp_path / "replies.jsonl"
    script.write_text('"hello"\n{"say": 1}\n')
    command = [
        sys.executable,
        "-m",
        "sandgate.gateway.engine.scripted.server",
        "--script",
        str(script),
    ]
    model = Path(__file__).parents[3] / "examples" / "shop" / "model"
    done = subprocess.run([*command, "--model-dir", str(model)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{script}:2: want a string" in done.stderr


@pytest.mark.vllm
@pytest.mark.timeout(400)
async def test_vllm_says_what_it_is(vllm: Vllm) -> None:
    http = Transport()
    found = await probe(http, vllm.url, model=vllm.model, logprobs_mode="processed_logprobs")
    await http.aclose()
    assert (found.endpoint, found.notes, found.facts.max_model_len) == (
        GenerateEndpoint.GENERATE,
        [],
        vllm.max_model_len,
    )
