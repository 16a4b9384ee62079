"""Starts an agent of the table in a folder of its own, against a gateway of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.agents.real_agent import DRIVERS, NODE, PROMPT, RealAgent
from tests.support.gateway import Agent

QUIET = {
    "CI": "1", "DO_NOT_TRACK": "1", "DISABLE_AUTOUPDATER": "1", "CLINE_NO_AUTO_UPDATE": "1",
    "DISABLE_TELEMETRY": "1", "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "PI_OFFLINE": "1", "PI_TELEMETRY": "0", "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENAI_MODEL": "shop",
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1",
    "OTEL_SDK_DISABLED": "true", "ANONYMIZED_TELEMETRY": "False", "AGNO_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip
"""No telemetry, no updates, no titles over the network."""


@dataclass(frozen=True)
class Ended:
    """What a program left."""

    code: int | None
    """None: it was killed, for it took too long."""
    out: str
    err: str

    @property
    def tail(self) -> str:
        return f"exit {self.code}\n{self.out[-2000:]}\n{self.err[-2000:]}"


async def launched(
    agent: RealAgent,
    session: Agent,
    home: Path,
    work: Path,
    *,
    prompt: str = PROMPT,
    words: tuple[str, ...] = (),
    within_s: float = 90,
    more: Mapping[str, str] | None = None,
) -> Ended:
    """Run it in `work`, with HOME `home`, asking `prompt`. `words` follow its own; `more`: of its environment."""
    installed = agent.installed
    base, key = session.handle["base_url"], session.handle["api_key"]
    for name, make in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make(base, key)), "utf-8")
    if agent.environment == NODE:
        for driver in DRIVERS.glob("*.mjs"):  # a module finds its packages beside itself
            shutil.copy(driver, installed)
    (home / ".codex").mkdir(exist_ok=True)
    env = QUIET | {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "SANDGATE_PROMPT": prompt,
        "CODEX_HOME": str(home / ".codex"),
        "OPENAI_BASE_URL": base, "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": session.handle["anthropic_base_url"], "ANTHROPIC_API_KEY": key,
        **(more or {}),
    }  # fmt: skip
    command = agent.command(installed, base)
    process = await asyncio.create_subprocess_exec(
        *[prompt if word == PROMPT else word for word in command],
        *words,
        cwd=work,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    code: int | None = None
    try:
        out, err = await asyncio.wait_for(process.communicate(), within_s)
        code = process.returncode
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    finally:
        _end_what_it_left(home)
    return Ended(code, out.decode(errors="replace"), err.decode(errors="replace"))


def _end_what_it_left(home: Path) -> None:
    """Ends daemons that it started (cline's hub): processes with its HOME."""
    mark = f"HOME={home}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
