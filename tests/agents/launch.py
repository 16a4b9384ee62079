"""Starts an agent of the table in a folder of its own, against a gateway of this process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.agents.table import DRIVERS, PROMPT, NodeAgent, written
from tests.agents.test_node_agents import QUIET
from tests.support.environments import node_packages
from tests.support.gateway import Agent


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
    agent: NodeAgent,
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
    packages = node_packages("tests/agents/node")
    base, key = session.handle["base_url"], session.handle["api_key"]
    written(agent.files, home, base, key)
    for driver in DRIVERS.glob("*.mjs"):  # a module finds its packages beside itself
        shutil.copy(driver, packages)
    (home / ".codex").mkdir(exist_ok=True)
    env = QUIET | {
        "PATH": os.environ["PATH"], "HOME": str(home), "SANDGATE_PROMPT": prompt,
        "CODEX_HOME": str(home / ".codex"),
        "OPENAI_BASE_URL": base, "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": session.handle["anthropic_base_url"], "ANTHROPIC_API_KEY": key,
        **(more or {}),
    }  # fmt: skip
    command = agent.command(packages / "node_modules" / ".bin", base)
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
    return Ended(code, out.decode(errors="replace"), err.decode(errors="replace"))
