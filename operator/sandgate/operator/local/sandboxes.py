"""Sandboxes of a local run: agents and verifiers run as processes, by the containers of the manifest."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.exits import last_words, one_line
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.kinds import bytes_of
from sandgate.contract.session import SessionHandle, parse_termination
from sandgate.contract.trajectory import Json
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.progress import SessionStarted, Tell
from sandgate.operator.local.resuming import Recipe
from sandgate.operator.local.supervise import OFFLINE
from sandgate.operator.local.trees import clear_away, remove_tree
from sandgate.operator.observed.events import AgentSeen, VerifierSeen
from sandgate.operator.plan.actions import NO_MESSAGE, Exit, Ref, Running
from sandgate.sandbox.agents import (
    agent_env,
    agents_document,
    container_env,
    expand_all,
    result_document,
    task_document,
    verifier_env,
)
from sandgate.sandbox.process import (
    MACHINES_FAULT,
    Guard,
    ProcessExit,
    ProcessSpec,
    ProgramMissing,
    SandboxProcess,
    StartFailed,
)

Container = Mapping[str, Any]
Spawn = Callable[[Coroutine[Any, Any, None]], None]
Seen = type[AgentSeen] | type[VerifierSeen]

TASK_CHARS_MAX = 65_536
"""A larger task is not repeated in the session's record, which would be a copy for each attempt: here agent and
verifier have theirs from us."""


@dataclass(slots=True)
class Sandboxes:
    """What runs now (a `SandboxBackend`). Facts go to the store; the planner decides what they mean."""

    state: DriverState
    manifest_dir: Path
    folder: Folder
    guard: Guard
    recipe: Recipe
    spawn: Spawn
    """Run a coroutine beside; its error ends the run."""
    tell: Tell
    agents: dict[str, SandboxProcess] = field(default_factory=dict)
    verifiers: dict[str, SandboxProcess] = field(default_factory=dict)
    handles: dict[str, SessionHandle] = field(default_factory=dict)
    """Of live sessions."""
    task_chars_max: int | None = TASK_CHARS_MAX

    @property
    def running(self) -> list[SandboxProcess]:
        """Agents and verifiers."""
        return [*self.agents.values(), *self.verifiers.values()]

    @property
    def job(self) -> RolloutJob:
        """Whose they are."""
        return self.state.job

    def metadata(self, task: Task) -> Mapping[str, Json]:
        """What the folder's rows are made with."""
        return self.recipe.metadata(task)

    async def prepare(self, ref: Ref, gateway: str) -> str:
        """Nothing: what a process needs is made when it starts."""
        return gateway

    def refused(self, ref: Ref, why: str) -> None:
        """The run ends with that error."""

    def opened(self, ref: Ref, handle: SessionHandle) -> None:
        """Its keys are in no file; they are given to its processes."""
        self.handles[ref.name] = handle

    async def start(self, ref: Ref, task: Task) -> None:
        """A program that cannot be started is a fact (AgentMissing, StartFailed), not an error."""
        if ref.name in self.agents:
            return
        agent, handle = self.job.spec.agent, self.handles[ref.name]
        self.tell(SessionStarted(session_id=ref.name, uid=ref.uid, sample=ref.sample, attempt=ref.attempt))
        document = agents_document(task.uid, task.prompt, task.data, ref.sample)
        home = await self._furnished(ref, "agent", {"task.json": document}, AgentSeen)
        if home is None:
            return
        env = agent_env(
            handle,
            model=self.job.spec.model.name,
            prompt=task.prompt,
            delivery=agent.task_delivery.value,
            task_path=str(home / "task.json"),
            termination_path=str(home / "termination-log"),
        )
        container = agent.template["spec"]["containers"][0]
        spec = self._process(container, env, home, f"{ref.name}.log", handle)
        await self._run(ref, spec, self.agents, AgentSeen)

    async def start_verifier(self, ref: Ref, task: Task, end: Exit | None) -> None:
        """The same for the verifier, which sees the task and what the agent left."""
        verifier = self.job.spec.reward.verifier
        if ref.name in self.verifiers or verifier is None:
            return
        handle = self.handles[ref.name]
        code, message = (None, NO_MESSAGE) if end is None else (end.code, end.message)
        files = {
            "task.json": task_document(task.uid, task.prompt, task.data, ref.sample),
            "result.json": result_document(code, message),
        }
        home = await self._furnished(ref, "verifier", files, VerifierSeen)
        if home is None:
            return
        env = verifier_env(
            handle,
            model=self.job.spec.model.name,
            task_path=str(home / "task.json"),
            result_path=str(home / "result.json"),
            termination_path=str(home / "termination-log"),
        )
        spec = self._process(verifier.container, env, home, f"{ref.name}.verifier.log", handle)
        await self._run(ref, spec, self.verifiers, VerifierSeen)

    async def stop(self, ref: Ref) -> None:
        """SIGTERM now, SIGKILL later; its end is told when it comes."""
        if (process := self.agents.get(ref.name)) is not None:
            self.spawn(_stop(process))

    async def kill(self, ref: Ref) -> None:
        """SIGKILL, now."""
        if (process := self.agents.get(ref.name)) is not None:
            process.kill()

    async def stop_verifier(self, ref: Ref) -> None:
        """The same."""
        if (process := self.verifiers.get(ref.name)) is not None:
            self.spawn(_stop(process))

    async def kill_verifier(self, ref: Ref) -> None:
        """SIGKILL, now."""
        if (process := self.verifiers.get(ref.name)) is not None:
            process.kill()

    async def forget(self, ref: Ref) -> None:
        """Its folder goes."""
        self.handles.pop(ref.name, None)
        await asyncio.to_thread(clear_away, self.folder.scratch(ref.name))

    async def kill_all(self) -> None:
        """At once."""
        running = self.running
        for process in running:
            process.kill()
        for process in running:
            await process.wait()

    def _process(
        self,
        container: Container,
        env: Mapping[str, str],
        home: Path,
        log: str,
        handle: SessionHandle,
    ) -> ProcessSpec:
        whole = container_env(container.get("env") or [], base_env(home), env)
        memory = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        argv = expand_all([*container["command"], *(container.get("args") or [])], whole)
        return ProcessSpec(
            argv=argv,
            env=whole,
            cwd=(self.manifest_dir / container.get("workingDir", ".")).resolve(),
            log=self.folder.logs / log,
            secrets=(handle.api_key, handle.reward_key),
            # Not the session's id: another run of the same job, elsewhere on this machine, has the same ones.
            mark=f"SANDGATE_TERMINATION_LOG={home / 'termination-log'}",
            memory_bytes=None if memory is None else bytes_of(str(memory)),
            termination=home / "termination-log",
        )

    async def _run(
        self,
        ref: Ref,
        spec: ProcessSpec,
        held: dict[str, SandboxProcess],
        seen: Seen,
    ) -> None:
        asked = self.state.now()
        try:
            process = await SandboxProcess.start(spec, self.guard)
        except StartFailed as error:
            self._not_started(ref, seen, asked, error)
            return
        held[ref.name] = process
        self.state.observe(seen(ref, Running(asked, process.started_at)))

        async def follow() -> None:
            end = await process.wait()
            held.pop(ref.name, None)
            begun = self._known(ref, seen) or Running(asked, process.started_at)
            self.state.observe(seen(ref, replace(begun, exit=exit_of(end))))

        self.spawn(follow())

    async def _furnished(self, ref: Ref, who: str, files: Mapping[str, bytes], seen: Seen) -> Path | None:
        """Its folder. None: it can have none, which is told."""
        asked = self.state.now()
        try:
            return await asyncio.to_thread(_furnish, self.folder.scratch(ref.name), who, files)
        except StartFailed as error:
            self._not_started(ref, seen, asked, error)
            return None

    def _not_started(self, ref: Ref, seen: Seen, asked: float, error: StartFailed) -> None:
        missing = isinstance(error, ProgramMissing)
        reason = FailureReason.AGENT_MISSING if missing else FailureReason.START_FAILED
        exit_ = Exit(at=self.state.now(), reason=reason, detail=one_line(str(error)))
        self.state.observe(seen(ref, Running(asked, None, exit_)))

    def _known(self, ref: Ref, seen: Seen) -> Running | None:
        """When it began, by the clock as it is now."""
        self.state.now()
        known = self.state.observed.sessions.get(ref.name)
        if known is None:
            return None
        return known.sandbox if seen is AgentSeen else known.verifier


async def _stop(process: SandboxProcess) -> None:
    await process.stop()


def exit_of(end: ProcessExit) -> Exit:
    """What the planner is told."""
    last = last_words(end.errors or end.tail)
    reason, detail = None, last.line
    if end.escaped:
        reason, detail = FailureReason.ESCAPED, "something of it may still run: nothing that it left is taken"
    elif end.oom:
        reason, detail = FailureReason.OOM_KILLED, "more memory than resources.limits.memory"
    elif end.machine_oom:
        reason, detail = FailureReason.NODE_PRESSURE, "killed while this machine ran out of memory"
    elif end.unread:  # nobody knows its word: it is tried anew, as where a node forgot how a pod ended
        reason, detail = FailureReason.NODE_LOST, f"this machine cannot read what it left: {end.unread}"
    message = parse_termination(end.message)
    return Exit(end.at, end.code, end.signal, reason, detail, message, last.traceback)


def base_env(home: Path) -> dict[str, str]:
    """What a program finds beside its own variables: a PATH that begins with our interpreter's folder, so that
    `python` is the one that has the user's packages, a home of its own, and no hub. Nothing else of our environment."""
    path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "HOME": str(home / "home"),
        "TMPDIR": str(home / "tmp"),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PYTHONUNBUFFERED": "1",
        **OFFLINE,
    }


def _furnish(scratch: Path, who: str, files: Mapping[str, bytes]) -> Path:
    """Raises StartFailed where something is in the way that does not pass by itself; the agent may have left it."""
    home = scratch / who
    try:
        _empty(scratch, home)
    except OSError as error:
        if error.errno in MACHINES_FAULT:
            raise
        raise StartFailed(f"{who}: no folder can be made for it: {error}") from error
    for name, content in files.items():
        (home / name).write_bytes(content)
    return home.resolve()


def _empty(scratch: Path, home: Path) -> None:
    """The agent may have put anything there, also beside its own folder and in the place of ours."""
    if scratch.is_symlink() or not scratch.is_dir():
        remove_tree(scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    scratch.chmod(0o700)
    remove_tree(home)
    for part in ("home", "tmp"):
        (home / part).mkdir(parents=True)


def check(job: RolloutJob) -> None:
    """Can this job's containers run as local processes? Raises BadManifest, Unsupported naming the field."""
    containers = [
        ("spec.agent.template.spec.containers[0]", job.spec.agent.template["spec"]["containers"][0])
    ]
    if job.spec.reward.verifier is not None:
        containers.append(("spec.reward.verifier.container", job.spec.reward.verifier.container))
    for path, container in containers:
        if not container.get("command"):
            raise BadManifest(
                f"{path}.command: is missing; without a cluster there is no image whose entrypoint could be used",
                field=f"{path}.command",
            )
        for index, one in enumerate(container.get("env") or []):
            if "valueFrom" in one:
                where = f"{path}.env[{index}].valueFrom"
                raise Unsupported(f"{where}: there is nothing to refer to without a cluster", field=where)
    if job.spec.suspend:
        raise Unsupported("spec.suspend: a suspended job does not run", field="spec.suspend")
