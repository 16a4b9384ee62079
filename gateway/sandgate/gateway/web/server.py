"""The gateway's ASGI app: agents' endpoints (chat completions, models, /complete); the rest goes to the control API."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import orjson
from msgspec.structs import replace

from sandgate.contract.errors import Forbidden, NotFound, Overloaded, SandgateError, Unauthorized, Unavailable
from sandgate.contract.keys import Key, Scope
from sandgate.gateway.conversation.callers import caller_of
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.protocols.base import (
    Adapter,
    Choice,
    Context,
    History,
    ModelNotFound,
    Stream,
    TokenLogprobs,
    Usage,
)
from sandgate.gateway.protocols.models_list import models
from sandgate.gateway.protocols.table import ADAPTERS, FALLBACK, adapter_for, counter_for
from sandgate.gateway.service import auth
from sandgate.gateway.service.areal import Areal
from sandgate.gateway.service.call import ModelCall, Step
from sandgate.gateway.service.call_registry import INTERNAL
from sandgate.gateway.service.fair_pool import Lane, lane
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.session_history import SessionHistory
from sandgate.gateway.service.waking import either
from sandgate.gateway.tokens.reasoning_count import reasoning_tokens
from sandgate.gateway.web import control, kept_responses
from sandgate.gateway.web.agent_requests import Headers, is_retry, parse_complete, split
from sandgate.gateway.web.answer_writers import ANSWER, Answer, AsgiAnswer
from sandgate.gateway.web.answers import JSON_TYPE, REQUEST, Send, request_headers, respond
from sandgate.gateway.web.body_limits import SMALL_BYTES, Bodies, BodyHold, ClientGone, again, read_body
from sandgate.gateway.web.connections import ConnectionTable
from sandgate.gateway.web.header_limits import CONNECTION

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

OFF_LOOP_BYTES = 100_000
"""A longer body, or one that may refer to so much, is decoded in a thread: 430 kB take 2 ms, and eight may come at
once."""
CHUNK_BYTES = 64 * 1024
"""About so many bytes of a stream are encoded at a time; the next are encoded when the client has read most of them,
however far behind it is."""
SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

T = TypeVar("T")
_SMALL = ("/v1/models", "/v1/responses/", "/responses/")
"""What small endpoints begin with."""

log = logging.getLogger("sandgate.gateway")


class AsgiApp:
    """The ASGI app of a gateway. Agents' calls are plain ASGI, without FastAPI, because they are the hot path."""

    def __init__(self, core: GatewayService) -> None:
        limits = core.config.limits
        self.core = core
        self.control = control.build(core)
        self.areal: Areal = self.control.state.areal
        self.connections = ConnectionTable(limits.connections, limits.connections_per_key)
        self.bodies = Bodies(limits.buffered_bytes, limits.buffered_bytes_per_key)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        answer: Answer = scope.get(ANSWER) or AsgiAnswer(receive, send)
        try:
            await self._route(scope, receive, answer)
        except Exception:
            request = self._request()
            log.exception("%s %s failed", scope["method"], request)
            if answer.started and not answer.ended:
                raise  # half an answer is out: only a broken connection can tell the client
            if not answer.started:
                bug = SandgateError(INTERNAL)
                body = FALLBACK.error_body(bug, request)
                await respond(answer.send, bug.status, body, bug, request=request)

    async def _route(self, scope: AsgiScope, receive: Receive, answer: Answer) -> None:
        send = answer.send
        if (b"upgrade", b"websocket") in ((name, value.lower()) for name, value in scope["headers"]):
            # Codex falls back to HTTP at once on 426, dies on 400 and dawdles on 404 (facts of 30 clients).
            await respond(send, 426, b'{"error":{"message":"no WebSocket here; use HTTP"}}')
            return
        session_id, path = split(scope["path"])
        if scope["method"] == "POST" and (adapter := adapter_for(path)) is not None:
            await self._model_call(adapter, session_id, scope, receive, answer)
        elif scope["method"] == "POST" and (counter := counter_for(path)) is not None:
            await self._count(*counter, session_id, scope, receive, send)
        elif session_id is not None or path in ("/complete", "/v1/complete") or path.startswith(_SMALL):
            await self._small(session_id, path, scope, receive, send)
        elif path == "/healthz" and scope["method"] == "GET":  # must answer when everything else is slow
            status, body = self.core.health()
            await respond(send, status, orjson.dumps(body))
        else:
            await self._control(scope, receive, send)

    async def _control(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Calls the control app. It gets no body without a good key, because it reads whole bodies before the key."""
        key = self._key(scope["headers"])
        if key is None:
            await self.control(scope, again(b"", receive), send)
            return
        hold = self._hold(key)
        small = key.scope in (Scope.AGENT, Scope.REWARD)
        try:
            self._enter(scope, key)
            body = await self._body(scope, receive, hold, small=small)
            await self.control(scope, again(body, receive), send)
        except ClientGone:
            return
        except SandgateError as error:  # the app tells its own
            self.core.metrics.error(error.reason)
            await control.error_response(error)(scope, receive, send)
        finally:
            hold.release()

    def _key(self, headers: Headers) -> Key | None:
        """The caller's verified key; None if there is none, or a bad one."""
        try:
            return self.core.gate.key(headers)
        except (Unauthorized, Forbidden):
            pass
        try:
            return self.areal.admin(auth.bearer(headers))
        except Unauthorized:
            return None

    def _enter(self, scope: AsgiScope, key: Key) -> None:
        """Gives the connection a place in this key's name. Raises Overloaded."""
        if (connection := scope.get(CONNECTION)) is not None:
            connection.show(_name(key) or key.scope.value, bounded=bool(_name(key)))

    def _hold(self, key: Key) -> BodyHold:
        return BodyHold(self.bodies, _name(key))

    async def _body(self, scope: AsgiScope, receive: Receive, hold: BodyHold, *, small: bool) -> bytes:
        limits = self.core.config.limits
        most = min(limits.body_bytes, SMALL_BYTES) if small else limits.body_bytes
        return await read_body(scope, receive, most, limits.body_s, hold)

    # -- model calls --------------------------------------------------------------------------------------------

    async def _model_call(
        self, adapter: Adapter, named: str | None, scope: AsgiScope, receive: Receive, answer: Answer
    ) -> None:
        retry = is_retry(scope["headers"])

        def begin(session: Session, request: TurnRequest) -> tuple[TurnRequest, ModelCall]:
            return request, self.core.turns.begin(session, request, retry=retry)

        try:
            request, call = await self._asked(adapter, named, scope, receive, begin)
        except ClientGone:
            return
        except SandgateError as error:
            await self._refuse(adapter, error, answer.send)
            return
        self.core.turns.registry.attach(call)
        gone = answer.gone()
        try:
            make = self._stream if request.stream else self._json
            delivered = await make(adapter, call, request, gone, answer)
        finally:
            gone.cancel()
            self.core.turns.registry.detach(call)
        if delivered:
            await self.core.turns.committer.delivered(call)
        elif call.told:
            await self.core.turns.committer.let_go(call)

    async def _asked(
        self,
        adapter: Adapter,
        named: str | None,
        scope: AsgiScope,
        receive: Receive,
        then: Callable[[Session, TurnRequest], T],
    ) -> T:
        """What `then` makes of the session and its request. Raises ClientGone, SandgateError: what a client did wrong
        is charged to its session."""
        hold: BodyHold | None = None
        session: Session | None = None
        try:
            key = self.core.gate.key(scope["headers"])
            session = await self._session(key, named)
            self._enter(scope, key)
            await self.core.turns.pool.fair(session.session_id)
            hold = self._hold(key)
            body = await self._body(scope, receive, hold, small=False)
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            history = SessionHistory(session)
            if len(body) + history.weight > OFF_LOOP_BYTES:
                request = await self._decoded(session, adapter, body, headers, history)
            else:
                decode = partial(adapter.decode, body, headers, history)
                request = self.core.turns.pool.charged(session.session_id, decode)
            caller = caller_of(headers, self.core.config.roles)
            request = replace(request, caller=caller, messages=session.tree.regrouped(request.messages))
            if "areal" not in session.spec:  # its agents say "default", and its own proxy reads no model
                self._check_model(request.model)
            return then(session, request)
        except SandgateError as error:
            if session is not None and error.status < 500 and not isinstance(error, Overloaded):
                self.core.turns.pool.spend(session.session_id)
            raise
        finally:
            if hold is not None:
                hold.release()

    async def _count(
        self,
        adapter: Adapter,
        told: dict[str, str],
        named: str | None,
        scope: AsgiScope,
        receive: Receive,
        send: Send,
    ) -> None:
        """How many tokens a prompt has. It is rendered as it would be for a turn, and forgotten."""
        try:
            session, request = await self._asked(adapter, named, scope, receive, lambda *both: both)
            tokens = await self.core.turns.count(session, request)
        except ClientGone:
            return
        except SandgateError as error:
            await self._refuse(adapter, error, send)
            return
        await respond(send, 200, orjson.dumps({**told, "input_tokens": tokens}), request=self._request())

    async def _decoded(
        self, session: Session, adapter: Adapter, body: bytes, headers: dict[str, str], history: History
    ) -> TurnRequest:
        mine = lane(self.core.turns.pool, session.session_id)
        work = mine.admitted if isinstance(mine, Lane) else partial(off_loop, mine)
        return await work(adapter.decode, body, headers, history)

    async def _session(self, key: Key, named: str | None) -> Session:
        session = await self.core.sessions.find(auth.agent_session(key, named))
        job = session.spec.get("job", "")
        auth.of_job(key, job)
        if key.scope is Scope.TRAINER:
            auth.control(key, job=job)
        session.refuse_if_retired()
        return session

    def _check_model(self, model: str) -> None:
        config = self.core.config
        if model and model not in (config.model.name, config.engine.model):
            raise ModelNotFound(
                f"The model `{model[:200]}` does not exist; this session serves `{config.model.name}`"
            )

    async def _json(
        self,
        adapter: Adapter,
        call: ModelCall,
        request: TurnRequest,
        gone: asyncio.Future[Any],
        answer: Answer,
    ) -> bool:
        await call.ended(gone)
        if gone.done():
            return False
        try:
            choices, usage = self._outcome(call)
        except SandgateError as error:
            await self._refuse(adapter, error, answer.send, call.turns[0])
            return False
        body = adapter.reply(self._context(call, request), choices, usage)
        length = (b"content-length", b"%d" % len(body))
        await answer.whole([JSON_TYPE, length, *self._turn_headers(call, call.fork)], body)
        return not gone.done()

    async def _stream(
        self,
        adapter: Adapter,
        call: ModelCall,
        request: TurnRequest,
        gone: asyncio.Future[Any],
        answer: Answer,
    ) -> bool:
        await either(call.prepared, gone)
        if not gone.done() and call.prepared.exception() is None:
            await call.started(self.core.config.limits.keepalive_s, gone)
        if gone.done():
            return False
        refused = call.prepared.exception() or (None if call.steps else _failure(call))
        if refused is not None:
            if not isinstance(refused, SandgateError):
                raise refused
            await self._refuse(adapter, refused, answer.send, call.turns[0])
            return False
        stream = adapter.stream(self._context(call, request))
        headers = [*SSE_HEADERS, *self._turn_headers(call, call.fork)]
        await answer.begin(headers, stream.start(), held=bool(call.steps))
        try:
            async for steps in call.follow(self.core.config.limits.keepalive_s, gone):
                call.told = call.told or bool(steps)
                if len(steps) > 1:
                    await _send_all(chunks(stream, steps), gone, answer)
                elif data := encoded(stream, steps[0]) if steps else stream.keepalive():
                    await answer.part(data)
            if gone.done():
                return False
            choices, usage = self._outcome(call)
            untold = [] if call.steps else await self.core.turns.retell(call)
            call.told = True
            await _send_all(chunks(stream, untold), gone, answer)
        except SandgateError as error:
            await answer.end(stream.error(error, self._failed(error, call.turns[0])))
            return False
        await answer.end(stream.finish(choices, usage))
        return not gone.done()

    def _context(self, call: ModelCall, request: TurnRequest) -> Context:
        core = self.core
        return Context(
            turns=call.turns,
            model=request.model or core.config.model.name,
            created=int(call.begun),
            prompt_tokens=call.prompt_tokens,
            include_usage=request.include_usage,
            hide_reasoning=request.hide_reasoning,
            form=request.form,
            logprobs=request.logprobs,
            token_ids=request.token_ids,
            prompt_told=request.prompt_told,
            request_id=request.request_id,
            token_text=self._token_text if request.logprobs else None,
            token_bytes=core.turns.codec.bytes_of,
        )

    def _token_text(self, token: int) -> str:
        return self.core.turns.codec.decode(array("i", [token]))

    def _outcome(self, call: ModelCall) -> tuple[list[Choice], Usage]:
        """The answer's choices and usage, from the durable turns."""
        turns = call.done.result()
        choices = [choice_of(turn, call) for turn in turns]
        sampled = sum(len(turn.ids) for turn in turns)
        bytes_of = self.core.turns.codec.bytes_of
        thought = sum(reasoning_tokens(turn.ids, turn.reply, bytes_of) for turn in turns)
        return choices, Usage(turns[0].prompt_tokens, sampled, turns[0].cached_tokens, thought)

    def _turn_headers(self, call: ModelCall, fork: str | None) -> Headers:
        turn = call.turns[0]
        headers = [(b"x-sandgate-turn", turn.encode()), *request_headers(REQUEST + turn)]
        if fork:
            headers.append((b"x-sandgate-fork", fork.encode()))
        return headers

    def _request(self, turn: str | None = None) -> str:
        """The id of a request: its turn's, by which tree and logs have it, or a new one."""
        return REQUEST + (turn or self.core.turns.new_id())

    def _failed(self, error: SandgateError, turn: str | None = None) -> str:
        """Counts and logs a request that failed; its id. The error's text may be an agent's, and is not logged; what
        agents can bring about as often as they like is no warning."""
        self.core.metrics.error(error.reason)
        request = self._request(turn)
        ours = error.status >= 500 and not isinstance(error, Unavailable)
        log.log(logging.WARNING if ours else logging.DEBUG, "%s: %d %s", request, error.status, error.reason)
        return request

    async def _refuse(
        self, adapter: Adapter, error: SandgateError, send: Send, turn: str | None = None
    ) -> None:
        request = self._failed(error, turn)
        await respond(send, error.status, adapter.error_body(error, request), error, request=request)

    # -- small agent endpoints ----------------------------------------------------------------------------------

    async def _small(
        self, named: str | None, path: str, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        adapter = ADAPTERS["/messages"] if _is_anthropic(scope["headers"]) else FALLBACK
        try:
            key = self.core.gate.key(scope["headers"])
            self._enter(scope, key)
            if (response := kept_responses.named(path)) is not None:
                session = await self._session(key, named)
                asked = (scope["method"], response, scope.get("query_string", b""))
                body = await kept_responses.answer(self.core, session, *asked)
            else:
                body = orjson.dumps(await self._answer(key, named, path, scope, receive))
        except ClientGone:
            return
        except SandgateError as error:
            await self._refuse(adapter, error, send)
            return
        await respond(send, 200, body, request=self._request())

    async def _answer(
        self, key: Key, named: str | None, path: str, scope: AsgiScope, receive: Receive
    ) -> Any:
        method = scope["method"]
        if method == "GET" and path.startswith("/v1/models"):
            if key.scope is Scope.AGENT or named is not None:
                await self._session(key, named)
            return models(path, self.core.config.model.name, anthropic=_is_anthropic(scope["headers"]))
        if method == "POST" and path in ("/complete", "/v1/complete"):
            if key.scope is not Scope.AGENT:
                raise Forbidden("only the session's own agent key completes it here")
            session = await self._session(key, named)
            hold = self._hold(key)
            try:
                raw = await self._body(scope, receive, hold, small=True)
                return await self.core.complete(session, parse_complete(raw))
            finally:
                hold.release()
        raise NotFound(f"no such endpoint: {method} {path[:200]}")


def _failure(call: ModelCall) -> BaseException | None:
    """What a call failed of, if it is over."""
    return call.done.exception() if call.done.done() else None


def _is_anthropic(headers: Headers) -> bool:
    """Whether a client speaks Anthropic's dialect, on a path that has none."""
    return any(name == b"anthropic-version" for name, _ in headers)


def _name(key: Key) -> str:
    """The name under which bodies and connections of a key are counted: its session. Empty for trainers and admins:
    they are trusted, and have no limits of their own."""
    return key.session if key.scope in (Scope.AGENT, Scope.REWARD) else ""


def encoded(stream: Stream, step: Step) -> bytes:
    """One step of a call as server-sent events."""
    index, deltas, tokens = step
    if not deltas:
        return stream.tokens(tokens, index) if tokens is not None else b""
    first = stream.delta(deltas[0], index, tokens)
    if len(deltas) == 1:
        return first
    return first + b"".join([stream.delta(delta, index) for delta in deltas[1:]])


async def _send_all(pieces: Iterable[bytes], gone: asyncio.Future[Any], answer: Answer) -> None:
    """Sends each piece when the client has read most of the one before; stops when the client is gone."""
    for piece in pieces:
        if gone.done():
            return
        await answer.part(piece)


def chunks(stream: Stream, steps: Sequence[Step]) -> Iterator[bytes]:
    """Steps as server-sent events, about CHUNK_BYTES at a time, each encoded when it is asked for; none is empty."""
    waiting, size = [], 0
    for step in steps:
        waiting.append(encoded(stream, step))
        size += len(waiting[-1])
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


def choice_of(turn: Turn, call: ModelCall) -> Choice:
    """A durable turn as an answer."""
    request = call.request
    return Choice(
        reply=turn.reply,
        finish=cast("Finish", turn.finish),
        tokens=TokenLogprobs(turn.ids, turn.logprobs, turn.top) if request.tells_tokens else None,
        prompt_ids=call.session.tree.prompt_ids(turn) if request.token_ids else None,
        stop_reason=turn.stop_reason,
        versions=turn.versions if request.token_ids else (),
    )
