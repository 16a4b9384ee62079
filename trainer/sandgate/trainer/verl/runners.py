"""Runners: the user's agents, named in the trainer's config and run in this process or as Ray tasks.

agent_runners:
  shop:
    runner_fqn: my_recipe.runners.shop      # async function, or class whose instances are async callables
    runner_kwargs: {max_turns: 8}
    dispatch_mode: inline_async             # or ray_task
    max_concurrent_sessions: 16             # of this runner; 0 = no cap
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from sandgate.contract.errors import BadManifest, SandgateError
from sandgate.contract.session import SessionHandle

INLINE, RAY_TASK = "inline_async", "ray_task"
LEGACY = ("agent_runner", "agent_runner_fqn", "agent_runner_kwargs", "runner_fqn", "runner_kwargs")
"""Of the time of one runner per config; refused, so that nobody trains with half a config."""


class AgentExited(SandgateError):
    """A runner called `sys.exit`; that ends its session, not the trainer."""


class AgentRunner(Protocol):
    """Talks to the session's model as an OpenAI client, at `session.base_url` with `session.api_key`.

    It may return the session's reward, a finite number (True is 1); or POST it to `session.complete_url` as
    `{"reward_info": {"score": 1.0}}` with the same key. What it raises ends its session alone.
    """

    async def __call__(
        self,
        *,
        session: SessionHandle,
        raw_prompt: Any,
        sample_index: int,
        tools_kwargs: Any = None,
        **kwargs: Any,
    ) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """One entry of `agent_runners`."""

    name: str
    runner_fqn: str
    runner_kwargs: dict[str, Any] = field(default_factory=dict)
    """Of every call of a function; of the constructor of a class."""
    dispatch_mode: str = INLINE
    max_concurrent_sessions: int = 0
    """Sessions of this runner at once; 0 = no cap."""
    completion_timeout_s: float = 0.0
    """For agents elsewhere, which the runner only starts: how long to wait for their /complete; 0 = the runner's return
    is the end."""

    def __post_init__(self) -> None:
        where = f"agent_runners.{self.name}"
        if "." not in self.runner_fqn:
            raise BadManifest(
                f"{where}.runner_fqn: {self.runner_fqn!r} is not package.module.name", field=where
            )
        if self.dispatch_mode not in (INLINE, RAY_TASK):
            raise BadManifest(
                f"{where}.dispatch_mode: {self.dispatch_mode!r} is not {INLINE} or {RAY_TASK}", field=where
            )
        for name in ("max_concurrent_sessions", "completion_timeout_s"):
            if getattr(self, name) < 0:
                raise BadManifest(f"{where}.{name}: must not be negative", field=where)


def runner_configs(settings: Mapping[str, Any]) -> dict[str, RunnerConfig]:
    """`agent_runners` of an `agent_framework` section. Raises BadManifest, naming the entry."""
    for name in LEGACY:
        if name in settings:
            raise BadManifest(
                f"agent_framework.{name}: one runner per config is no longer supported; name it under agent_runners",
                field=name,
            )
    entries = settings.get("agent_runners")
    if not isinstance(entries, Mapping) or not entries:
        raise BadManifest("agent_framework.agent_runners: name at least one runner", field="agent_runners")
    found = {}
    for name, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise BadManifest(f"agent_runners.{name}: must be a mapping", field=f"agent_runners.{name}")
        unknown = set(entry) - set(RunnerConfig.__dataclass_fields__) | (set(entry) & {"name"})
        if unknown or "runner_fqn" not in entry:
            word = f"unknown key {min(unknown)!r}" if unknown else "runner_fqn is missing"
            raise BadManifest(f"agent_runners.{name}: {word}", field=f"agent_runners.{name}")
        given = {key: value for key, value in entry.items() if value is not None}
        found[str(name)] = RunnerConfig(name=str(name), **given)
    return found


def load_runner(fqn: str, kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The callable, with `kwargs` bound: a class is made with them, a function called with them. Raises BadManifest."""
    module, _, name = fqn.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadManifest(f"runner_fqn: {fqn!r} cannot be imported: {error}", field="runner_fqn") from error
    if inspect.isclass(found):
        return cast(Callable[..., Any], found(**kwargs))

    def bound(**call: Any) -> Any:
        return found(**{**kwargs, **call})

    return bound


class Runner:
    """A configured runner: import it, cap it, run it."""

    def __init__(self, config: RunnerConfig) -> None:
        """Raises BadManifest for a runner that is run here and cannot be imported."""
        self.config = config
        self.slot: AbstractAsyncContextManager[Any] = nullcontext()
        if config.max_concurrent_sessions:
            self.slot = asyncio.Semaphore(config.max_concurrent_sessions)
        self._inline = (
            load_runner(config.runner_fqn, config.runner_kwargs) if config.dispatch_mode == INLINE else None
        )
        if getattr(self._inline, "remote", False) and not config.completion_timeout_s:
            raise BadManifest(
                f"agent_runners.{config.name}.completion_timeout_s: say how long to wait for the agent's /complete",
                field=f"agent_runners.{config.name}",
            )

    async def run(self, **call: Any) -> Any:
        """One session's agent; what it returned. Raises what it raised; AgentExited for sys.exit."""
        try:
            if self._inline is None:
                return await _ray_task(self.config, call)
            made = self._inline(**call)
            return await made if inspect.isawaitable(made) else made
        except SystemExit as error:
            raise AgentExited(f"runner {self.config.name} called sys.exit({error.code!r})") from error


async def _ray_task(config: RunnerConfig, call: dict[str, Any]) -> Any:
    """As a Ray task, which imports the runner itself; cancelled with us."""
    import ray  # type: ignore[import-not-found]

    reference = ray.remote(num_cpus=0, max_retries=0)(in_task).remote(
        config.runner_fqn, config.runner_kwargs, call
    )
    try:
        return await reference
    except asyncio.CancelledError:
        ray.cancel(reference, force=True)
        raise


def in_task(fqn: str, kwargs: Mapping[str, Any], call: dict[str, Any]) -> Any:
    """What the task does: import the runner, run it to its end, synchronous or not."""
    try:
        made = load_runner(fqn, kwargs)(**call)
        return asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made
    except SystemExit as error:  # would end the worker, and look like a crash
        raise AgentExited(f"runner {fqn} called sys.exit({error.code!r})") from error


async def _awaited(made: Any) -> Any:
    return await made
