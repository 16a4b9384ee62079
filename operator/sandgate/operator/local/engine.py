"""The engine of a local run: given by URL, or started as a process."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandgate.contract.errors import BadManifest, Unavailable, Unsupported
from sandgate.contract.job import ManagedEngineSpec, RolloutJobSpec
from sandgate.contract.kinds import BASE_URL
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.progress import EngineReady, EngineStarting, ProcessRestarted, Tell
from sandgate.operator.local.sockets import SocketsFolder
from sandgate.operator.local.supervise import Supervised, log_path, own_env
from sandgate.operator.manifests.vllm import CPU_ENV, VLLM_ENV, command_names
from sandgate.operator.manifests.vllm import vllm_argv as vllm_argv
from sandgate.sandbox.agents import expand_all
from sandgate.sandbox.process import Guard, ProcessSpec

SCRIPT = Path(__file__).resolve().parents[4] / "scripts" / "engine-env.sh"
"""In a clone; an installed package has none."""
NO_ENGINE = (
    "no engine: install vllm beside sandgate, or set SANDGATE_ENGINE_PYTHON to a Python that has it,"
    " or give --engine-url"
)
NO_PODS = "spec.engine.selector: there are no pods without a cluster; use --engine-url, endpoints or managed"
STOP_S = 10.0
"""vLLM's own children need a few seconds to go."""
CPU_THREADS = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}
"""On half of the cores: agents and gateways run beside it, and threads that wait for each other are 5 times slower."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """What gateways are told, and the process if it is ours."""

    urls: tuple[str, ...]
    process: Supervised | None = None


@asynccontextmanager
async def engine(
    spec: RolloutJobSpec, folder: Folder, manifest_dir: Path, guard: Guard, tell: Tell, *, url: str | None
) -> AsyncIterator[RunningEngine]:
    """Endpoints as they are, or a managed one that answers. Raises BadManifest (a URL that is none), Unavailable,
    Unsupported."""
    began = time.monotonic()
    if url is not None:
        if (wrong := BASE_URL.wrong(url)) is not None:
            raise BadManifest(f"engine_url: {wrong}", field="engine_url")
        yield RunningEngine((url.rstrip("/"),))
        return
    if spec.engine.endpoints is not None:
        yield RunningEngine(tuple(one.rstrip("/") for one in spec.engine.endpoints))
        return
    managed = spec.engine.managed
    if managed is None:
        raise Unsupported(NO_PODS, field="spec.engine.selector")
    port = free_port()
    argv, env = await command(spec, managed, manifest_dir, port)
    sockets = await asyncio.to_thread(SocketsFolder)
    env = {"VLLM_RPC_BASE_PATH": str(sockets.path)} | env  # vLLM leaves sockets
    what = ProcessSpec(argv=argv, env=env, cwd=manifest_dir, log=log_path(folder.logs, "engine"))

    async def answering() -> None:
        await process.first_ready(lambda: asyncio.to_thread(health, port), managed.start_seconds)

    process = Supervised(
        "engine",
        lambda: what,
        guard,
        on_restart=lambda name, why, n: tell(ProcessRestarted(name=name, why=why, restarts=n)),
        ready=answering,
    )
    tell(EngineStarting(log=what.log))
    try:
        await process.start()
        await answering()
        tell(EngineReady(urls=(f"http://127.0.0.1:{port}",), seconds=time.monotonic() - began))
        yield RunningEngine((f"http://127.0.0.1:{port}",), process)
    finally:
        await process.stop(STOP_S)
        sockets.remove()


async def command(
    spec: RolloutJobSpec, managed: ManagedEngineSpec, manifest_dir: Path, port: int
) -> tuple[list[str], dict[str, str]]:
    """(argv, env) of the engine. Raises Unavailable if there is no interpreter that has one."""
    model = model_of(spec, managed, manifest_dir)
    env = VLLM_ENV | (CPU_ENV | CPU_THREADS if managed.gpus == 0 else {}) | own_env()
    if managed.command:
        names = command_names(spec, model, "127.0.0.1", port)
        env["PATH"] = own_path()
        return expand_all((*managed.command, *managed.args), {**env, **names}), env | managed.env
    python = await interpreter()
    if python != sys.executable:  # what our interpreter is told would break another one
        env = {name: value for name, value in env.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return vllm_argv(spec, managed, python, model, port), env | managed.env


def own_path() -> str:
    """PATH of an engine's own command: our interpreter's folder first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def model_of(spec: RolloutJobSpec, managed: ManagedEngineSpec, manifest_dir: Path) -> str:
    """The weights: a folder beside the manifest if there is one of that name, else a hub's name, as the local cache
    knows it."""
    name = managed.model or spec.model.tokenizer
    local = manifest_dir / name
    return str(local.resolve()) if local.exists() else name


def known_interpreter() -> str | None:
    """A Python that has vLLM: SANDGATE_ENGINE_PYTHON, SANDGATE_ENGINE_VENV, or our own."""
    if told := os.environ.get("SANDGATE_ENGINE_PYTHON"):
        return told
    if venv := os.environ.get("SANDGATE_ENGINE_VENV"):
        return str(Path(venv) / "bin" / "python")
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


async def interpreter() -> str:
    """The known one, or what the clone's script makes. Raises Unavailable, saying what to do."""
    if known := known_interpreter():
        return known
    if not SCRIPT.is_file():
        raise Unavailable(NO_ENGINE)
    made = await asyncio.to_thread(
        subprocess.run, [str(SCRIPT)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
    )
    lines = made.stdout.decode().strip().splitlines()
    if made.returncode != 0 or not lines:
        raise Unavailable(f"{SCRIPT.name} failed with exit code {made.returncode}; see its output above")
    return str(Path(lines[-1]) / "bin" / "python")


def health(port: int) -> str:
    """Why the engine does not answer; empty if it does. Blocks for a second at most."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
        return "" if status == 200 else f"/health answers {status}"
    except (OSError, http.client.HTTPException) as error:
        return f"/health does not answer ({error})"
    finally:
        connection.close()


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
