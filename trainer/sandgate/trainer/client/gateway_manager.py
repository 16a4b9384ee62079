"""Load balancing of sessions over several gateways: a session stays at one, new ones go to the least loaded."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from sandgate.contract.control_call import may_retry
from sandgate.contract.errors import Conflict, NotFound, SandgateError, Unavailable
from sandgate.contract.session import SessionHandle, finite
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.weight_update import carried_through

log = logging.getLogger(__name__)

DOWN_S = 30.0
"""After it did not answer a creation, a gateway is given none for so long, as long as another one answers."""
DOUBT_S = 5.0
"""For a gateway to end a creation whose caller was cancelled; and to abort one that nobody knows. Each is a write,
which takes milliseconds. A gateway that is away is passed over so much later."""

Policy = Literal["least_loaded", "round_robin"]
Outcome = Mapping[str, Json] | None
"""None: it ended well."""
UPLOADED = ("reward", "score")
"""Keys of an agent's reward_info that are the session's reward, in this order."""


class SessionGateway(Protocol):
    """The session calls of one gateway, wherever it runs."""

    async def create_session(self, session_id: str, **spec: Json) -> SessionHandle:
        """Open a session. Raises Unavailable if the gateway does not answer."""
        ...

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> list[Trajectory]:
        """Seal the session and return its trajectories, sorted by id. `reward`: the session's; by default the one that
        the agent gave to /complete. `outcome`: how it ended, if not well (`SessionOutcome.body()["outcome"]`)."""
        ...

    async def limit_reached(self, session_id: str) -> str | None:
        """Which limit refused it a turn, if one did: `context`, `turns`, `totalTokens`,
        `journalBytes` or `journalShare`."""
        ...

    async def abort_session(self, session_id: str) -> None: ...
    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        """Has the agent called /complete, `timeout` seconds from now at the latest?"""
        ...


def uploaded(info: Mapping[str, Json] | None) -> float | None:
    """The reward in an agent's reward_info, if it is a finite number."""
    for name in UPLOADED:
        if info is not None and (number := finite(info.get(name))) is not None:
            return number
    return None


class HttpGateway:
    """A gateway by its control API. The client's key needs scope trainer or admin.

    The gateway keeps what it gave and also offers it for lease, as to every trainer: acknowledge it there, or give it a
    journal that may go."""

    def __init__(self, client: AsyncRolloutClient) -> None:
        self.client = client

    async def create_session(self, session_id: str, **spec: Json) -> SessionHandle:
        """See `SessionGateway`."""
        return await self.client.create_session(session_id=session_id, **spec)

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> list[Trajectory]:
        """See `SessionGateway`."""
        return await self.client.finalize(session_id, **await self.ending(session_id, reward, outcome))

    async def ending(self, session_id: str, reward: float | None, outcome: Outcome = None) -> dict[str, Json]:
        """The reward and the outcome that a session ends with, as the body of its finalization."""
        info = (await self.client.session(session_id)).get("complete_info") or {}
        given = uploaded(info) if reward is None else reward
        body: dict[str, Json] = {} if given is None else {"reward": given, "reward_info": info}
        if outcome is not None:
            body["outcome"] = dict(outcome)
        return body

    async def limit_reached(self, session_id: str) -> str | None:
        """See `SessionGateway`."""
        return (await self.client.session(session_id)).get("limit_reached") or None

    async def abort_session(self, session_id: str) -> None:
        """See `SessionGateway`."""
        await self.client.abort(session_id)

    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        """See `SessionGateway`."""
        return await self.client.wait(session_id, timeout) is not None


def _refused(making: asyncio.Future[SessionHandle]) -> bool:
    """Its gateway said that it opened nothing: a session of this id is somebody else's."""
    error = making.exception() if making.done() and not making.cancelled() else None
    return isinstance(error, SandgateError) and not may_retry(error)


class GatewayManager:
    """Chooses a gateway for each session and routes its calls there. Belongs to one event loop.

    A place is reserved before the gateway is asked and given back if that fails, so that sessions created at once
    spread evenly; it is freed when the session is finalized or aborted. A gateway that does not answer a creation is
    passed over for `DOWN_S` while another one answers, and then tried again. What a creation may have opened whose
    caller is cancelled, or whose answer is lost, is aborted before its place is given back.
    """

    def __init__(
        self,
        gateways: Sequence[SessionGateway],
        *,
        policy: Policy = "least_loaded",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises Unavailable if `gateways` is empty."""
        if not gateways:
            raise Unavailable("there is no gateway to create sessions at")
        self.gateways, self.policy = list(gateways), policy
        self.load = [0] * len(self.gateways)
        """Open sessions of each gateway, by its index."""
        self._routes: dict[str, int] = {}
        self._clock = clock
        self._down: dict[int, float] = {}
        """Gateways that did not answer their last creation, and until when they are passed over."""
        self._turn = itertools.count()

    async def create_session(self, session_id: str, **spec: Json) -> SessionHandle:
        """Open a session at a gateway with room. Raises Conflict for an id that is in use here, Unavailable if no
        gateway answers, and the gateway's own errors."""
        if session_id in self._routes:
            raise Conflict(f"session {session_id} is already open")
        tried: set[int] = set()
        while True:
            at = self._reserve(session_id, tried)
            try:
                handle = await self._opened(at, session_id, spec)
            except Unavailable as error:
                self._release(session_id)
                self._down[at] = self._clock() + DOWN_S
                log.warning("gateway %d of %d is passed over: %s", at, len(self.gateways), error)
                tried.add(at)
                if len(tried) == len(self.gateways):
                    raise
            except BaseException:
                self._release(session_id)
                raise
            else:
                self._down.pop(at, None)
                return handle

    async def _opened(self, at: int, session_id: str, spec: Mapping[str, Json]) -> SessionHandle:
        making = asyncio.ensure_future(self.gateways[at].create_session(session_id, **spec))
        try:
            await asyncio.wait([making])
            return making.result()
        except BaseException:
            await carried_through(asyncio.ensure_future(self._undo(at, session_id, making)))
            raise

    async def _undo(self, at: int, session_id: str, making: asyncio.Future[SessionHandle]) -> None:
        """Abort what it may have opened. Not before it ended: its gateway would not know the session yet."""
        try:
            await asyncio.wait([making], timeout=DOUBT_S)
            if _refused(making):
                return
            making.cancel()
            async with asyncio.timeout(DOUBT_S):
                await self.gateways[at].abort_session(session_id)
        except NotFound:
            pass
        except Exception as error:
            known = isinstance(error, SandgateError | TimeoutError)
            log.warning(
                "session %s may be open at gateway %d, and unused: %r",
                session_id,
                at,
                error,
                exc_info=not known,
            )

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> list[Trajectory]:
        """Seal the session and return its trajectories. After a failure, call it again or abort. Raises NotFound."""
        rows = await self._gateway_of(session_id).finalize_session(session_id, reward, outcome)
        self._release(session_id)
        return rows

    async def limit_reached(self, session_id: str) -> str | None:
        """See `SessionGateway`. Raises NotFound."""
        return await self._gateway_of(session_id).limit_reached(session_id)

    async def abort_session(self, session_id: str) -> None:
        """Discard the session. Does nothing for a session that is not open here."""
        if session_id in self._routes:
            try:
                await self._gateway_of(session_id).abort_session(session_id)
            finally:
                self._release(session_id)

    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        """Has the agent called /complete, `timeout` seconds from now at the latest? Raises NotFound."""
        return await self._gateway_of(session_id).wait_for_completion(session_id, timeout)

    def gateway_of(self, session_id: str) -> int:
        """Index of the gateway that the session is pinned to. Raises NotFound."""
        if session_id not in self._routes:
            raise NotFound(f"session {session_id} is not open here")
        return self._routes[session_id]

    def _gateway_of(self, session_id: str) -> SessionGateway:
        return self.gateways[self.gateway_of(session_id)]

    def _reserve(self, session_id: str, tried: set[int]) -> int:
        """Synchronous on purpose: nothing may come between the choice and the count."""
        open_ones = [at for at in range(len(self.gateways)) if at not in tried]
        now = self._clock()
        choice = [at for at in open_ones if self._down.get(at, now) <= now] or open_ones
        if self.policy == "round_robin":
            at = choice[next(self._turn) % len(choice)]
        else:
            at = min(choice, key=self.load.__getitem__)
        self._routes[session_id] = at
        self.load[at] += 1
        return at

    def _release(self, session_id: str) -> None:
        at = self._routes.pop(session_id, None)
        if at is not None:
            self.load[at] -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has the same gateways and no sessions."""
        return type(self)._made, (self.gateways, self.policy)

    @classmethod
    def _made(cls, gateways: Sequence[SessionGateway], policy: Policy) -> GatewayManager:
        return GatewayManager(gateways, policy=policy)
