"""Completions, the pipeline of a model call: retries, admission, prompt, hold, engine, parser, journal, answer."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sandgate.contract.errors import (
    Draining,
    Gone,
    JournalUnavailable,
    Paused,
    PromptTooLong,
    SandgateError,
)
from sandgate.contract.trajectory import Ids
from sandgate.gateway.config import Config
from sandgate.gateway.conversation.matching import MatchPolicy
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn, unpack_ids
from sandgate.gateway.conversation.turn_roles import role_of
from sandgate.gateway.engine.api import Delta, Engine, GenerationResult, Prompt
from sandgate.gateway.engine.health import none_up
from sandgate.gateway.journal.records import (
    CUT,
    Delivered,
    Intent,
    LetGo,
    PicturesKept,
    Record,
    TurnCommitted,
)
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.protocols.base import TokenLogprobs
from sandgate.gateway.protocols.responses_out import turn_named
from sandgate.gateway.service import admission, sampling
from sandgate.gateway.service.call import ModelCall, Step
from sandgate.gateway.service.fair_pool import FairPool, lane
from sandgate.gateway.service.fair_queue import TOO_LONG
from sandgate.gateway.service.partial import PartialChoice
from sandgate.gateway.service.prompts import Prepared, Prompts, off_loop, refuse_tools
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.turn_records import GenerationRequest, MadeBy, records_of, stop_string
from sandgate.gateway.tokens.api import Codec, Parser

OFF_LOOP_IDS = 4_096
"""Samples of more tokens are parsed in a thread."""
INTERNAL = "internal error; the gateway's log has the details"
"""All that a client is told of a bug."""
CANCELLED = "the call was cancelled"
GIVEN_PROMPT_TOKENS = 16
"""Tokens that are sampled behind a prompt that the client made itself, if nobody says how many: as OpenAI and vLLM."""
WINDOW_FALLBACK = 4_096
"""Tokens of prompt + answer, where neither the job nor the engine says how many."""

log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True)
class Completions:
    """Makes turns of requests. Its only state of its own are the calls in flight."""

    config: Config
    sessions: Sessions
    engine: Engine
    codec: Codec
    metrics: GatewayMetrics
    new_id: Callable[[], str]
    told_window: int
    """Tokens of prompt + answer, as the job says; 0 = what the engine says."""
    load: admission.Load = field(default_factory=admission.Load)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    calls: dict[tuple[str, bytes], list[ModelCall]] = field(default_factory=dict)
    pool: FairPool = field(default_factory=FairPool)
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = Prompts(
            self.codec, MatchPolicy(lossy_echo=self.config.lossy_echo), self.metrics, self.pool
        )
        self.resumed.set()
        self.idle.set()

    # -- begin, join, replay ------------------------------------------------------------------------------------

    def begin(self, session: Session, request: TurnRequest, *, retry: bool) -> ModelCall:
        """The call that answers this request: in flight already, committed already, or new. Raises SandgateError."""
        session.asked(self.sessions.now())
        request = self._known(request)
        calls = [call for call in self.calls.get((session.session_id, request.digest), ()) if not call.doomed]
        for call in calls:
            if call.listeners == 0:
                return self._join(call)
        answer = session.replayable(request.digest, retry=False, n=request.n)
        if answer is not None and all(answer[0].id not in call.turns for call in calls):
            return self._replay(session, request, answer)
        if retry and calls:  # its own connection may be dead without our knowing yet
            return self._join(calls[0])
        if retry and (answer := session.replayable(request.digest, retry=True, n=request.n)) is not None:
            return self._replay(session, request, answer)
        try:
            return self._fresh(session, request)
        except SandgateError:
            session.not_answered(request.digest)
            raise

    def _fresh(self, session: Session, request: TurnRequest) -> ModelCall:
        session.refuse_if_ended()
        journal = self.sessions.store.status()
        if not journal.healthy:  # known before the engine is troubled, and before a stream's headers are out
            raise JournalUnavailable(journal.detail)
        engines = self.engine.status()
        if not any(engine.healthy for engine in engines):
            down = none_up(engines)
            session.call_failed(down, shaped=False)
            raise down
        self.sessions.refuse_over_limits(session, self.config.session_limits, request.n)
        self._refuse_overload(session, request.n)
        return self._start(session, request)

    def _refuse_overload(self, session: Session, asked: int) -> None:
        admission.refuse(
            self.load,
            limit=self.config.limits.in_flight,
            session_in_flight=session.in_flight + session.counting,
            session_limit=self.config.limits.in_flight_per_session,
            asked=asked,
        )

    def _leave(self, n: int) -> None:
        self.load.in_flight -= n
        if self.load.in_flight == 0:
            self.idle.set()

    def _join(self, call: ModelCall) -> ModelCall:
        self.metrics.joined.inc()
        return call

    def _replay(self, session: Session, request: TurnRequest, answer: list[Turn]) -> ModelCall:
        self.metrics.replays.inc()
        call = self._call(session, request, tuple(turn.id for turn in answer), float(answer[0].created))
        call.fork = answer[0].fork
        call.prompt_tokens = answer[0].prompt_tokens
        call.prepared.set_result(None)
        if request.top_logprobs:
            return self._begun(call, lambda call: self._reread(call, answer))
        call.done.set_result(answer)
        return call

    async def _reread(self, call: ModelCall, answer: list[Turn]) -> list[Turn]:
        session_id = call.session.session_id
        return await off_loop(lane(self.pool, session_id), self.sessions.whole, session_id, answer)

    def _start(self, session: Session, request: TurnRequest) -> ModelCall:
        turns = tuple(self.new_id() for _ in range(request.n))
        return self._begun(self._call(session, request, turns, self.sessions.now()), self._make)

    def _begun(
        self, call: ModelCall, make: Callable[[ModelCall], Coroutine[Any, Any, list[Turn]]]
    ) -> ModelCall:
        self.load.in_flight += call.request.n
        call.session.in_flight += call.request.n
        self.idle.clear()
        work = self._run(call, make)
        call.task = asyncio.get_running_loop().create_task(work, name=f"turn {call.turns[0]}")
        call.task.add_done_callback(lambda _: self._ended(call))
        return call

    def _call(
        self, session: Session, request: TurnRequest, turns: tuple[str, ...], begun: float
    ) -> ModelCall:
        loop = asyncio.get_running_loop()
        call = ModelCall(session, request, turns, begun, loop.create_future(), loop.create_future())
        self.calls.setdefault((session.session_id, request.digest), []).append(call)
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
            call.linger = loop.call_later(self.config.limits.linger_s, call.cancel)

    async def let_go(self, call: ModelCall) -> None:
        """A client let go of a stream of which it had been sent some. What is not whole yet becomes a cut turn, or is
        whole before the call stops lingering; then `_commit` notes it."""
        if call.done.done() and call.done.exception() is None:
            await self.delivered(call, partly=True)

    async def delivered(self, call: ModelCall, *, partly: bool = False) -> None:
        """The answer was sent in full, or `partly`. The record of it waits for no fsync: if it is lost, a retry gets
        the same answer."""
        session = call.session
        fresh = [turn for turn in call.turns if turn not in session.delivered]
        if fresh and not session.ended and not session.closing:
            now = self.sessions.now()
            try:
                await self.sessions.note(
                    session, *(Delivered(at=now, turn=turn, partly=partly) for turn in fresh)
                )
            except JournalUnavailable:
                session.unsure.update(fresh)  # a retry gets the same answer, as it may; the seal will note it

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

    async def count(self, session: Session, request: TurnRequest) -> int:
        """How many tokens the prompt of this request has. Nothing of it is kept. It is in flight like a turn, and its
        work is waste: nothing goes to the engine that would justify it. Raises SandgateError."""
        session.asked(self.sessions.now())
        session.refuse_if_ended()
        self._refuse_overload(session, 1)
        self.load.in_flight += 1
        session.counting += 1
        self.idle.clear()
        try:
            self.pool.spend(
                session.session_id
            )  # short prompts are rendered here and now, where nobody charges
            request = self._known(request)
            refuse_tools(self.codec, request)
            prepared = await self.prompts.prepare(session.tree, request, self.window, session.session_id)
            return len(prepared.ids)
        finally:
            session.counting -= 1
            self._leave(1)

    def _known(self, request: TurnRequest) -> TurnRequest:
        """The request without variables that the template does not read. Raises Unsupported."""
        if not request.template_kwargs:
            return request
        taken = self.codec.takes(request.template_kwargs)
        known: TurnRequest = msgspec.structs.replace(request, template_kwargs=taken)
        return known

    # -- the turn -----------------------------------------------------------------------------------------------

    async def _run(
        self, call: ModelCall, make: Callable[[ModelCall], Coroutine[Any, Any, list[Turn]]]
    ) -> None:
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
        self._leave(call.request.n)
        if call.linger is not None:
            call.linger.cancel()
        if call.listeners == 0:
            self._forget(call)
        call.wake()

    async def _make(self, call: ModelCall) -> list[Turn]:
        session, request = call.session, call.request
        job = sampling.job_sampling(self.config_sampling, session.spec.get("sampling"))
        want = sampling.effective(request.sampling, job)
        refuse_tools(self.codec, request)
        try:
            prepared = await self.prompts.prepare(session.tree, request, self.window, session.session_id)
            most = want.max_tokens
            if most is None and request.prompt is not None:
                most = GIVEN_PROMPT_TOKENS
            max_tokens = sampling.clamp(most, prompt=len(prepared.ids), window=self.window)
            constraint = self.codec.constraint(prepared.ids, request)
        except PromptTooLong as error:
            self.pool.earn(session.session_id, min(error.tokens, error.limit) // TOO_LONG)
            session.limit_reached = session.limit_reached or "context"
            raise
        call.fork = prepared.fork
        call.prompt_tokens = len(prepared.ids)
        call.prepared.set_result(None)
        await self._hold()
        session.refuse_if_ended()
        asked = GenerationRequest(
            prepared,
            want,
            max_tokens,
            resampled=session.was_cut(request.digest),
            sample=int(session.spec.get("sample_index", 0)),
            turn=session.turns,
        )
        self.pool.earn(session.session_id, len(prepared.ids))
        intents = [Intent(at=self.sessions.now(), turn=turn, digest=request.digest) for turn in call.turns]
        await self.sessions.intend(session, *intents)
        making = [self._generate(call, index, asked, constraint) for index in range(request.n)]
        try:
            made = [await making[0]] if request.n == 1 else await _all(making)
            return await self._commit(call, asked, made)
        except (asyncio.CancelledError, SandgateError) as error:
            if not call.committing:
                await self._keep_cut(call, asked, error)
            raise

    async def _generate(
        self,
        call: ModelCall,
        index: int,
        asked: GenerationRequest,
        constraint: dict[str, Any] | None,
    ) -> tuple[GenerationResult, Parser]:
        request, session = call.request, call.session
        prepared = asked.prepared
        parser = self._parser(request, prepared.ids)
        streaming = request.stream
        heard = call.heard[index] = PartialChoice(parser)

        def on_delta(delta: Delta) -> None:
            heard.take(delta)
            if not request.tells_tokens:
                call.pieces[index].append(len(delta.ids))
                call.say(index, parser.feed(delta.ids))
                return
            for token in range(len(delta.ids)):  # each token with its logprob
                call.say(index, parser.feed(delta.ids[token : token + 1]), _token(delta, token))

        prompt = Prompt(
            request_id=f"{call.turns[index]}-{self.new_id()[:8]}",
            ids=prepared.ids,
            sampling=asked.sampling(index),
            max_tokens=asked.max_tokens,
            stop_ids=self.codec.stop_ids,
            constraint=constraint,
            top_logprobs=request.top_logprobs,
            affinity=str(session.spec.get("uid") or session.session_id),
            model=self.config.engine.model or self.config.model.name,
            version=self.sessions.process.version,
            media=prepared.media,
            pictures=prepared.pictures,
        )
        try:
            with self.metrics.engine_s.time():
                sample = await self.engine.generate(prompt, on_delta if streaming else None)
        except SandgateError as error:
            session.call_failed(error, shaped=constraint is not None)
            raise
        if streaming:
            heard.whole = sample
        elif len(sample.ids) > OFF_LOOP_IDS:
            mine = lane(self.pool, session.session_id)  # not charged: the engine's work came before
            await asyncio.get_running_loop().run_in_executor(mine, parser.feed, sample.ids)
        else:
            parser.feed(sample.ids)
        return sample, parser

    def _parser(self, request: TurnRequest, prompt: Ids) -> Parser:
        stop = request.sampling.stop
        if request.prompt is not None:
            return self.codec.text_parser(stop)
        return self.codec.parser(prompt, request.callable_tools, stop)

    async def _commit(
        self, call: ModelCall, asked: GenerationRequest, made: list[tuple[GenerationResult, Parser]]
    ) -> list[Turn]:
        session = call.session
        await self.sessions.keep_labels()
        session.refuse_if_ended()
        whole = [(index, *sample_and_parser) for index, sample_and_parser in enumerate(made)]
        records = self._records(call, asked, whole)
        call.fork = records[0].fork
        call.committing = True
        with self.metrics.commit_s.time():
            await self.sessions.record(
                session, *self._pictures(session, asked.prepared), *records, *self._kept(call)
            )
        self._count(records, asked.prepared)
        if call.told and not call.listeners:
            await self.delivered(call, partly=True)
        tops = [sample.top for sample, _ in made]
        turns = [session.tree[turn] for turn in call.turns]
        return [replace(turn, top=top) if top else turn for turn, top in zip(turns, tops, strict=True)]

    def _pictures(self, session: Session, prepared: Prepared) -> Sequence[Record]:
        """A record of the pictures that the session did not show before."""
        fresh = {
            picture.digest: picture for picture in prepared.pictures if picture.digest not in session.pictures
        }
        if not fresh:
            return ()
        return (PicturesKept(at=self.sessions.now(), pictures=tuple(fresh.values())),)

    def _kept(self, call: ModelCall) -> Sequence[Record]:
        """Records of what later requests may refer to."""
        form, turn = call.request.form, call.turns[0]
        if form is None or not form.store:
            return ()
        previous = turn_named(form.previous) if form.previous else None
        kept = call.session.kept
        return kept.keep(
            form,
            turn=turn,
            previous=previous,
            model=call.request.model or self.config.model.name,
            at=self.sessions.now(),
        )

    async def _keep_cut(self, call: ModelCall, asked: GenerationRequest, why: BaseException) -> None:
        """Keeps what there is of a call that nobody waits for any more, or that failed in the middle. Tokens that were
        streamed may have been seen: they go into the tree as a cut turn. If nobody can have seen any, a call that was
        let go of is counted as a turn, and a failed one is not."""
        session = call.session
        streamed = [
            (index, heard.sample(), heard.parser) for index, heard in sorted(call.heard.items()) if heard.ids
        ]
        call.committing = True
        try:
            if streamed:
                records = self._records(call, asked, streamed, finish=CUT)
                await self.sessions.keep_labels()
                await self.sessions.record(session, *self._pictures(session, asked.prepared), *records)
                self._count(records, asked.prepared)
            elif isinstance(why, asyncio.CancelledError):
                gone = [LetGo(at=self.sessions.now(), turn=turn) for turn in call.turns]
                await self.sessions.note(session, *gone)
        except SandgateError as error:
            log.warning("turn %s was cut, and what there was of it is lost: %s", call.turns[0], error)

    def _records(
        self,
        call: ModelCall,
        asked: GenerationRequest,
        made: Iterable[tuple[int, GenerationResult, Parser]],
        finish: str = "",
    ) -> list[TurnCommitted]:
        tree, prepared = call.session.tree, asked.prepared
        fork = self._fork_now(call, prepared)
        parent = tree[prepared.parent] if prepared.parent else None
        head_key, rules = prepared.match.head_key, self.config.roles
        told = role_of(call.request, head_key, fork, parent, tree.by_id, rules)
        now = self.sessions.now()
        return records_of(call, asked, made, self._made_by, fork=fork, told=told, now=now, finish=finish)

    @property
    def _made_by(self) -> MadeBy:
        facts = getattr(self.engine, "facts", None)
        build = facts.build if facts is not None else self.config.engine.kind.value
        return MadeBy(build, self.config.engine.logprobs_mode, self.codec.name)

    def _fork_now(self, call: ModelCall, prepared: Prepared) -> str | None:
        """The fork reason at commit: other turns may have been committed since the prompt was made, a sibling or a
        second branch."""
        tree = call.session.tree
        if prepared.fork is not None or len(tree) == prepared.tree_size:
            return prepared.fork
        again = self.prompts.place_again(tree, call.request, prepared)
        return again.fork.value if again.fork and again.parent == prepared.parent else None

    async def retell(self, call: ModelCall) -> list[Step]:
        """The steps in which a durable answer was, or would have been, streamed."""
        turns, request = call.done.result(), call.request
        prompts = [call.session.tree.prompt_ids(turn) for turn in turns]

        def work() -> list[Step]:
            steps: list[Step] = []
            ends: list[Step] = []
            for index, (turn, prompt) in enumerate(zip(turns, prompts, strict=True)):
                parser = self._parser(request, prompt)
                start = 0
                for end in _piece_ends(turn, request):  # as it was streamed: the same answer, byte for byte
                    logprobs = _token(turn, start) if request.tells_tokens else None
                    steps.append((index, parser.feed(turn.ids[start:end]), logprobs))
                    start = end
                ends.append((index, parser.finish(stopped_on=stop_string(turn.stop_reason))[0], None))
            return steps + ends

        long = sum(len(turn.ids) for turn in turns) > OFF_LOOP_IDS
        return await off_loop(lane(self.pool, call.session.session_id), work) if long else work()

    def _count(self, records: list[TurnCommitted], prepared: Prepared) -> None:
        context = len(prepared.ids) - prepared.known
        for record in records:
            self.metrics.turns.inc()
            self.metrics.tokens.inc(len(record.ids) // 4)
            self.metrics.context.inc(context)
            self.metrics.spelt.inc(record.spelt)
            if record.fork:
                self.metrics.forks[record.fork].inc()
            self.metrics.resampled.inc(record.resampled)
            self.metrics.cut.inc(record.finish == CUT)

    @property
    def window(self) -> int:
        """Tokens of prompt + answer that the model takes: the smaller of the job's and the engine's limit."""
        facts = getattr(self.engine, "facts", None)
        engine_len = facts.max_model_len if facts is not None else 0
        if self.told_window and engine_len:
            return min(self.told_window, engine_len)
        return self.told_window or engine_len or WINDOW_FALLBACK

    # -- pause, limits ------------------------------------------------------------------------------------------

    @property
    def config_sampling(self) -> Mapping[str, Any]:
        """The job's own sampling block."""
        config = self.config.sampling
        return {
            name: value for name in config.__struct_fields__ if (value := getattr(config, name)) is not None
        }

    async def _hold(self) -> None:
        """Waits until a weight update is over. Raises Paused when it takes longer than `pause_hold_s`, Draining when
        this process ends before."""
        if self.resumed.is_set():
            return
        try:
            async with asyncio.timeout(self.config.limits.pause_hold_s):
                await self.resumed.wait()
        except TimeoutError:
            raise Paused("a weight update holds new turns", retry_after=5.0) from None
        if self.load.paused:
            self.refuse_if_draining()

    def refuse_if_draining(self) -> None:
        """Raises Draining while this process ends."""
        if self.load.draining:
            raise Draining("the gateway is shutting down", retry_after=2.0)

    def pause(self) -> None:
        """Holds turns that have not reached the engine."""
        self.load.paused = True
        if not self.load.draining:
            self.resumed.clear()

    def resume(self) -> None:
        """Lets held turns go on."""
        self.load.paused = False
        self.resumed.set()

    async def drain(self, seconds: float) -> bool:
        """Takes no new turns. Returns whether the running ones finished in time. Turns that a weight update holds are
        refused, because the engine was not asked yet."""
        self.load.draining = True
        self.pool.let_in()
        self.resumed.set()
        self.sessions.wake()  # long polls end, so that connections can
        try:
            async with asyncio.timeout(seconds):
                await self.idle.wait()
        except TimeoutError:
            return False
        return True


async def _all(
    making: list[Coroutine[Any, Any, tuple[GenerationResult, Parser]]],
) -> list[tuple[GenerationResult, Parser]]:
    """All results, or the first error, unwrapped; the others are then cancelled, and gone when this returns."""
    tasks = [asyncio.ensure_future(sampling) for sampling in making]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _token(sampled: Delta | Turn, index: int) -> TokenLogprobs:
    """One token with its logprob and, if the engine gave them, its alternatives."""
    return TokenLogprobs(
        sampled.ids[index : index + 1], sampled.logprobs[index : index + 1], sampled.top[index : index + 1]
    )


def _piece_ends(turn: Turn, request: TurnRequest) -> Iterable[int]:
    """The ends of the pieces in which a turn is streamed: each token with logprobs, else as the engine gave them."""
    if request.tells_tokens or not turn.pieces:
        return range(1, len(turn.ids) + 1)
    ends: Iterable[int] = itertools.accumulate(unpack_ids(turn.pieces))
    return ends
