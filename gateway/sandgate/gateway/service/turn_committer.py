"""TurnCommitter: makes the turns of a call durable: journal records, cut turns, what was delivered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sandgate.contract.errors import JournalUnavailable, SandgateError
from sandgate.gateway.config import Config
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.conversation.turn_roles import role_of
from sandgate.gateway.engine.api import Engine, GenerationResult
from sandgate.gateway.engine.nodes import EngineNodes
from sandgate.gateway.engine.responses import Unlabelled
from sandgate.gateway.journal.records import (
    CUT,
    Delivered,
    LetGo,
    PicturesKept,
    Record,
    TurnCommitted,
)
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.protocols.responses_out import turn_named
from sandgate.gateway.service.call import ModelCall
from sandgate.gateway.service.choice_sampler import Choice
from sandgate.gateway.service.prompts import Prepared, Prompts
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.turn_order import TurnOrder
from sandgate.gateway.service.turn_records import GenerationRequest, MadeBy, records_of
from sandgate.gateway.tokens.api import Codec, Parser

log = logging.getLogger("sandgate.gateway")


@dataclass(frozen=True, slots=True)
class TurnCommitter:
    """Of one gateway."""

    config: Config
    sessions: Sessions
    engine: Engine
    codec: Codec
    metrics: GatewayMetrics
    prompts: Prompts
    nodes: EngineNodes
    order: TurnOrder = field(default_factory=TurnOrder)

    async def commit(self, call: ModelCall, asked: GenerationRequest, made: list[Choice]) -> list[Turn]:
        """The turns, durable."""
        session = call.session
        await self.sessions.keep_labels()
        whole = [(index, *sample_and_parser) for index, sample_and_parser in enumerate(made)]
        async with self.order.of(session.session_id):
            session.refuse_if_ended()
            records = self._records(call, asked, whole)
            call.fork = records[0].fork
            whole_call = (*self._pictures(session, asked.prepared), *records, *self._kept(call))
            self.sessions.refuse_over_share(session, *whole_call)
            call.committing = True
            with self.metrics.commit_s.time():
                await self.sessions.record(session, *whole_call)
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
        return (PicturesKept.kept(fresh.values(), at=self.sessions.now()),)

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

    async def keep_cut(self, call: ModelCall, asked: GenerationRequest, why: BaseException) -> None:
        """Keeps what there is of a call that nobody waits for any more, or that failed in the middle. Tokens that were
        streamed may have been seen: they go into the tree as a cut turn. If nobody can have seen any, a call that was
        let go of is counted as a turn, and a failed one is not. Tokens of unknown weights teach nobody: a call with
        some is counted, too, and what its client says of them later is its own text."""
        session, unknown = call.session, isinstance(why, Unlabelled)
        streamed = [
            (index, heard.sample(), heard.parser) for index, heard in sorted(call.heard.items()) if heard.ids
        ]
        call.committing = True
        try:
            if streamed and not unknown:
                await self.sessions.keep_labels()
                async with self.order.of(session.session_id):
                    records = self._records(call, asked, streamed, finish=CUT)
                    cut = (*self._pictures(session, asked.prepared), *records)
                    self.sessions.refuse_over_share(session, *cut)
                    await self.sessions.record(session, *cut)
                self._count(records, asked.prepared)
            elif streamed or isinstance(why, asyncio.CancelledError):
                gone = [LetGo(at=self.sessions.now(), turn=turn) for turn in call.turns]
                await self.sessions.note(session, *gone)
        except SandgateError as error:
            if isinstance(error, JournalUnavailable):
                session.call_failed(error, shaped=False)
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
        second branch. Call it with `order` held, or one that is being committed just now is not seen."""
        tree = call.session.tree
        if prepared.fork is not None or len(tree) == prepared.tree_size:
            return prepared.fork
        again = self.prompts.place_again(tree, call.request, prepared)
        return again.fork.value if again.fork and again.parent == prepared.parent else None

    def _count(self, records: list[TurnCommitted], prepared: Prepared) -> None:
        context = len(prepared.ids) - prepared.known
        for record in records:
            self.metrics.turns.inc()
            self.metrics.placed[self.nodes.same(record.engine)].inc()
            self.metrics.tokens.inc(len(record.ids) // 4)
            self.metrics.context.inc(context)
            self.metrics.spelt.inc(record.spelt)
            if record.fork:
                self.metrics.forks[record.fork].inc()
            self.metrics.resampled.inc(record.resampled)
            self.metrics.cut.inc(record.finish == CUT)

    async def let_go(self, call: ModelCall) -> None:
        """A client let go of a stream of which it had been sent some. What is not whole yet becomes a cut turn, or is
        whole before the call stops lingering; then `commit` notes it."""
        if call.done.done() and call.done.exception() is None:
            await self.delivered(call, partly=True)

    async def delivered(self, call: ModelCall, *, partly: bool = False) -> None:
        """The answer was sent in full, or `partly`. The record of it waits for no fsync: if it is lost, a retry gets
        the same answer."""
        session = call.session
        fresh = [turn for turn in call.turns if turn not in session.delivered]
        if fresh and not session.ended and not session.closing:
            now = self.sessions.now()
            sent = session.partly if partly else session.unsure
            sent.update(
                fresh
            )  # before the journal has it: the agent has the answer, and may reward it at once
            try:
                await self.sessions.note(
                    session, *(Delivered(at=now, turn=turn, partly=partly) for turn in fresh)
                )
            except JournalUnavailable:
                session.unsure.update(fresh)  # a retry gets the same answer, as it may; the seal will note it
            else:
                if not partly:
                    session.unsure.difference_update(fresh)
