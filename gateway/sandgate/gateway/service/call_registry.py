"""CallRegistry: the model calls in flight. Retries join them; a call that nobody waits for lingers, then is aborted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sandgate.contract.errors import Gone, SandgateError
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.service.admission import Admission
from sandgate.gateway.service.call import ModelCall
from sandgate.gateway.service.session import Session

INTERNAL = "internal error; the gateway's log has the details"
"""All that a client is told of a bug."""
CANCELLED = "the call was cancelled"

Make: TypeAlias = Callable[[ModelCall], Coroutine[Any, Any, list[Turn]]]
"""What a call does in its task."""

log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True)
class CallRegistry:
    """By session and request. A call is here until nobody can join it any more."""

    admission: Admission
    linger_s: float
    """Seconds for which a call waits for its client's retry."""
    calls: dict[tuple[str, bytes], list[ModelCall]] = field(default_factory=dict)

    def joinable(self, session: Session, request: TurnRequest) -> list[ModelCall]:
        """Calls for the same request that were not cancelled."""
        calls = self.calls.get((session.session_id, request.digest), ())
        return [call for call in calls if not call.doomed]

    def add(self, session: Session, request: TurnRequest, turns: tuple[str, ...], begun: float) -> ModelCall:
        """A new call."""
        loop = asyncio.get_running_loop()
        call = ModelCall(session, request, turns, begun, loop.create_future(), loop.create_future())
        self.calls.setdefault((session.session_id, request.digest), []).append(call)
        return call

    def start(self, call: ModelCall, make: Make) -> ModelCall:
        """The call, which runs `make` from now on."""
        self.admission.enter(call.request.n)
        call.session.in_flight += call.request.n
        work = self._run(call, make)
        call.task = asyncio.get_running_loop().create_task(work, name=f"turn {call.turns[0]}")
        call.task.add_done_callback(lambda _: self._ended(call))
        return call

    def _forget(self, call: ModelCall) -> None:
        """Drops a call that nobody can join any more: it is durable and answered, or failed."""
        key = (call.session.session_id, call.request.digest)
        self.calls[key].remove(call)
        if not self.calls[key]:
            del self.calls[key]

    def attach(self, call: ModelCall) -> None:
        """A connection waits for this call."""
        call.listeners += 1
        if call.linger is not None:
            call.linger.cancel()
            call.linger = None

    def detach(self, call: ModelCall) -> None:
        """A connection got its answer, or is gone. A call that no connection waits for lingers for the client's retry;
        then it is aborted in the engine."""
        call.listeners -= 1
        if call.listeners:
            return
        if call.done.done():
            self._forget(call)
        else:
            loop = asyncio.get_running_loop()
            call.linger = loop.call_later(self.linger_s, call.cancel)

    async def cancel(self, session: Session) -> None:
        """Aborts every call that this session has in flight; returns when the engine calls are gone."""
        running = [
            call
            for (session_id, _), calls in self.calls.items()
            if session_id == session.session_id
            for call in calls
            if not call.done.done()
        ]
        for call in running:
            call.cancel()
        await asyncio.gather(*(call.task for call in running if call.task), return_exceptions=True)

    async def _run(self, call: ModelCall, make: Make) -> None:
        try:
            records = await make(call)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                error = Gone(CANCELLED)
            elif not isinstance(error, SandgateError):
                log.exception("turn %s failed", call.turns[0])
                error = SandgateError(INTERNAL)
            self._fail(call, error)
        else:
            call.done.set_result(records)
        finally:
            self._release(call)

    def _fail(self, call: ModelCall, error: BaseException) -> None:
        call.doomed = True
        call.session.not_answered(call.request.digest)
        for future in (call.prepared, call.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved here: a call nobody waits for any more is no warning

    def _ended(self, call: ModelCall) -> None:
        """Fails and releases a call whose task was cancelled before its first step, and so never entered its `try`."""
        if not call.done.done():
            self._fail(call, Gone(CANCELLED))
            self._release(call)

    def _release(self, call: ModelCall) -> None:
        call.session.in_flight -= call.request.n
        self.admission.leave(call.request.n)
        if call.linger is not None:
            call.linger.cancel()
        if call.listeners == 0:
            self._forget(call)
        call.wake()
