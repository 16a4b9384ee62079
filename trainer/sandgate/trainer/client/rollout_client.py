"""HTTP client of the gateway's control API, with retries. `blocking_client` is the one without an event loop.

Every call is sent again, a bounded number of times, when its answer was lost or the gateway said 429 or 503 (its
Retry-After is kept): all of them are idempotent.
Errors are the contract's: `BadRequest` and below for what the caller did, `Unavailable` when no gateway answers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from sandgate.contract import control_api
from sandgate.contract.job import Task
from sandgate.contract.lease import LEASE_TTL_S, LEASES_MAX, Lease
from sandgate.contract.session import SessionHandle
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.client import ControlClient, new_reward_id
from sandgate.trainer.client import lease_call
from sandgate.trainer.client.streaming import Ahead, Groups, Wanted, groups
from sandgate.trainer.client.weight_update import weight_update

log = logging.getLogger(__name__)

SAID = 8
"""Uids that a warning names."""


def _spec(spec: Mapping[str, Json]) -> dict[str, Json]:
    """With a name, so that a retry cannot make two sessions."""
    given = {key: value for key, value in spec.items() if value is not None}
    return {"session_id": f"s-{uuid.uuid4().hex[:24]}"} | given


class AsyncRolloutClient(ControlClient):
    """Talks to one gateway. Use as `async with`, or call `aclose`."""

    async def create_session(self, /, **spec: Json) -> SessionHandle:
        """`spec`: the fields of contract.session.SessionSpec; another one is an InvalidBody that names it."""
        return await self.call(control_api.create(_spec(spec)))

    async def create_sessions(self, specs: Sequence[Mapping[str, Json]]) -> list[SessionHandle]:
        """Many in one request; handles in the order of `specs`."""
        return await self.call(control_api.create_many([_spec(spec) for spec in specs]))

    async def session(self, session_id: str) -> dict[str, Json]:
        """State, turns, tokens, forks. Raises NotFound."""
        return await self.call(control_api.session(session_id))

    async def sessions(
        self, *, state: str | None = None, job: str | None = None
    ) -> AsyncIterator[dict[str, Json]]:
        """All of them in id order, page by page."""
        async for session in self._pages(state=state or "", job=job or ""):
            yield session

    async def wait(self, session_id: str, timeout_s: float = 60.0) -> dict[str, Json] | None:
        """The session's state once it is complete or ended; None if it is still open after `timeout_s`."""
        return await self.call(control_api.wait(session_id, timeout_s))

    async def reward(
        self,
        session_id: str,
        reward: float,
        *,
        interaction_id: str | None = None,
        reward_info: Mapping[str, Json] | None = None,
    ) -> None:
        """Reward one turn; default: the last. Raises Gone once the session is finalized."""
        await self.call(
            control_api.reward(
                session_id, reward, interaction_id, reward_info or {}, reward_id=new_reward_id()
            )
        )

    async def finalize(
        self,
        session_id: str,
        *,
        outcome: Mapping[str, Json] | None = None,
        reward: float | None = None,
        reward_info: Mapping[str, Json] | None = None,
        discount: float | None = None,
        trajectories: bool = True,
    ) -> list[Trajectory]:
        """Seal the session, and give its trajectories (none with `trajectories` False). The first call's outcome
        stands."""
        body = {"outcome": outcome, "reward": reward, "reward_info": reward_info, "discount": discount}
        given = {name: value for name, value in body.items() if value is not None}
        return await self.call(
            lease_call.rows(control_api.finalize(session_id, given | {"trajectories": trajectories}))
        )

    async def trajectories(self, session_id: str) -> list[Trajectory]:
        """Those of a finalized session. Reads only: they stay to be leased. Raises Conflict while it has not ended,
        Gone if it was aborted."""
        return await self.call(lease_call.rows(control_api.trajectories(session_id)))

    async def abort(self, session_id: str) -> None:
        """Cancel what is in flight, discard. Siblings are untouched."""
        await self.call(control_api.abort(session_id))

    async def tree(self, session_id: str, *, text: bool = True) -> dict[str, Json]:
        """Turns, parents, fork reasons, spans, as the viewer gets them; `text`: decoded too."""
        return await self.call(control_api.tree(session_id, text=text))

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = LEASE_TTL_S,
    ) -> Lease | None:
        """Whole groups that are ready, or None if there are none now. They are ours for `ttl_s` seconds."""
        return await self.call(
            lease_call.lease(job=job, max_groups=max_groups, max_tokens=max_tokens, ttl_s=ttl_s)
        )

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        """Keep a lease: `ttl_s` seconds from now on. Raises Conflict (another trainer was given it), NotFound."""
        await self.call(control_api.renew(lease_id, ttl_s))

    async def renew_leases(self, lease_ids: Sequence[str], ttl_s: float) -> dict[str, str]:
        """The same as `renew` for many, in one write. Lease id -> why it is not renewed, for those that are not. Raises
        NotFound if the gateway is older than this call."""
        refused: dict[str, str] = {}
        for start in range(0, len(lease_ids), LEASES_MAX):
            some: dict[str, str] = await self.call(
                control_api.renew_leases(lease_ids[start : start + LEASES_MAX], ttl_s)
            )
            refused |= some
        return refused

    async def ack_leases(self, leases: Sequence[Lease]) -> dict[str, str]:
        """The same as `ack` for many, in one write. Lease id -> why it is not acknowledged, for those that are not.
        Raises NotFound if the gateway is older than this call."""
        refused: dict[str, str] = {}
        for start in range(0, len(leases), LEASES_MAX):
            some = [lease.lease_id for lease in leases[start : start + LEASES_MAX]]
            said: dict[str, str] = await self.call(control_api.ack_leases(some))
            refused |= said
        return refused

    async def ack(self, lease: Lease) -> None:
        """These are trained on, or stored: never offered again. Idempotent."""
        await self.call(control_api.ack(lease.lease_id))

    async def nack(self, lease: Lease) -> None:
        """Give them back at once."""
        await self.call(control_api.nack(lease.lease_id))

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = LEASE_TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = None,
    ) -> Groups:
        """Whole groups as they become ready, each under its own lease, which is renewed while the group is held on to;
        ends after `idle_s` seconds without one. `ahead`: how much may be leased before it is asked for.

        async for group in client.groups(job="shop"):
            async with group:      # acknowledged when the block ends, given back when it raises
                await train(group.trajectories)
        """
        return groups(self, job=job, ttl_s=ttl_s, idle_s=idle_s, ahead=ahead, ask=self._ask)

    async def _ask(self, wanted: Wanted, lease_id: str) -> list[Lease]:
        return await self.call(lease_call.several(wanted, lease_id))

    async def push_tasks(
        self, tasks: Sequence[Task], *, last: bool = False, job: str = ""
    ) -> tuple[str, ...]:
        """To a job with `tasks.queue`, at most 10,000 at once; all of them or none, durable when this returns. `last`:
        no more will come, and the job ends with these. The same again changes nothing: a task is run once, by its uid.
        Returns the uids of those that had finished before, and warns of them: each group was given already, or is
        offered again if it was not acknowledged, and none runs anew. Those whose groups this gateway itself still
        offers are not among them. Raises Conflict (a uid that is known with another prompt or data, or a new one after
        the last) and Overloaded: the gateway still holds as many unfinished tasks as `tasks.queue.capacity` says, after
        all attempts."""
        finished = await self.call(control_api.push_tasks(tasks, last=last, job=job))
        warn_of_finished(finished)
        return finished

    async def close_group(self, uid: str, *, job: str = "") -> None:
        """No more sessions count for this task: what is there is its group (quorum reached, stragglers cut). If none
        counts, the group is lost: `groups()` gives it once, without trajectories."""
        await self.call(control_api.close_group(job, uid))

    async def policy_version(
        self, version: int, *, labelled: bool | None = None, adapter: str = "", update: str = ""
    ) -> None:
        """Tokens sampled from now on carry this version, where the engine itself reports none. `labelled`: every
        engine's weights are labelled with their version (`/update_weight_version`); then an engine whose label has no
        number has lost its weights, and is not used until it has one. False: labels say nothing (any more). None: as
        was told or seen before. `adapter`: the version is that of a LoRA adapter, which engines serve under this name;
        one that does not is not used. Empty: the engines' own weights are of it. `update`: see `pause`. Raises
        Unsupported, Conflict."""
        await self.call(control_api.policy_version(version, labelled, adapter, update=update))

    async def pause(self, update: str = "") -> None:
        """Hold turns that have not reached the engine; their clients get heartbeats. `update`: the name of the weight
        update that begins by this (`update_order.update_name`); what one of a lesser name says from now on is a
        Conflict."""
        await self.call(control_api.pause(update))

    async def resume(self, update: str = "") -> None:
        """Let held turns go on. `update`: see `pause`."""
        await self.call(control_api.resume(update))

    async def heartbeat(self) -> None:
        """A sign of life, for jobs with `trainer.heartbeatSeconds`; every other call is one too."""
        await self.call(control_api.heartbeat())

    async def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        return await self.call(control_api.status())

    @asynccontextmanager
    async def weight_update(self, version: int) -> AsyncIterator[None]:
        """Pause; swap the weights inside the block; then tokens carry `version` and turns go on: a fleet's update, of
        this one gateway. A gateway that cannot be paused is an error before the block, and is let go again.

        If the block raises, the old weights are still there: the version stays, and turns go on, but at a gateway that
        was on hold before. If the gateway does not take the version after that, it stays on hold: what it sampled would
        be of the new weights under the old version. Make the update again, with the same version. Raises InvalidBody
        for a version that none takes, HalfUpdated for what fails after the block, and Superseded if another update
        began since (of another trainer, say): then it has the gateway, and this one tells and lets go on nothing.
        """
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(weight_update({self.origin: self}, version))
            except ExceptionGroup as group:
                (said,) = group.exceptions
                for note in getattr(group, "__notes__", ()):
                    said.add_note(note)
                raise said from None
            yield


def warn_of_finished(uids: Sequence[str]) -> None:
    """A trainer that waits for new groups of them would wait for ever."""
    if uids:
        named = ", ".join(uids[:SAID]) + (", ..." if len(uids) > SAID else "")
        log.warning(
            "%d pushed tasks had finished before, and do not run anew (%s): each group was given already, or is offered"
            " again if it was not acknowledged. A next epoch needs uids of its own. If this repeats a push, it is well",
            len(uids), named,
        )  # fmt: skip
