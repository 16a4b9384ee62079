"""Agents that are programs: one process per session, pointed at its session by their own documented variables."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.contract.session import SessionHandle, parse_termination
from sandgate.sandbox.agents import agent_env, agents_document, container_env, expand_all, prompt_text
from sandgate.sandbox.process import ProcessExit, ProcessSpec, SandboxProcess, read_result
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.verl.framework import OpenAICompatibleAgentFramework
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.runners import RunnerConfig
from sandgate.trainer.verl.sessions import TimedOut

KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
"""Of our own environment; nothing else of the trainer's is the agent's business."""
LOG_TAIL = 2_000
"""Characters of a failed program's output in the error."""


IN_FILE = "The task is too long for a command line: it is `prompt` in the JSON file {path}."
"""What stands for $(SANDGATE_PROMPT) then."""
PromptAs = Literal["messages", "text"]


class AgentFailed(SandgateError):
    """The program ended with another code than 0, or by a signal."""


class AgentTimedOut(TimedOut):
    """The program ran longer than it may: what it sampled until then is a truncated episode."""


class CliRunner:
    """A runner: starts `command` for each session, in a folder of its own. It finds OPENAI_BASE_URL, OPENAI_API_KEY,
    the same for Anthropic, SANDGATE_MODEL, SANDGATE_PROMPT (up to 120 kB) and SANDGATE_TASK_FILE, JSON with `prompt`.
    `$(NAME)` in command and env is the variable, as in a pod. Its exit ends the session; what it writes to the file
    SANDGATE_TERMINATION_LOG as `{"reward": 1.0}` is the reward."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        model: str = "default",
        timeout_s: float = 3600.0,
        prompt_as: PromptAs = "messages",
    ) -> None:
        """`env`: further variables. `model`: what agents call it. `timeout_s`: then the program and all it started is
        killed. `prompt_as`: chat messages are JSON in SANDGATE_PROMPT, or `text`: what their user says. Raises
        InvalidBody."""
        if prompt_as not in get_args(PromptAs):
            raise InvalidBody(f"prompt_as must be messages or text, not {prompt_as!r}", field="prompt_as")
        if isinstance(command, str) or not command:
            raise InvalidBody("command must be a list: the program and its arguments", field="command")
        self.command, self.env = list(command), dict(env or {})
        self.model, self.timeout_s, self.prompt_as = model, timeout_s, prompt_as

    async def __call__(
        self,
        *,
        session: SessionHandle,
        raw_prompt: Any,
        sample_index: int,
        tools_kwargs: Any = None,
        **_: Any,
    ) -> float | None:
        """The reward that the program left. Raises AgentFailed, AgentTimedOut, StartFailed, and OSError where
        this machine cannot read it."""
        with tempfile.TemporaryDirectory(prefix="sandgate-agent-") as name:
            folder = Path(name)
            left = folder / "termination"
            env = self._env(session, raw_prompt, sample_index, folder, left)
            known = {"SANDGATE_PROMPT": IN_FILE.format(path=env["SANDGATE_TASK_FILE"])} | env
            argv = expand_all(self.command, known)
            spec = ProcessSpec(argv=argv, env=env, cwd=folder, log=folder / "log")
            process = await SandboxProcess.start(spec)
            try:
                async with asyncio.timeout(self.timeout_s):
                    ended = await process.wait()
            except TimeoutError:
                raise AgentTimedOut(f"{self.command[0]} ran longer than {self.timeout_s:g} s") from None
            finally:
                await asyncio.shield(process.stop(0.0))
            _check(self.command[0], ended, folder / "log")
            return parse_termination(await read_result(left)).reward

    def _env(
        self, session: SessionHandle, raw_prompt: Any, sample_index: int, folder: Path, left: Path
    ) -> dict[str, str]:
        """The program's variables; its task file is written."""
        prompt = raw_prompt.tolist() if hasattr(raw_prompt, "tolist") else raw_prompt
        task = folder / "task.json"
        task.write_bytes(agents_document("", prompt, None, sample_index))
        told = agent_env(
            session,
            model=self.model,
            prompt=text_of(prompt) if self.prompt_as == "text" else prompt,
            delivery="Env",
            termination_path=str(left),
        )
        told |= {"SANDGATE_TASK_FILE": str(task), "SANDGATE_SAMPLE_INDEX": str(sample_index)}
        kept = {key: os.environ[key] for key in KEPT if key in os.environ}
        entries = [{"name": name, "value": value} for name, value in self.env.items()]
        return container_env(entries, kept, told)


def text_of(prompt: Any) -> str:
    """What the user says in chat messages; text as it is."""
    if isinstance(prompt, str):
        return prompt
    said = [one.get("content") for one in prompt or () if one.get("role") == "user"]
    return "\n\n".join(prompt_text(one) for one in said if one)


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
        model: str = "default",
        max_concurrent_sessions: int = 0,
        **options: Any,
    ) -> None:
        """`options`: of OpenAICompatibleAgentFramework."""
        runner = RunnerConfig(
            name="cli",
            runner_fqn=f"{CliRunner.__module__}.{CliRunner.__qualname__}",
            runner_kwargs={
                "command": list(command),
                "env": dict(env or {}),
                "timeout_s": timeout_s,
                "model": model,
            },
            max_concurrent_sessions=max_concurrent_sessions,
        )
        super().__init__(gateways, {"cli": runner}, lengths, **options)
