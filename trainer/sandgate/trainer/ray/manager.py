"""Sessions over gateways that are Ray actors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from sandgate.contract import control_api
from sandgate.contract.control_call import ControlAnswer
from sandgate.contract.errors import Unavailable
from sandgate.contract.session import SessionHandle
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.trainer.client import lease_call
from sandgate.trainer.client.gateway_manager import GatewayManager, Outcome, Policy
from sandgate.trainer.ray.actor import AgentGateway, GatewaySettings

log = logging.getLogger(__name__)
T = TypeVar("T")

CALLS = 10_000
"""At once in one actor; each is a task of its loop, and waits for agents are long."""


def gateway_actor(settings: GatewaySettings, **options: Any) -> Any:
    """A gateway on some node of the cluster: a handle to an `AgentGateway`. Takes no CPU slot; `options` are Ray's."""
    import ray  # type: ignore[import-not-found]

    made = ray.remote(AgentGateway).options(**{"num_cpus": 0, "max_concurrency": CALLS} | options)
    return made.remote(settings)


class RayGateway:
    """A `Gateway` behind an actor's handle. A dead actor is Unavailable; other errors are the gateway's own."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def create_session(self, session_id: str, **spec: Json) -> SessionHandle:
        """See Gateway."""
        handle: SessionHandle = await _asked(self.actor.create_session.remote(session_id, spec))
        return handle

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> list[Trajectory]:
        """See Gateway."""
        said: ControlAnswer = await _asked(self.actor.finalize_session.remote(session_id, reward, outcome))
        read = lease_call.rows(control_api.finalize(session_id, {"trajectories": True})).read
        rows = await asyncio.to_thread(read, said)
        try:
            await _asked(self.actor.forget.remote(session_id))
        except Unavailable as error:  # the rows are here
            log.info("session %s: %s", session_id, error)
        return rows

    async def limit_reached(self, session_id: str) -> str | None:
        """See Gateway."""
        found: str | None = await _asked(self.actor.limit_reached.remote(session_id))
        return found

    async def abort_session(self, session_id: str) -> None:
        """See Gateway."""
        await _asked(self.actor.abort_session.remote(session_id))

    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        """See Gateway."""
        return bool(await _asked(self.actor.wait_for_completion.remote(session_id, timeout)))


async def _asked(reference: Awaitable[T]) -> T:
    import ray

    try:
        return await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.ObjectLostError as error:
        raise Unavailable(f"the answer of the gateway's actor was lost: {error}") from error
    except ray.exceptions.RayActorError as error:
        raise Unavailable(f"the gateway's actor is gone: {error}") from error


class AgentGatewayManager(GatewayManager):
    """Routes sessions to gateway actors (RFC 5790), whose handles it is given."""

    def __init__(self, gateways: Sequence[Any], *, policy: Policy = "least_loaded") -> None:
        super().__init__([RayGateway(actor) for actor in gateways], policy=policy)
