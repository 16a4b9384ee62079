"""One completion, top to bottom: find, admit, render, hold, generate, commit, tell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import ForkReason, Gone, LimitReached, Paused, SandgateError
from sandgate.gateway import admission, sampling
from sandgate.gateway.calls import Call
from sandgate.gateway.config import Config
from sandgate.gateway.conversation.echo import MatchPolicy
from sandgate.gateway.conversation.messages import Sampling, TurnRequest
from sandgate.gateway.conversation.turns import Turn
from sandgate.gateway.engine.api import Delta, Engine, Prompt, Sample
from sandgate.gateway.journal.records import Delivered, Intent, TurnCommitted
from sandgate.gateway.metrics import Metrics
from sandgate.gateway.prompts import Prepared, Prompts, constraint_of, off_loop
from sandgate.gateway.protocols.base import Tokens
from sandgate.gateway.session import Session
from sandgate.gateway.sessions import Sessions
from sandgate.gateway.tokens.api import Codec, Parser

OFF_LOOP_IDS = 4_096
"""Samples beyond this are parsed in a thread."""


log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True)
class Turns:
    """Makes turns. Holds no state of its own but the calls in flight."""

    config: Config
    sessions: Sessions
    engine: Engine
    codec: Codec
    metrics: Metrics
    new_id: Callable[[], str]
    window: int
    """Tokens of prompt + answer that the model takes."""
    load: admission.Load = field(default_factory=admission.Load)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    calls: dict[tuple[str, bytes], list[Call]] = field(default_factory=dict)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "render"))
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = Prompts(
            self.codec, MatchPolicy(lossy_echo=self.config.lossy_echo), self.metrics, self.pool
        )
        self.resumed.set()
        self.idle.set()

    # -- begin, join, replay ------------------------------------------------------------------------------------

    def begin(self, session: Session, request: TurnRequest, *, retry: bool) -> Call:
        """The call that answers this request: in flight already, committed already, or new. Raises SandgateError."""
        key = (session.session_id, request.digest)
        for call in self.calls.get(key, ()):
            if (retry or call.listeners == 0) and call.request.n == request.n:
                self.metrics.joined.inc()
                return call
        told = session.replayable(request.digest, retry=retry, n=request.n)
        if told is not None:
            self.metrics.replays.inc()
            return self._replay(session, request, told)
        session.refuse_if_ended()
        self._refuse_over_limits(session, request.n)
        admission.refuse(
            self.load,
            limit=self.config.limits.in_flight,
            session_in_flight=session.in_flight,
            session_limit=self.config.limits.in_flight_per_session,
            asked=request.n,
        )
        return self._start(key, session, request)

    def _replay(self, session: Session, request: TurnRequest, told: list[Turn]) -> Call:
        loop = asyncio.get_running_loop()
        call = Call(session, request, tuple(t.id for t in told), loop.create_future(), loop.create_future())
        call.replayed, call.fork = True, told[0].fork
        call.prepared.set_result(None)
        call.done.set_result(told)
        return call

    def _start(self, key: tuple[str, bytes], session: Session, request: TurnRequest) -> Call:
        loop = asyncio.get_running_loop()
        turns = tuple(self.new_id() for _ in range(request.n))
        call = Call(session, request, turns, loop.create_future(), loop.create_future())
        self.calls.setdefault(key, []).append(call)
        self.load.in_flight += request.n
        session.in_flight += request.n
        self.idle.clear()
        call.task = loop.create_task(self._run(key, call), name=f"turn {turns[0]}")
        return call

    def attach(self, call: Call) -> None:
        """A connection waits for this call."""
        call.listeners += 1
        if call.linger is not None:
            call.linger.cancel()
            call.linger = None

    def detach(self, call: Call) -> None:
        """The connection got its answer, or is gone. A call that nobody waits for lingers for the client's retry,
        then is aborted in the engine."""
        call.listeners -= 1
        if call.listeners == 0 and call.task is not None and not call.done.done():
            loop = asyncio.get_running_loop()
            call.linger = loop.call_later(self.config.limits.linger_s, call.task.cancel)

    async def delivered(self, call: Call) -> None:
        """The answer was written in full. Noted without an fsync: if the note is lost, a retry gets the same answer."""
        fresh = [turn for turn in call.turns if turn not in call.session.delivered]
        if fresh and not call.session.ended:
            now = self.sessions.now()
            await self.sessions.note(call.session, *(Delivered(at=now, turn=turn) for turn in fresh))

    async def cancel(self, session: Session) -> None:
        """Abort everything this session has in flight; returns when the engine calls are gone."""
        tasks = [
            call.task
            for (session_id, _), calls in self.calls.items()
            if session_id == session.session_id
            for call in calls
            if call.task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the turn -----------------------------------------------------------------------------------------------

    async def _run(self, key: tuple[str, bytes], call: Call) -> None:
        try:
            records = await self._make(call)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                error = Gone("the call was cancelled")
            elif not isinstance(error, SandgateError):
                log.exception("turn %s failed", call.turns[0])
                error = SandgateError("internal error; the gateway's log has the details")
            for future in (call.prepared, call.done):
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # retrieved here: a call nobody waits for any more is no warning
        else:
            call.done.set_result(records)
        finally:
            self._release(key, call)

    def _release(self, key: tuple[str, bytes], call: Call) -> None:
        n = call.request.n
        self.load.in_flight -= n
        call.session.in_flight -= n
        if self.load.in_flight == 0:
            self.idle.set()
        self.calls[key].remove(call)
        if not self.calls[key]:
            del self.calls[key]
        if call.linger is not None:
            call.linger.cancel()
        call.wake()

    async def _make(self, call: Call) -> list[Turn]:
        session, request = call.session, call.request
        job = sampling.job_sampling(self.config_sampling, session.spec.get("sampling"))
        want = sampling.effective(request.sampling, job)
        constraint = constraint_of(self.codec, request)
        prepared = await self.prompts.prepare(session.tree, request)
        max_tokens = sampling.clamp(want.max_tokens, prompt=len(prepared.ids), window=self.window)
        call.fork = prepared.fork
        if not call.prepared.done():
            call.prepared.set_result(None)
        call.wake()
        await self._hold()
        resampled = session.was_cut(request.digest)
        intents = [Intent(at=self.sessions.now(), turn=turn, digest=request.digest) for turn in call.turns]
        await self.sessions.store.append(session.session_id, *intents, sync=False)
        making = [
            self._generate(call, index, prepared, want, max_tokens, constraint) for index in range(request.n)
        ]
        made = [await making[0]] if request.n == 1 else await _all(making)
        return await self._commit(call, prepared, want, max_tokens, made, resampled=resampled)

    async def _generate(
        self,
        call: Call,
        index: int,
        prepared: Prepared,
        want: Sampling,
        max_tokens: int,
        constraint: dict[str, Any] | None,
    ) -> tuple[Sample, Parser]:
        request, session = call.request, call.session
        parser = self.codec.parser(prepared.ids, request.tools, want.stop)
        streaming = request.stream

        def on_delta(delta: Delta) -> None:
            tokens = Tokens(delta.ids, delta.logprobs) if request.logprobs else None
            call.say(index, parser.feed(delta.ids), tokens)

        prompt = Prompt(
            request_id=f"{call.turns[index]}-{self.new_id()[:8]}",
            ids=prepared.ids,
            sampling=want,
            max_tokens=max_tokens,
            stop_ids=self.codec.stop_ids,
            constraint=constraint,
            top_logprobs=request.top_logprobs,
            affinity=str(session.spec.get("uid") or session.session_id),
            model=self.config.engine.model or self.config.model.name,
            version=self.sessions.version,
        )
        try:
            with self.metrics.engine_s.time():
                sample = await self.engine.generate(prompt, on_delta if streaming else None)
        except SandgateError:
            session.engine_errors += 1
            raise
        if not streaming:
            if len(sample.ids) > OFF_LOOP_IDS:
                await off_loop(self.pool, parser.feed, sample.ids)
            else:
                parser.feed(sample.ids)
        return sample, parser

    async def _commit(
        self,
        call: Call,
        prepared: Prepared,
        want: Sampling,
        max_tokens: int,
        made: list[tuple[Sample, Parser]],
        *,
        resampled: bool,
    ) -> list[Turn]:
        session, request, match = call.session, call.request, prepared.match
        session.refuse_if_ended()
        records = []
        for index, (sample, parser) in enumerate(made):
            stopped_on = sample.stop_reason if isinstance(sample.stop_reason, str) else None
            deltas, reply = parser.finish(stopped_on=stopped_on)
            if request.stream:
                call.say(index, deltas)
            records.append(
                TurnCommitted(
                    at=self.sessions.now(),
                    turn=call.turns[index],
                    parent=prepared.parent,
                    fork=prepared.fork if index == 0 else ForkReason.RETRY_RESAMPLED.value,
                    digest=request.digest,
                    index=index,
                    context=prepared.ids[prepared.known :].tobytes(),
                    ids=sample.ids.tobytes(),
                    logprobs=sample.logprobs.tobytes(),
                    versions=tuple((span.version, span.start, span.end) for span in sample.versions),
                    finish=sample.finish,
                    stop_reason=sample.stop_reason,
                    reply=reply,
                    prompt_key=match.prompt_key,
                    head_key=match.head_key,
                    blocks=match.blocks,
                    sampling=sampling.recorded(want, max_tokens),
                    engine=sample.engine,
                    prompt_tokens=len(prepared.ids),
                    cached_tokens=sample.cached_tokens,
                    resampled=resampled,
                    resumed=sample.resumed,
                    notes=match.notes,
                    top=sample.top,
                )
            )
        with self.metrics.commit_s.time():
            await self.sessions.record(session, *records)
        self._count(records, len(prepared.ids) - prepared.known)
        return [session.tree[record.turn] for record in records]

    def _count(self, records: list[TurnCommitted], context: int) -> None:
        for record in records:
            self.metrics.turns.inc()
            self.metrics.tokens.inc(len(record.ids) // 4)
            self.metrics.context.inc(context)
            if record.fork:
                self.metrics.forks[record.fork].inc()
            if record.resampled:
                self.metrics.resampled.inc()

    # -- pause, limits ------------------------------------------------------------------------------------------

    @property
    def config_sampling(self) -> Mapping[str, Any]:
        """The job's own sampling block."""
        config = self.config.sampling
        return {
            name: value for name in config.__struct_fields__ if (value := getattr(config, name)) is not None
        }

    def _refuse_over_limits(self, session: Session, n: int) -> None:
        limits = {"turns": self.config.session_limits.turns, **(session.spec.get("limits") or {})}
        total = limits.get("total_tokens", limits.get("totalTokens", self.config.session_limits.total_tokens))
        try:
            session.refuse_over_limits(
                turns=int(limits.get("turns") or 0), total_tokens=int(total or 0), asked=n
            )
        except LimitReached:
            self.sessions.tell(session)
            raise

    async def _hold(self) -> None:
        """Wait out a weight update; raises Paused when it takes too long."""
        if self.resumed.is_set():
            return
        try:
            async with asyncio.timeout(self.config.limits.pause_hold_s):
                await self.resumed.wait()
        except TimeoutError:
            raise Paused("a weight update holds new turns", retry_after=5.0) from None

    def pause(self) -> None:
        """Hold turns that have not reached the engine."""
        self.load.paused = True
        self.resumed.clear()

    def resume(self) -> None:
        """Let them go on."""
        self.load.paused = False
        self.resumed.set()

    async def drain(self, seconds: float) -> bool:
        """Take no new turns; True if the running ones finished in time."""
        self.load.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self.idle.wait()
        except TimeoutError:
            return False
        return True


async def _all(making: list[Coroutine[Any, Any, tuple[Sample, Parser]]]) -> list[tuple[Sample, Parser]]:
    """All or the first error, unwrapped; the others are then cancelled."""
    tasks = [asyncio.ensure_future(one) for one in making]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
