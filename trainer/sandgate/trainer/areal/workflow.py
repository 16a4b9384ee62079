"""AReaL's workflows: an agent with `async def run(data, **extra_kwargs)`, inline or in a pool of processes."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import multiprocessing
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Literal, Self, get_args

import httpx

from sandgate.contract.trajectory import Json
from sandgate.trainer.areal.client import InteractionWithTokenLogpReward, OpenAIProxyClient, grant_capacity

Interactions = dict[str, InteractionWithTokenLogpReward]
Mode = Literal["inline", "subproc"]
AGENT_S = 1800.0
"""Of one model call of an inline agent: the longest that a gateway lets one take."""


class RolloutWorkflow(ABC):
    """What makes one episode. `engine` is AReaL's, and None here: the gateway has its own."""

    @abstractmethod
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Interactions | None:
        """Its interactions by id, in order of creation; None: rejected."""


class OpenAIProxyWorkflow(RolloutWorkflow):
    """Grants, starts, runs the agent, rewards, ends, exports.

    A float is the last interaction's reward, a dict is interaction id -> reward; anything else, an int too, raises
    ValueError, as in AReaL. What the agent raises is raised, after the session was ended. `subproc`: the agent and its
    data are pickled into a spawned process that has OPENAI_* and ANTHROPIC_* in its environment; one call at a time
    each. A context, if the pool and the connections are to be closed before the process ends.
    """

    def __init__(
        self,
        mode: str,
        agent: Any,
        proxy_addr: str,
        admin_api_key: str,
        discount: float = 1.0,
        export_style: str = "individual",
        subproc_max_workers: int = 4,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be inline or subproc, not {mode!r}")
        if not inspect.iscoroutinefunction(getattr(agent, "run", None)):
            raise TypeError(f"{type(agent).__name__} has no `async def run(data, **extra_kwargs)`")
        if mode == "subproc":
            _refuse_unpicklable(agent)
        self.mode, self.agent = mode, agent
        self.proxy_addr = proxy_addr.rstrip("/")
        self.discount, self.export_style = discount, export_style
        self.subproc_max_workers = subproc_max_workers
        self._admin_key = admin_api_key
        self._tasks = itertools.count()
        self._http: httpx.AsyncClient | None = None
        self._pool: ProcessPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections and processes; the next episode opens new ones."""
        http, self._http = self._http, None
        pool, self._pool = self._pool, None
        if http is not None:
            await http.aclose()
        if pool is not None:
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Interactions:
        """One session. Raises what the agent raises, ValueError for a reward that is none, httpx.HTTPError;
        BrokenProcessPool for each episode that was in a process when one of the pool's processes was killed."""
        if self._http is None:
            # With a transport of its own it asks no proxy of the environment, which would be told the admin key.
            transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
            self._http = httpx.AsyncClient(timeout=AGENT_S, transport=transport)
        await grant_capacity(self._http, self.proxy_addr, self._admin_key)
        client = OpenAIProxyClient(self._http, self.proxy_addr, str(next(self._tasks)), self._admin_key)
        async with client:
            rewards = await self._run(client.session_api_key, data, self._http)
            for interaction, reward in _each(rewards).items():
                await client.set_reward(interaction, reward)
        return await client.export_interactions(self.discount, self.export_style)

    async def _run(self, key: str, data: dict[str, Any], http: httpx.AsyncClient) -> Any:
        if self.mode == "inline":
            return await self.agent.run(data, base_url=self.proxy_addr, http_client=http, api_key=key)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.subproc_max_workers, mp_context=multiprocessing.get_context("spawn")
            )
        env = {
            "OPENAI_BASE_URL": self.proxy_addr,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.proxy_addr,
            "ANTHROPIC_API_KEY": key,
        }
        loop, pool = asyncio.get_running_loop(), self._pool
        try:
            return await loop.run_in_executor(pool, run_in_process, self.agent, data, env)
        except BrokenProcessPool:  # an agent was killed, as for memory: this pool takes nothing any more
            if self._pool is pool:
                self._pool = None
            pool.shutdown(wait=False)
            raise


def run_in_process(agent: Any, data: dict[str, Any], env: Mapping[str, str]) -> Any:
    """In a process of the pool, which has one call at a time: the environment is this call's."""
    os.environ.update(env)
    return asyncio.run(agent.run(data))


def _each(rewards: Json) -> dict[str | None, float]:
    """Interaction id (None: the last) -> reward. Raises ValueError."""
    if isinstance(rewards, dict):
        return dict(rewards)
    if isinstance(rewards, float):
        return {None: rewards}
    raise ValueError(f"an agent returns a float or a dict of rewards by id, not {type(rewards).__name__}")


def _refuse_unpicklable(agent: Any) -> None:
    """Now, not in each episode. Raises TypeError."""
    try:
        pickle.dumps(agent)
    except Exception as error:
        raise TypeError(f"mode subproc: {type(agent).__name__} cannot be pickled: {error}") from error
