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
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionOutcome
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.credit.reasons import Truncated, is_truncated
from sandgate.trainer.verl.rewards import broadcast, final, returned
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.runners import Runner

log = logging.getLogger(__name__)

NAME_CHARS = 64
"""Of a uid in a session's id; a random tail makes the id unique."""
Score = Callable[[Trajectory, Mapping[str, Any]], Awaitable[tuple[float, Mapping[str, Any]]]]
"""A final trajectory and its sample's columns -> score and reward_info."""


class NoReward(SandgateError):
    """Nobody scored the session: not the runner, not the agent, not a reward loop."""


class NoTurns(SandgateError):
    """The session sampled nothing."""


class TimedOut(SandgateError):
    """The session took longer than it may; what it sampled until then is a truncated episode."""


class NotCompleted(SandgateError):
    """An agent elsewhere did not call /complete in time: it may be slow, or gone."""


LIMITS = {
    "context": FailureReason.CONTEXT_EXCEEDED,
    "turns": FailureReason.TURN_LIMIT,
    "totalTokens": FailureReason.TOKEN_LIMIT,
    "journalBytes": FailureReason.TOKEN_LIMIT,
}
"""What refused the last turn of an agent that failed then -> why its session ended."""


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
        truncated_reward: float = 0.0,
    ) -> None:
        """`score`: asked for sessions that nobody gave a reward. `truncated_reward`: of an episode that a limit ended,
        and that nobody scored."""
        self.gateways, self.runners, self.lengths = gateways, dict(runners), lengths
        self.score, self.job = score, job
        self.truncated_reward = truncated_reward

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

    async def run(
        self, sample: BatchSample, sampling: Mapping[str, Any], truncated: Truncated = "score"
    ) -> list[Trajectory]:
        """The session's trajectories, all with the session's score; at least one, of whatever length. An episode that
        met the window, its turn limit or its time is one, too, and its rows say why it ended; where such are masked
        (`truncated`), nobody is asked for its score.

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
        if not any(1 in row.loss_mask for row in rows):
            raise NoTurns(
                f"session {session_id} sampled nothing; prompts may have {self.lengths.prompt} tokens"
            )
        return await self._scored(rows, sample, truncated)

    async def _captured(
        self, runner: Runner, session_id: str, sample: BatchSample, sampling: Mapping[str, Any]
    ) -> list[Trajectory]:
        spec = {"uid": sample.uid, "sample_index": sample.index, "sampling": dict(sampling), "job": self.job}
        session = await self.gateways.create_session(session_id, **spec, limits=self.lengths.limits())
        try:
            said = await runner.run(
                session=session,
                raw_prompt=sample.raw_prompt,
                sample_index=sample.index,
                tools_kwargs=sample.tools_kwargs,
            )
            patience = runner.config.completion_timeout_s
            if patience and not await self.gateways.wait_for_completion(session_id, patience):
                raise NotCompleted(f"session {session_id}: no /complete after {patience:g} s")
        except Exception as error:
            why = await self._truncation(session_id, error)
            if why is None:
                raise
            log.info("session %s was truncated (%s): %s", session_id, why.value, error)
            outcome = SessionOutcome(failure_reason=why, detail=f"{type(error).__name__}: {error}")
            return await self.gateways.finalize_session(session_id, None, outcome.body()["outcome"])
        return await self.gateways.finalize_session(session_id, returned(said))

    async def _truncation(self, session_id: str, error: Exception) -> FailureReason | None:
        """Which limit ended it, if one did: an agent that was refused a turn fails in its own way."""
        if isinstance(error, TimedOut):
            return FailureReason.SESSION_TIMEOUT
        try:
            return LIMITS.get(await self.gateways.limit_reached(session_id) or "")
        except SandgateError:  # the agent's own failure is the news
            return None

    async def _discard(self, session_id: str) -> None:
        try:
            await self.gateways.abort_session(session_id)
        except SandgateError as error:  # what ended the session is the news, and is raised
            log.warning("session %s was not aborted: %s", session_id, error)

    async def _scored(
        self, rows: Sequence[Trajectory], sample: BatchSample, truncated: Truncated
    ) -> list[Trajectory]:
        last = final(rows)
        if last.reward is not None:
            return broadcast(rows)
        if is_truncated(last) and last.failure_reason is not None:
            if truncated == "mask":
                return list(rows)
            if self.score is None:
                return broadcast(rows, self.truncated_reward)
        if self.score is None:
            raise NoReward(f"session {last.session_id}: neither runner nor agent gave a reward")
        score, info = await self.score(last, sample.columns)
        return broadcast(rows, score, info)


def session_id_of(sample: BatchSample) -> str:
    """A new id that says what it is of."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sample.uid).strip("-")[:NAME_CHARS] or "session"
    return f"{name}-{sample.index}-{secrets.token_hex(6)}"
