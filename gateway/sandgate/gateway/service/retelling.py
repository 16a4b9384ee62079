"""The steps in which a durable answer was streamed, or would have been: for retries that ask for a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn, unpack_ids
from sandgate.gateway.service.call import ModelCall, Step
from sandgate.gateway.service.choice_sampler import OFF_LOOP_IDS, parser_of, token_logprobs
from sandgate.gateway.service.fair_pool import FairPool, lane
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.turn_records import finished
from sandgate.gateway.tokens.api import Codec


async def retell(codec: Codec, pool: FairPool, call: ModelCall) -> list[Step]:
    """All steps of a call that is done; of a long answer they are made in a thread."""
    turns, request = call.done.result(), call.request
    prompts = [call.session.tree.prompt_ids(turn) for turn in turns]

    def work() -> list[Step]:
        return _steps(codec, request, turns, prompts)

    long = sum(len(turn.ids) for turn in turns) > OFF_LOOP_IDS
    return await off_loop(lane(pool, call.session.session_id), work) if long else work()


def _steps(codec: Codec, request: TurnRequest, turns: list[Turn], prompts: list[Ids]) -> list[Step]:
    steps: list[Step] = []
    ends: list[Step] = []
    for index, (turn, prompt) in enumerate(zip(turns, prompts, strict=True)):
        parser = parser_of(codec, request, prompt)
        start = 0
        for end in _piece_ends(turn, request):  # as it was streamed: the same answer, byte for byte
            logprobs = token_logprobs(turn, start) if request.tells_tokens else None
            steps.append((index, parser.feed(turn.ids[start:end]), logprobs))
            start = end
        ends.append((index, finished(parser, turn.stop_reason, turn.finish)[0], None))
    return steps + ends


def _piece_ends(turn: Turn, request: TurnRequest) -> Iterable[int]:
    """The ends of the pieces in which a turn is streamed: each token with logprobs, else as the engine gave them."""
    if request.tells_tokens or not turn.pieces:
        return range(1, len(turn.ids) + 1)
    ends: Iterable[int] = itertools.accumulate(unpack_ids(turn.pieces))
    return ends
