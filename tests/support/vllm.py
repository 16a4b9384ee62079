"""One real vLLM for the whole test session, started by whoever needs it first.

    from tests.support.vllm import Vllm, vllm  # in a room's conftest.py

    @pytest.mark.vllm
    async def test_it(vllm: Vllm) -> None: ...

It serves the tiny model of the shop example as `shop`, with weight-update controls, float32, processed logprobs and the
Hermes tool parser. Tests share it: leave it running (not paused) and with the weights it started with.
`SANDGATE_TEST_ENGINE_URL` names one that runs already.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.environments import python_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "shop" / "model"
START_S = 300.0
"""Up in 30 s on a free machine; others may be testing too."""

TOLD = os.environ.get("SANDGATE_TEST_ENGINE_URL", "")
"""Read before tests/conftest.py hides it from tests."""

FLAGS = (
    "--dtype float32 --max-model-len 4096 --max-num-seqs 32 --enforce-eager --enable-scale-out"
    " --logprobs-mode processed_logprobs --enable-auto-tool-choice --tool-call-parser hermes"
    " --enable-prompt-tokens-details"
    # Of a machine that others use too. Asked for by vLLM's start-up check where the size of the cache is not given (it
    # is, below); the default is 0.92 of the memory node, which fails as soon as anything else runs.
    " --gpu-memory-utilization 0.2"
).split()

ENV = {
    "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, weight versions
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; given a size, 0.32 does not ask how much memory is free (cpu_worker.py)
    # One thread, bound nowhere: 100 tokens a second on two busy cores; two threads that wait for each other made 20.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no worker process that waits without sleep: operator/manifests/vllm.py
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


NO_MORE: Mapping[str, str] = {}

DIE_WITH_PARENT = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
"""PR_SET_PDEATHSIG, then the command: a killed test run leaves no engine behind (it holds 3 GB)."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """A running server."""

    url: str
    model: str
    folder: Path
    """Of the checkpoint."""
    vocab_size: int = 1024
    eos_ids: tuple[int, ...] = (1017, 1015)
    max_model_len: int = 4096
    log: Path | None = None
    """What it prints."""


_running: dict[str, Vllm] = {}
"""One per process: a room that imports the fixture has its own definition of it, but not its own engine."""


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest) -> Vllm:
    """See the module."""
    if not _running:
        _running["it"] = _told() if TOLD else _start(FLAGS, request.config.add_cleanup)
    return _running["it"]


def _told() -> Vllm:
    served = json.loads(_get(f"{TOLD}/v1/models"))["data"][0]
    return Vllm(TOLD.rstrip("/"), served["id"], MODEL, max_model_len=served["max_model_len"])


def borrowed_torchvision(folder: Path) -> Path:
    """Puts a torchvision into the folder, for PYTHONPATH. vLLM's image processors need it, the engine's environment has
    none, and verl's has one for the same torch."""
    (packages,) = python_of("trainer-env.sh", "verl").parents[1].glob("lib/python3.*/site-packages")
    about = (path.name for path in packages.glob("torchvision-*.dist-info"))
    for name in ("torchvision", "torchvision.libs", *about):
        (folder / name).symlink_to(packages / name)
    return folder


def engine_python() -> Path:
    """The engine environment's interpreter, where scripts/engine-env.sh puts it."""
    return python_of("engine-env.sh")


@contextlib.contextmanager
def another(
    flags: Sequence[str], *, model: Path = MODEL, env: Mapping[str, str] = NO_MORE, port: int = 0
) -> Iterator[Vllm]:
    """One of its own with other flags, or of another checkpoint, for the length of a test. It takes half a minute to
    start, and 3 GB. `port`: that of one which has ended; 0: any."""
    with contextlib.ExitStack() as stack:
        yield _start(flags, stack.callback, model, env, port)


def _start(
    flags: Sequence[str],
    at_end: Callable[[Callable[[], None]], object],
    model: Path = MODEL,
    more: Mapping[str, str] = NO_MORE,
    port: int = 0,
) -> Vllm:
    """`at_end` takes what is to be called at the end, the last first."""
    python = engine_python()
    port = port or _free_port()
    log = tempfile.NamedTemporaryFile("w+", prefix="sandgate-vllm-", suffix=".log", delete=False)  # noqa: SIM115
    command = [
        sys.executable,
        "-c",
        DIE_WITH_PARENT,
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
    ]
    command += ["--served-model-name", "shop", "--host", "127.0.0.1", "--port", str(port), *flags]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "VIRTUAL_ENV"))}
    sockets = tempfile.mkdtemp(prefix="sandgate-vllm-")  # vLLM leaves them behind
    process = subprocess.Popen(
        command,
        env={**clean, **ENV, **more, "VLLM_RPC_BASE_PATH": sockets},
        stdout=log,
        stderr=log,
        start_new_session=True,
        cwd=tempfile.gettempdir(),
    )
    at_end(lambda: shutil.rmtree(sockets, ignore_errors=True))
    at_end(lambda: _stop(process, Path(log.name)))
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + START_S
    while not _up(url):
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # it should not end: this is the pause between two looks
            process.wait(0.2)
        if process.returncode is not None or time.monotonic() > end:
            log.seek(0)
            pytest.fail(f"vLLM did not start; its last words:\n{log.read()[-3000:]}")
    return Vllm(url, "shop", model, log=Path(log.name))


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """The whole process group: the API server's children outlive it otherwise."""
    for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    log.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        return bytes(response.read())


def _up(url: str) -> bool:
    try:
        _get(f"{url}/health")
    except (urllib.error.URLError, OSError):
        return False
    return True
