"""Whatever a trainer is told as its workflow -> a RolloutWorkflow, alone or by the group; AReaL's rules."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from sandgate.trainer.areal.workflow import Interactions, OpenAIProxyWorkflow, RolloutWorkflow


class GroupedRolloutWorkflow(RolloutWorkflow):
    """The same data `group_size` times at once; interactions of all that were not rejected."""

    def __init__(self, workflow: RolloutWorkflow, group_size: int) -> None:
        if group_size < 1:
            raise ValueError(f"group_size must be >= 1, got {group_size}")
        self.workflow, self.group_size = workflow, group_size

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Interactions | None:
        """None if all were rejected. Raises what the first of them raised, when all have ended."""
        results = await asyncio.gather(
            *(self.workflow.arun_episode(engine, data) for _ in range(self.group_size)),
            return_exceptions=True,
        )
        merged: Interactions = {}
        for result in results:
            if isinstance(result, BaseException):
                raise result
            merged.update(result or {})
        return merged or None


def resolve_workflow(
    workflow: Any,
    workflow_kwargs: dict[str, Any] | None = None,
    group_size: int = 1,
    *,
    proxy_addr: str | None = None,
    admin_api_key: str = "",
    mode: str = "inline",
    **proxy: Any,
) -> RolloutWorkflow:
    """A workflow or its class, an agent or its class (anything with `run()`), or the import path of any of these.

    `workflow_kwargs` make an instance of a class; a workflow class must be given some. `proxy`: discount, export_style
    and subproc_max_workers of OpenAIProxyWorkflow. Raises ValueError: a path that leads nowhere, missing kwargs, an
    agent without `proxy_addr`; TypeError: not an agent.
    """
    found = _imported(workflow) if isinstance(workflow, str) else workflow
    if isinstance(found, type) and issubclass(found, RolloutWorkflow):
        if workflow_kwargs is None:
            raise ValueError(f"workflow_kwargs are required: {found.__name__} is a class of workflows")
        found = found(**workflow_kwargs)
    if not isinstance(found, RolloutWorkflow):
        if proxy_addr is None:
            raise ValueError(f"proxy_addr is required: {workflow!r} is an agent, not a workflow")
        agent = found(**(workflow_kwargs or {})) if isinstance(found, type) else found
        found = OpenAIProxyWorkflow(mode, agent, proxy_addr, admin_api_key, **proxy)
    return GroupedRolloutWorkflow(found, group_size) if group_size > 1 else found


def _imported(path: str) -> Any:
    """`package.module.Name`, or `package.module:Name`. Raises ValueError."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no workflow at {path!r}: {error}") from error
