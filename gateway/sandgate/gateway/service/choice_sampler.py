"""Generation of a call's choices: the engine is asked, its tokens are parsed as they come, followers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sandgate.contract.errors import Draining, SandgateError
from sandgate.contract.trajectory import Ids
from sandgate.gateway.config import Config
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.engine.api import Delta, Engine, GenerationResult, Prompt
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.protocols.base import TokenLogprobs
from sandgate.gateway.service.call import ModelCall
from sandgate.gateway.service.fair_pool import FairPool, lane
from sandgate.gateway.service.late_stops import ended_at_stop, may_have_missed
from sandgate.gateway.service.partial import PartialChoice
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.turn_records import GenerationRequest
from sandgate.gateway.tokens.api import Codec, Parser

OFF_LOOP_IDS = 4_096
"""Samples of more tokens are parsed in a thread."""

T = TypeVar("T")
Choice = tuple[GenerationResult, Parser]
"""What the engine sampled, and the parser that has read it."""


@dataclass(frozen=True, slots=True)
class ChoiceSampler:
    """Asks the engine for choices."""

    config: Config
    sessions: Sessions
    engine: Engine
    codec: Codec
    metrics: GatewayMetrics
    pool: FairPool
    new_id: Callable[[], str]

    async def sample(self, call: ModelCall, asked: GenerationRequest) -> list[Choice]:
        """All choices of a call, or the first error; then the others are cancelled."""
        making = [self._generate(call, index, asked) for index in range(call.request.n)]
        return [await making[0]] if call.request.n == 1 else await _all(making)

    async def _generate(self, call: ModelCall, index: int, asked: GenerationRequest) -> Choice:
        request, session = call.request, call.session
        prepared = asked.prepared
        parser = parser_of(self.codec, request, prepared.ids)
        streaming, tells_tokens = request.stream, request.tells_tokens
        pieces = call.pieces[index]
        heard = call.heard[index] = PartialChoice(parser)

        def on_delta(delta: Delta) -> None:
            heard.take(delta)
            if not tells_tokens:
                pieces.append(len(delta.ids))
                call.say(index, parser.feed(delta.ids))
                return
            for token in range(len(delta.ids)):  # each token with its logprob
                call.say(index, parser.feed(delta.ids[token : token + 1]), token_logprobs(delta, token))

        stop_tokens = special_stops(request.sampling.stop, self.codec)
        prompt = Prompt(
            request_id=f"{call.turns[index]}-{self.new_id()[:8]}",
            ids=prepared.ids,
            sampling=asked.sampling(index),
            max_tokens=asked.max_tokens,
            stop_ids=tuple(dict.fromkeys((*self.codec.stop_ids, *stop_tokens))),
            constraint=asked.constraint,
            top_logprobs=request.top_logprobs,
            affinity=str(session.spec.get("uid") or session.session_id),
            session=session.session_id,
            model=self.config.engine.model or self.config.model.name,
            version=self.sessions.process.version,
            media=prepared.media,
            pictures=prepared.pictures,
            told=prepared.told,
        )
        try:
            with self.metrics.engine_s.time():
                sample = await self.engine.generate(prompt, on_delta if streaming else None)
        except Draining:
            raise  # of this process, and no failure of an engine
        except SandgateError as error:
            session.call_failed(error, shaped=asked.constraint is not None)
            raise
        if sample.stop_reason in stop_tokens:
            sample = replace(sample, stop_reason=stop_tokens[sample.stop_reason])
        told = streaming and tells_tokens  # told tokens stay
        if may_have_missed(sample, request.sampling.stop) and not told:
            whole, stops = sample, request.sampling.stop
            sample = await self._sized(call, whole, lambda: ended_at_stop(whole, stops, self.codec.plain))
            if streaming and sample is not whole:  # the parser has read too far, and held it back
                heard.parser = parser = parser_of(self.codec, request, prepared.ids)
                parser.feed(sample.ids)
        if streaming:
            heard.whole = sample
        else:
            await self._sized(call, sample, lambda: parser.feed(sample.ids))
        return sample, parser

    async def _sized(self, call: ModelCall, sample: GenerationResult, work: Callable[[], T]) -> T:
        """Does work over a sample; over a long one in a thread."""
        if len(sample.ids) <= OFF_LOOP_IDS:
            return work()
        mine = lane(self.pool, call.session.session_id)  # not charged: the engine's work came before
        return await asyncio.get_running_loop().run_in_executor(mine, work)


def parser_of(codec: Codec, request: TurnRequest, prompt: Ids) -> Parser:
    """What reads a sample behind this prompt."""
    stop = request.sampling.stop
    if request.prompt is not None:
        return codec.text_parser(stop)
    return codec.parser(prompt, request.callable_tools, stop)


def special_stops(stops: Sequence[str], codec: Codec) -> dict[int, str]:
    """Stop strings that are one special token each, by their ids: an engine does not find these in text. Not those that
    end a turn anyway."""
    ids = {codec.special_id(stop): stop for stop in stops}
    return {token: stop for token, stop in ids.items() if token is not None and token not in codec.stop_ids}


async def _all(making: list[Coroutine[Any, Any, Choice]]) -> list[Choice]:
    """All results, or the first error, unwrapped; the others are then cancelled, and gone when this returns."""
    tasks = [asyncio.ensure_future(sampling) for sampling in making]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def token_logprobs(sampled: Delta | Turn, index: int) -> TokenLogprobs:
    """One token with its logprob and, if the engine gave them, its alternatives."""
    return TokenLogprobs(
        sampled.ids[index : index + 1], sampled.logprobs[index : index + 1], sampled.top[index : index + 1]
    )
