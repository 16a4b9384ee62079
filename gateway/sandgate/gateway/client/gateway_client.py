"""What an operator does to a gateway: open, end and follow sessions, set its engines. See control_client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from sandgate.contract import control_api
from sandgate.contract.control_api import CREATE_BATCH, SessionEvents, TaskPage, summary
from sandgate.contract.control_call import ControlAnswer
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.contract.session import SessionHandle, SessionOutcome, SessionSpec, SessionSummary
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client.control_client import TIMEOUT_S, ControlClient, new_lease_id, new_reward_id
from sandgate.gateway.client.retries import Retries

Json = Any

DEADLINE_S = 60.0
"""How long one call is repeated; a gateway restarts and replays its journal in a few seconds."""
PAUSE_MAX_S = 1.0
"""Between attempts where the gateway does not say: an operator is one, and what it waits for is soon there."""


class GatewayClient(ControlClient):
    """One gateway's control API. `key` needs scope admin or trainer. Raises what the gateway says (contract.errors by
    status and x-sandgate-reason), or Unavailable when it did not answer within the deadline."""

    def __init__(
        self,
        origin: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        retries = Retries(attempts=None, deadline_s=deadline_s, longest_s=PAUSE_MAX_S)
        super().__init__(origin, key, timeout_s=timeout_s, retries=retries, transport=transport)

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> SessionHandle:
        """Open a session, or get the handle of the one that has this id."""
        return await self.call(control_api.create(spec.body()))

    async def create_many(self, specs: Sequence[SessionSpec]) -> list[SessionHandle]:
        """The same for many, in order; in batches."""
        handles: list[SessionHandle] = []
        for start in range(0, len(specs), CREATE_BATCH):
            batch = [spec.body() for spec in specs[start : start + CREATE_BATCH]]
            made = await self.call(control_api.create_many(batch))
            handles += made
        return handles

    async def get(self, session_id: str) -> SessionSummary:
        """How a session stands. Raises NotFound."""
        return await self.call(control_api.session(session_id).reading(summary))

    async def sessions(self, *, state: str = "", job: str = "") -> AsyncIterator[SessionSummary]:
        """All sessions, in order of id, page by page. Raises InvalidBody for pages without an end."""
        async for session in self._pages(state=state, job=job):
            yield SessionSummary.of(session)

    async def wait(self, session_id: str, timeout_s: float) -> SessionSummary | None:
        """wait_for_completion: the session once it is complete or ended; None after `timeout_s`."""
        return await self.call(control_api.wait(session_id, timeout_s).reading(_summary_in_time))

    async def reward(
        self,
        session_id: str,
        reward: float,
        *,
        interaction_id: str | None = None,
        info: Mapping[str, Json] | None = None,
    ) -> None:
        """Set the reward of a turn; default the last one. Raises Gone once the session ended."""
        await self.call(
            control_api.reward(session_id, reward, interaction_id, info or {}, reward_id=new_reward_id())
        )

    async def finalize(self, session_id: str, outcome: SessionOutcome) -> None:
        """Seal the session; its trajectories go to the lease queue. The first outcome stands. Raises Gone if it was
        aborted."""
        await self.call(control_api.finalize(session_id, outcome.body()))

    async def finalize_rows(self, session_id: str, outcome: SessionOutcome) -> list[Trajectory]:
        """Seal the session, and give its trajectories at once."""
        return await self.call(control_api.finalize(session_id, outcome.body(trajectories=True)))

    async def complete(self, session_id: str) -> None:
        """The agent's own signal, given for it: no more turns. Idempotent."""
        await self.call(control_api.complete(session_id))

    async def abort(self, session_id: str) -> None:
        """Cancel and discard; siblings are untouched. A session that was finalized stays so."""
        await self.call(control_api.abort(session_id))

    async def tree(self, session_id: str) -> dict[str, Json]:
        """Turns, parents, fork reasons, spans; for viewers."""
        return await self.call(control_api.tree(session_id))

    async def close_group(self, uid: str, *, job: str = "") -> None:
        """No more sessions count for this task: what ended well of it may be leased now. Raises NotFound."""
        await self.call(control_api.close_group(job, uid))

    async def task(self, session_id: str) -> Json:
        """The task document that the session was created with. Raises NotFound if it was created without."""
        return await self.call(control_api.session_task(session_id))

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> tuple[str, ...]:
        """To the queue of a running job, at most 10,000 at once. Repeats change nothing; the uids of those that had
        finished before are returned, as far as the gateway knows, but for those whose groups it holds for a trainer. At
        capacity it is asked again until the deadline.
        Raises Conflict (a uid with another prompt or data; or the queue was ended), Overloaded."""
        return await self.call(control_api.push_tasks(tasks, last=last))

    async def tasks(self, after: int = 0, *, wait_s: float = 0.0) -> TaskPage:
        """The next page of the queue beyond number `after`, waiting up to `wait_s` for the first task or the end."""
        return await self.call(control_api.tasks(after, wait_s))

    async def forget_tasks(self, upto: int) -> None:
        """Tasks up to this number are finished: their places are free. Raises NotFound for a number not given yet."""
        await self.call(control_api.forget_tasks(upto))

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(
        self,
        *,
        max_groups: int,
        ttl_s: float,
        job: str | None = None,
        max_tokens: int | None = None,
        whole_groups: bool = True,
    ) -> Lease | None:
        """The oldest groups that are ready, or None if there is none now."""
        return await self.call(
            control_api.lease(
                max_groups=max_groups,
                ttl_s=ttl_s,
                job=job,
                max_tokens=max_tokens,
                whole_groups=whole_groups,
                lease_id=new_lease_id(),
            )
        )

    async def ack(self, lease_id: str) -> None:
        """They are with the trainer for good. Raises NotFound, Conflict (given to another since)."""
        await self.call(control_api.ack(lease_id))

    async def nack(self, lease_id: str) -> None:
        """Give back what was not acknowledged."""
        await self.call(control_api.nack(lease_id))

    # -- the process --------------------------------------------------------------------------------------------------

    async def events(self, after: int, *, wait_s: float = 30.0) -> SessionEvents:
        """State changes after the cursor, waiting up to `wait_s` for the first."""
        return await self.call(control_api.events(after, wait_s))

    async def pause(self) -> None:
        """Hold turns that have not reached the engine."""
        await self.call(control_api.pause())

    async def resume(self) -> None:
        """Let held turns go on."""
        await self.call(control_api.resume())

    async def repeat_policy_version(self, version: int, *, labelled: bool, adapter: str) -> None:
        """What the trainer told other gateways, to one that was told nothing; else nothing changes."""
        await self.call(control_api.policy_version(version, labelled, adapter, if_untold=True))

    async def set_engines(self, urls: Sequence[str], nodes: Mapping[str, str] | None = None) -> None:
        """Replace the engine's replicas; running generations end where they are. Survives a restart of the gateway,
        but for `nodes` (URL -> node, where that is known)."""
        await self.call(control_api.engines(urls, nodes))

    async def heartbeat(self) -> float:
        """A trainer lives; when the gateway heard it, in unix seconds."""
        return await self.call(control_api.heartbeat())

    async def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        return await self.call(control_api.status())

    async def ready(self, *, timeout_s: float | None = None) -> str:
        """Why it takes no turns now; empty when it does. Asked once. Raises Unavailable if nothing answers."""
        return await self.call(control_api.ready(), Retries(attempts=1), timeout_s=timeout_s)

    async def healthy(self) -> bool:
        """Can turns be made durable? Raises Unavailable if nothing answers at all."""
        return await self.call(control_api.healthy())


def _summary_in_time(answer: ControlAnswer) -> SessionSummary | None:
    return None if answer.status == 408 else summary(answer)
