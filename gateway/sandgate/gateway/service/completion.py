"""Completions, the pipeline of a model call: retries, admission, prompt, hold, engine, parser, journal, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sandgate.contract.errors import JournalUnavailable, PromptTooLong, SandgateError
from sandgate.gateway.config import Config
from sandgate.gateway.conversation.echo_matching import MatchPolicy
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.shown import NONE_FETCHED
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.engine.api import Engine, Holdable
from sandgate.gateway.engine.health import none_up
from sandgate.gateway.engine.nodes import EngineNodes
from sandgate.gateway.journal.records import Intent
from sandgate.gateway.media.fetch import Fetcher
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service import retelling, row_bounds, sampling
from sandgate.gateway.service.admission import Admission, Load
from sandgate.gateway.service.call import ModelCall, Step
from sandgate.gateway.service.call_registry import CallRegistry
from sandgate.gateway.service.choice_sampler import ChoiceSampler
from sandgate.gateway.service.fair_pool import FairPool, lane
from sandgate.gateway.service.fair_queue import TOO_LONG
from sandgate.gateway.service.fetched_images import FetchedImages, hosts_of
from sandgate.gateway.service.prompts import Prepared, Prompts, off_loop, refuse_tools
from sandgate.gateway.service.session import CONTEXT, Session
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.turn_committer import TurnCommitter
from sandgate.gateway.service.turn_records import GenerationRequest
from sandgate.gateway.tokens.api import Codec

GIVEN_PROMPT_TOKENS = 16
"""Tokens that are sampled behind a prompt that the client made itself, if nobody says how many: as OpenAI and vLLM."""
WINDOW_FALLBACK = 4_096
"""Tokens of prompt + answer, where neither the job nor the engine says how many."""


@dataclass(slots=True)
class Completions:
    """Makes turns of requests."""

    config: Config
    sessions: Sessions
    engine: Engine
    codec: Codec
    metrics: GatewayMetrics
    new_id: Callable[[], str]
    told_window: int
    """Tokens of prompt + answer, as the job says; 0 = what the engine says."""
    pool: FairPool = field(default_factory=FairPool)
    nodes: EngineNodes = field(init=False)
    admission: Admission = field(init=False)
    registry: CallRegistry = field(init=False)
    prompts: Prompts = field(init=False)
    sampler: ChoiceSampler = field(init=False)
    committer: TurnCommitter = field(init=False)
    fetcher: Fetcher = field(init=False)
    fetched: FetchedImages | None = field(init=False, default=None)
    """The images of addresses; None for a model that takes no images."""

    def __post_init__(self) -> None:
        config, sessions, engine, codec = self.config, self.sessions, self.engine, self.codec
        allowed = hosts_of(config)
        self.fetcher = Fetcher(allowed)
        if codec.vision is not None:
            rule, limits = codec.vision.rule, config.session_limits
            self.fetched = FetchedImages(sessions, allowed, self.fetcher, self.pool, rule, limits)
        policy = MatchPolicy(lossy_echo=config.lossy_echo)
        self.prompts = Prompts(codec, policy, self.metrics, self.pool)
        self.admission = Admission(config.limits)
        if isinstance(engine, Holdable):
            engine.hold = self.admission.hold_begun
        self.registry = CallRegistry(self.admission, config.limits.linger_s)
        self.sampler = ChoiceSampler(config, sessions, engine, codec, self.metrics, self.pool, self.new_id)
        self.nodes = EngineNodes(config.node)
        self.committer = TurnCommitter(
            config, sessions, engine, codec, self.metrics, self.prompts, self.nodes
        )

    @property
    def load(self) -> Load:
        """What is in flight, and whether turns are held or refused."""
        return self.admission.load

    async def aclose(self) -> None:
        """Ends what is fetched, and the threads."""
        await self.fetcher.aclose()
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, session: Session, request: TurnRequest, window: int) -> Prepared:
        fetched = await self.fetched.of(session, request.messages) if self.fetched else NONE_FETCHED
        return await self.prompts.prepare(session.tree, request, window, session.session_id, fetched)

    # -- begin, join, replay ------------------------------------------------------------------------------------

    def begin(self, session: Session, request: TurnRequest, *, retry: bool) -> ModelCall:
        """The call that answers this request: in flight already, committed already, or new. Raises SandgateError."""
        session.asked(self.sessions.now())
        request = self._known(request)
        calls = self.registry.joinable(session, request)
        for call in calls:
            if call.listeners == 0:
                return self._join(call)
        told = {turn for call in calls for turn in call.turns}
        answer = session.replayable(request.digest, retry=False, n=request.n, told=told)
        if answer is not None:
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
        self.sessions.refuse_over_share(
            session
        )  # first: who filled the journal is not to be told that it is full
        journal = self.sessions.store.status()
        if not journal.healthy:  # known before the engine is troubled, and before a stream's headers are out
            full = JournalUnavailable(journal.detail)
            session.call_failed(full, shaped=False)
            raise full
        engines = self.engine.status()
        if not any(engine.healthy for engine in engines):
            down = none_up(engines)
            session.call_failed(down, shaped=False)
            raise down
        self.sessions.refuse_over_limits(session, self.config.session_limits, request.n)
        self.admission.refuse_overload(session, request.n)
        return self._start(session, request)

    def _join(self, call: ModelCall) -> ModelCall:
        self.metrics.joined.inc()
        return call

    def _replay(self, session: Session, request: TurnRequest, answer: list[Turn]) -> ModelCall:
        self.metrics.replays.inc()
        call = self.registry.add(
            session, request, tuple(turn.id for turn in answer), float(answer[0].created)
        )
        call.fork = answer[0].fork
        call.prompt_tokens = answer[0].prompt_tokens
        call.prepared.set_result(None)
        if request.top_logprobs:
            return self.registry.start(call, lambda call: self._reread(call, answer))
        call.done.set_result(answer)
        return call

    async def _reread(self, call: ModelCall, answer: list[Turn]) -> list[Turn]:
        session_id = call.session.session_id
        return await off_loop(lane(self.pool, session_id), self.sessions.whole, session_id, answer)

    def _start(self, session: Session, request: TurnRequest) -> ModelCall:
        turns = tuple(self.new_id() for _ in range(request.n))
        return self.registry.start(
            self.registry.add(session, request, turns, self.sessions.now()), self._make
        )

    async def count(self, session: Session, request: TurnRequest) -> int:
        """How many tokens the prompt of this request has. Nothing of it is kept but what its addresses gave. It is in
        flight like a turn, and its work is waste: nothing goes to the engine that would justify it. Raises
        SandgateError."""
        session.asked(self.sessions.now())
        session.refuse_if_ended()
        self.admission.refuse_overload(session, 1)
        self.admission.enter(1)
        session.counting += 1
        try:
            self.pool.spend(
                session.session_id
            )  # short prompts are rendered here and now, where nobody charges
            request = self._known(request)
            refuse_tools(self.codec, request)
            prepared = await self._prepare(session, request, self.window)
            return len(prepared.ids)
        finally:
            session.counting -= 1
            self.admission.leave(1)

    def _known(self, request: TurnRequest) -> TurnRequest:
        """The request without variables that the template does not read. Raises Unsupported."""
        if not request.template_kwargs:
            return request
        taken = self.codec.takes(request.template_kwargs)
        known: TurnRequest = msgspec.structs.replace(request, template_kwargs=taken)
        return known

    # -- the turn -----------------------------------------------------------------------------------------------

    async def _make(self, call: ModelCall) -> list[Turn]:
        session, request = call.session, call.request
        job = sampling.job_sampling(self.config_sampling, session.spec.get("sampling"))
        want = sampling.effective(request.sampling, job)
        refuse_tools(self.codec, request)
        limits = row_bounds.bounds(session.spec.get("limits"), self.config.session_limits)
        try:
            window = row_bounds.most(limits, self.window)
            prepared = await self._prepare(session, request, window)
            most, size = want.max_tokens, len(prepared.ids)
            if most is None and request.prompt is not None:
                most = GIVEN_PROMPT_TOKENS
            window = row_bounds.window_of(limits, window, session.tree, prepared.parent, size)
            max_tokens = sampling.clamp(most, prompt=size, window=window)
            constraint = self.codec.constraint(prepared.ids, request)
        except PromptTooLong as error:
            self.pool.earn(session.session_id, min(error.tokens, error.limit) // TOO_LONG)
            session.limit_reached = session.limit_reached or CONTEXT
            raise
        call.fork = prepared.fork
        call.prompt_tokens = len(prepared.ids)
        call.prepared.set_result(None)
        await self.admission.hold()
        session.refuse_if_ended()
        asked = GenerationRequest(
            prepared,
            want,
            max_tokens,
            resampled=session.was_cut(request.digest),
            task=session.drawn_for,
            sample=int(session.spec.get("sample_index", 0)),
            turn=session.begin(request.n),
            constraint=constraint,
        )
        self.pool.earn(session.session_id, len(prepared.ids))
        intents = [Intent(at=self.sessions.now(), turn=turn, digest=request.digest) for turn in call.turns]
        try:
            await self.sessions.intend(session, *intents)
        except JournalUnavailable as error:
            session.call_failed(error, shaped=False)
            raise
        try:
            made = await self.sampler.sample(call, asked)
            return await self.committer.commit(call, asked, made)
        except (asyncio.CancelledError, SandgateError) as error:
            if isinstance(error, JournalUnavailable):
                session.call_failed(error, shaped=False)
            if not call.committing:
                await self.committer.keep_cut(call, asked, error)
            raise

    @property
    def window(self) -> int:
        """Tokens of prompt + answer that the model takes: the smaller of the job's and the engine's limit."""
        facts = getattr(self.engine, "facts", None)
        engine_len = facts.window if facts is not None else 0
        if self.told_window and engine_len:
            return min(self.told_window, engine_len)
        return self.told_window or engine_len or WINDOW_FALLBACK

    @property
    def config_sampling(self) -> Mapping[str, Any]:
        """The job's own sampling block."""
        config = self.config.sampling
        return {
            name: value for name in config.__struct_fields__ if (value := getattr(config, name)) is not None
        }

    async def retell(self, call: ModelCall) -> list[Step]:
        """The steps in which a durable answer was, or would have been, streamed."""
        return await retelling.retell(self.codec, self.pool, call)

    async def drain(self, seconds: float) -> bool:
        """Takes no new turns. Returns whether the running ones finished in time."""
        self.admission.drain()
        self.pool.let_in()
        self.sessions.wake()  # long polls end, so that connections can
        return await self.admission.drained(seconds)
