"""Agents that are programs: one process per session, pointed at its session by their own documented variables."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.session import SessionHandle, parse_termination
from sandgate.sandbox.agents import agent_env
from sandgate.sandbox.process import ProcessExit, ProcessSpec, SandboxProcess, read_termination
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.verl.framework import OpenAICompatibleAgentFramework
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.runners import RunnerConfig

KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
"""Of our own environment; nothing else of the trainer's is the agent's business."""
LOG_TAIL = 2_000
"""Characters of a failed program's output in the error."""


class AgentFailed(SandgateError):
    """The program ended with another code than 0, by a signal, or not in time."""


class CliRunner:
    """A runner: starts `command` for each session. It finds OPENAI_BASE_URL, OPENAI_API_KEY, the same for Anthropic,
    and SANDGATE_PROMPT. Its exit ends the session; what it writes to the file SANDGATE_TERMINATION_LOG as
    `{"reward": 1.0}` is the reward."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        model: str = "default",
        timeout_s: float = 3600.0,
    ) -> None:
        """`env`: further variables. `timeout_s`: then the program and all it started is killed."""
        self.command, self.env = list(command), dict(env or {})
        self.model, self.timeout_s = model, timeout_s

    async def __call__(
        self,
        *,
        session: SessionHandle,
        raw_prompt: Any,
        sample_index: int,
        tools_kwargs: Any = None,
        **_: Any,
    ) -> float | None:
        """The reward that the program left. Raises AgentFailed, StartFailed."""
        with tempfile.TemporaryDirectory(prefix="sandgate-agent-") as name:
            folder = Path(name)
            left = folder / "termination"
            told = agent_env(
                session, model=self.model, prompt=raw_prompt, delivery="Env", termination_path=str(left)
            )
            kept = {key: os.environ[key] for key in KEPT if key in os.environ}
            env = kept | self.env | told | {"SANDGATE_SAMPLE_INDEX": str(sample_index)}
            spec = ProcessSpec(argv=self.command, env=env, cwd=folder, log=folder / "log")
            process = await SandboxProcess.start(spec)
            try:
                async with asyncio.timeout(self.timeout_s):
                    ended = await process.wait()
            except TimeoutError:
                raise AgentFailed(f"{self.command[0]} ran longer than {self.timeout_s:g} s") from None
            finally:
                await asyncio.shield(process.stop(0.0))
            _check(self.command[0], ended, folder / "log")
            return parse_termination(read_termination(left)).reward


def _check(program: str, ended: ProcessExit, log: Path) -> None:
    if ended.code != 0:
        how = f"exit code {ended.code}" if ended.code is not None else f"signal {ended.signal}"
        text = log.read_text("utf-8", "replace")[-LOG_TAIL:] if log.exists() else ""
        raise AgentFailed(f"{program} ended with {how}\n{text}")


class CliAgentFramework(OpenAICompatibleAgentFramework):
    """One program for every sample; any agent that takes OPENAI_BASE_URL works as it is."""

    def __init__(
        self,
        gateways: GatewayManager,
        command: Sequence[str],
        lengths: Lengths,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 3600.0,
        max_concurrent_sessions: int = 0,
        **options: Any,
    ) -> None:
        """`options`: of OpenAICompatibleAgentFramework."""
        runner = RunnerConfig(
            name="cli",
            runner_fqn=f"{CliRunner.__module__}.{CliRunner.__qualname__}",
            runner_kwargs={"command": list(command), "env": dict(env or {}), "timeout_s": timeout_s},
            max_concurrent_sessions=max_concurrent_sessions,
        )
        super().__init__(gateways, {"cli": runner}, lengths, **options)
