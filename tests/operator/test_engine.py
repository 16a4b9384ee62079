"""The job's own engine: how it is called, which interpreter, and that it answers."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest, Unavailable
from sandgate.contract.job import ManagedEngineSpec, RolloutJobSpec
from sandgate.operator.local import engine
from sandgate.operator.local.folder import Folder
from sandgate.sandbox.process import Guard
from tests.contract.manifests import GONE
from tests.operator.plans import spec


def managed(**fields: Any) -> tuple[RolloutJobSpec, ManagedEngineSpec]:
    made = spec(engine={"managed": fields})
    assert made.engine.managed is not None
    return made, made.engine.managed


def test_vllm_on_a_cpu_is_called_like_this() -> None:
    assert engine.vllm_argv(*managed(gpus=0, args=["--max-num-seqs", "8"]), "py", "/m", 81) == [
        *("py", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m", "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", "81"),
        *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
        *("--max-model-len", "4096"),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "32"),
        *("--gpu-memory-utilization", "0.2"),
        *("--max-num-seqs", "8"),  # the user's come last, and win
    ]


def test_on_gpus_it_is_left_its_own_choices() -> None:
    one = engine.vllm_argv(*managed(gpus=1), "py", "/m", 81)
    two = engine.vllm_argv(*managed(gpus=2), "py", "/m", 81)
    assert "--dtype" not in one
    assert two[-2:] == ["--tensor-parallel-size", "2"]


async def test_its_environment_has_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", "/opt/py")
    for name in ("HF_TOKEN", "HF_HUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("HF_HOME", "/cache")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    (tmp_path / "tiny").mkdir()
    argv, env = await engine.command(*managed(gpus=0, model="tiny", env={"A": "1"}), tmp_path, 81)
    assert argv[0] == "/opt/py"
    assert argv[4] == str(tmp_path / "tiny")
    assert "hidden" not in env.values()
    assert "PYTHONPATH" not in env
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "no worker that spins beside the agents"
    assert (env["HF_HOME"], env["HF_HUB_OFFLINE"], env["A"]) == ("/cache", "1", "1")
    assert (env["VLLM_SERVER_DEV_MODE"], env["OMP_NUM_THREADS"]) == ("1", "3")


async def test_a_model_that_is_no_folder_is_what_the_local_cache_has_of_a_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", "/opt/py")
    argv, env = await engine.command(*managed(model="Qwen/Qwen3-0.6B"), tmp_path, 81)
    assert argv[4] == "Qwen/Qwen3-0.6B"
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    _, env = await engine.command(*managed(model="a/b", env={"HF_HUB_OFFLINE": "0"}), tmp_path, 81)
    assert env["HF_HUB_OFFLINE"] == "0", "a manifest may say otherwise"
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


async def test_a_command_of_the_manifest_is_expanded(tmp_path: Path) -> None:
    argv, env = await engine.command(
        *managed(
            command=["serve", "--on=$(HOST):$(PORT)", "$(MODEL_NAME)", "$(MAX_MODEL_LEN)", "$(NO)"],
            args=["-v"],
        ),
        tmp_path,
        81,
    )
    assert argv == ["serve", "--on=127.0.0.1:81", "tiny", "4096", "$(NO)", "-v"]
    assert env["PATH"].startswith(str(Path(sys.executable).parent))


LEAVES = """
import http.server, os, pathlib, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
base = os.environ["VLLM_RPC_BASE_PATH"]
pathlib.Path(base, "socket").touch()
print(base, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


async def test_what_it_leaves_of_its_sockets_is_cleared_away(tmp_path: Path) -> None:
    wanted, _ = managed(command=["python", "-c", LEAVES, "$(PORT)"])
    (folder := Folder(tmp_path / "out")).logs.mkdir(parents=True)
    guard = Guard()
    try:
        async with engine.engine(wanted, folder, tmp_path, guard, lambda event: None, url=None):
            base = (folder.logs / "engine.log").read_text().splitlines()[0]
            assert sorted(os.listdir(base)) == ["lock", "socket"]
    finally:
        guard.close()
    with pytest.raises(FileNotFoundError):
        os.listdir(base)


async def test_a_url_of_no_port_is_refused_by_name(tmp_path: Path) -> None:
    wanted, _ = managed()
    guard = Guard()
    try:
        with pytest.raises(BadManifest, match=r"engine_url: .*a port is 1 to 65535"):
            async with engine.engine(
                wanted, Folder(tmp_path), tmp_path, guard, lambda event: None, url="http://127.0.0.1:65536"
            ):
                pass
    finally:
        guard.close()


async def test_the_interpreter_is_looked_for_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "engine-env.sh"
    script.write_text("#!/bin/sh\necho progress\necho /made/venv\n")
    script.chmod(0o755)
    monkeypatch.setattr(engine, "SCRIPT", script)
    monkeypatch.setenv("SANDGATE_ENGINE_VENV", "/told/venv")
    monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", "/told/python")
    assert await engine.interpreter() == "/told/python"
    monkeypatch.delenv("SANDGATE_ENGINE_PYTHON")
    assert await engine.interpreter() == "/told/venv/bin/python"
    monkeypatch.delenv("SANDGATE_ENGINE_VENV")
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: object())
        assert await engine.interpreter() == sys.executable
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert await engine.interpreter() == "/made/venv/bin/python"
    script.write_text("#!/bin/sh\nexit 4\n")
    with pytest.raises(Unavailable, match="exit code 4"):
        await engine.interpreter()
    monkeypatch.setattr(engine, "SCRIPT", tmp_path / "none")
    with pytest.raises(Unavailable, match="SANDGATE_ENGINE_PYTHON"):
        await engine.interpreter()


ANSWERS = {
    "healthy": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", ""),
    "not yet": (b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n", "/health answers 503"),
    "no HTTP": (b"hello\r\n\r\n", "/health does not answer"),
}


@pytest.mark.parametrize(("answer", "says"), ANSWERS.values(), ids=ANSWERS)
async def test_health_is_what_it_answers(answer: bytes, says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await asyncio.to_thread(engine.health, port)).startswith(says)
        assert bool(await asyncio.to_thread(engine.health, port)) == bool(says)


def test_a_port_that_nobody_listens_on_is_not_healthy() -> None:
    assert "does not answer" in engine.health(engine.free_port())


def test_absent_blocks_do_not_matter() -> None:
    assert spec(engine__endpoints=GONE, engine__managed={}).engine.managed == ManagedEngineSpec()
