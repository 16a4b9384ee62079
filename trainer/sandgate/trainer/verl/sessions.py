"""One sample: open a session, run the agent on it, seal it, score it. Fails alone."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.verl.rewards import broadcast, final, returned
from sandgate.trainer.verl.rows import Lengths, usable
from sandgate.trainer.verl.runners import Runner

log = logging.getLogger(__name__)

NAME_CHARS = 64
"""Of a uid in a session's id; a random tail makes the id unique."""
Score = Callable[[Trajectory, Mapping[str, Any]], Awaitable[tuple[float, Mapping[str, Any]]]]
"""A final trajectory and its sample's columns -> score and reward_info."""


class NoReward(SandgateError):
    """Nobody scored the session: not the runner, not the agent, not a reward loop."""


class NoTurns(SandgateError):
    """The session sampled nothing that is left within the lengths."""


class NotCompleted(SandgateError):
    """An agent elsewhere did not call /complete in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSample:
    """One row of a rollout batch."""

    uid: str
    index: int
    """Which of the task's samples."""
    raw_prompt: Any
    tools_kwargs: Any = None
    agent_name: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Of the dataset, for the reward and for the trainer's rows."""
    greedy: bool = False
    """The trainer wants this one without chance (verl's `__do_sample__`)."""


class SessionRunner:
    """Runs samples. Belongs to one event loop."""

    def __init__(
        self,
        gateways: GatewayManager,
        runners: Mapping[str, Runner],
        lengths: Lengths,
        *,
        score: Score | None = None,
        job: str = "",
    ) -> None:
        """`score`: asked for sessions that nobody gave a reward."""
        self.gateways, self.runners, self.lengths = gateways, dict(runners), lengths
        self.score, self.job = score, job

    def runner_of(self, agent_name: Any) -> Runner:
        """The runner for a sample; with a single one, that. Raises InvalidBody."""
        if len(self.runners) == 1:
            return next(iter(self.runners.values()))
        if not isinstance(agent_name, str):
            raise InvalidBody(f"agent_name: must be a string, not {agent_name!r}", field="agent_name")
        if agent_name not in self.runners:
            known = ", ".join(sorted(self.runners))
            raise InvalidBody(f"agent_name: no runner {agent_name!r}; there are {known}", field="agent_name")
        return self.runners[agent_name]

    async def run(self, sample: BatchSample, sampling: Mapping[str, Any]) -> list[Trajectory]:
        """The session's trajectories, all with the session's score; at least one.

        Raises what the agent raised, NoTurns, NoReward, NotCompleted. Whatever is raised, cancellation included, the
        session is aborted and its place is free.
        """
        runner = self.runner_of(sample.agent_name)
        session_id = session_id_of(sample)
        async with runner.slot:
            try:
                rows = await self._captured(runner, session_id, sample, sampling)
            except BaseException:
                await asyncio.shield(self._discard(session_id))
                raise
        found = usable(rows, self.lengths)
        if not found:
            raise NoTurns(f"session {session_id} sampled nothing within {self.lengths}")
        return await self._scored(found, sample)

    async def _captured(
        self, runner: Runner, session_id: str, sample: BatchSample, sampling: Mapping[str, Any]
    ) -> list[Trajectory]:
        spec = {"uid": sample.uid, "sample_index": sample.index, "sampling": dict(sampling), "job": self.job}
        session = await self.gateways.create_session(session_id, **spec)
        said = await runner.run(
            session=session,
            raw_prompt=sample.raw_prompt,
            sample_index=sample.index,
            tools_kwargs=sample.tools_kwargs,
        )
        patience = runner.config.completion_timeout_s
        if patience and not await self.gateways.wait_for_completion(session_id, patience):
            raise NotCompleted(f"session {session_id}: no /complete after {patience:g} s")
        return await self.gateways.finalize_session(session_id, returned(said))

    async def _discard(self, session_id: str) -> None:
        try:
            await self.gateways.abort_session(session_id)
        except SandgateError as error:  # what ended the session is the news, and is raised
            log.warning("session %s was not aborted: %s", session_id, error)

    async def _scored(self, rows: Sequence[Trajectory], sample: BatchSample) -> list[Trajectory]:
        last = final(rows)
        if last.reward is not None:
            return broadcast(rows)
        if self.score is None:
            raise NoReward(f"session {last.session_id}: neither runner nor agent gave a reward")
        score, info = await self.score(last, sample.columns)
        return broadcast(rows, score, info)


def session_id_of(sample: BatchSample) -> str:
    """A new id that says what it is of."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sample.uid).strip("-")[:NAME_CHARS] or "session"
    return f"{name}-{sample.index}-{secrets.token_hex(6)}"
