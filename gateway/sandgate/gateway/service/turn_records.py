"""Journal records of the turns of a call: of whole samples, and of cut ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.conversation.turn_roles import AssignedRole
from sandgate.gateway.engine.api import GenerationResult
from sandgate.gateway.journal.records import TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.top_logprobs import joined
from sandgate.gateway.service import sampling
from sandgate.gateway.service.call import ModelCall
from sandgate.gateway.service.prompts import Prepared
from sandgate.gateway.tokens.api import ParseDelta, Parser


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The generation that the engine is asked for."""

    prepared: Prepared
    want: SamplingParams
    max_tokens: int
    resampled: bool
    """An earlier generation for the same request was begun and has no answer."""
    task: str
    """`Session.drawn_for`."""
    sample: int
    """The session's sample index."""
    turn: int
    """How many turns the session had begun before."""
    constraint: dict[str, Any] | None = None
    """What the engine holds the turn to."""

    def sampling(self, choice: int) -> SamplingParams:
        """The parameters of one choice, with a seed of its own."""
        seed = sampling.choice_seed(
            self.want.seed, task=self.task, sample=self.sample, turn=self.turn, choice=choice
        )
        if seed is None:
            return self.want
        own: SamplingParams = msgspec.structs.replace(self.want, seed=seed)
        return own

    def recorded(self, choice: int, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of one choice as its turn's record has them."""
        return sampling.recorded(self.sampling(choice), self.max_tokens, template_kwargs, self.constraint)


class MadeBy(NamedTuple):
    """What a turn of this gateway is made by, as far as its sample does not say."""

    build: str
    """Name and version of the engine."""
    logprobs_mode: str
    renderer: str


def finished(parser: Parser, reason: str | int | None, finish: str) -> tuple[list[ParseDelta], Reply]:
    """What `Parser.finish` gives of a sample that ended so."""
    return parser.finish(stopped_on=reason if isinstance(reason, str) else None, whole=finish == "stop")


def records_of(
    call: ModelCall,
    asked: GenerationRequest,
    made: Iterable[tuple[int, GenerationResult, Parser]],
    by: MadeBy,
    *,
    fork: str | None,
    told: AssignedRole,
    now: float,
    finish: str = "",
) -> list[TurnCommitted]:
    """A record for each (choice index, sample, parser that read the sample). Followers of the call get what the parser
    held back. `finish`: the finish reason, instead of the samples' own."""
    request, prepared, match = call.request, asked.prepared, asked.prepared.match
    records: list[TurnCommitted] = []
    for index, sample, parser in made:
        deltas, reply = finished(parser, sample.stop_reason, finish or sample.finish)
        if request.stream:
            call.say(index, deltas)
        records.append(
            TurnCommitted(
                at=now,
                turn=call.turns[index],
                parent=prepared.parent,
                fork=ForkReason.RETRY_RESAMPLED.value if records else fork,
                digest=request.digest,
                index=index,
                context=prepared.ids[prepared.known :].tobytes(),
                ids=sample.ids.tobytes(),
                logprobs=sample.logprobs.tobytes(),
                versions=tuple((span.version, span.start, span.end) for span in sample.versions),
                finish=finish or sample.finish,
                stop_reason=sample.stop_reason,
                reply=reply,
                prompt_key=match.prompt_key,
                head_key=match.head_key,
                blocks=match.blocks,
                sampling=asked.recorded(index, request.template_kwargs),
                engine=sample.engine,
                build=sample.build or by.build,
                logprobs_mode=by.logprobs_mode,
                renderer=by.renderer,
                prompt_tokens=len(prepared.ids),
                cached_tokens=sample.cached_tokens,
                resampled=asked.resampled,
                resumed=sample.resumed,
                notes=match.notes,
                top=joined(sample.top),
                pieces=array("i", call.pieces[index]).tobytes(),
                spelt=0 if records else prepared.spelt,
                created=int(call.begun),
                role=told.role.value,
                role_why=told.why,
                thread=request.caller.thread,
                parent_thread=request.caller.parent,
                media=prepared.own_media,
                schema=8 if prepared.own_media else 6 if finish else 1,
            )
        )
    return records
