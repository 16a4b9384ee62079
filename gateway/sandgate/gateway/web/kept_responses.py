"""GET and DELETE of the responses that a session keeps."""

from __future__ import annotations

from functools import partial
from typing import cast

import msgspec

from sandgate.contract.errors import NotFound, Unsupported
from sandgate.gateway.conversation.kept_responses import ITEM_WEIGHT
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.journal.records import ResponseForgotten, ResponseKept
from sandgate.gateway.protocols import input_items
from sandgate.gateway.protocols.base import Choice, Context, Usage
from sandgate.gateway.protocols.responses_out import reply, response_id, turn_named
from sandgate.gateway.service.fair_pool import lane
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.session import Session
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.reasoning_count import reasoning_tokens

OFF_LOOP_BYTES = 100_000
"""Input items of more are listed in a thread."""


def named(path: str) -> list[str] | None:
    """What stands behind `/responses/` in a path; None for other paths."""
    for _ in range(2):
        path = path.removeprefix("/v1")
    return path.removeprefix("/responses/").split("/") if path.startswith("/responses/") else None


async def answer(
    core: GatewayService, session: Session, method: str, parts: list[str], query: bytes = b""
) -> bytes:
    """The body of the answer, as JSON. Raises NotFound, Unsupported, InvalidBody; Gone if the session is not in memory
    any more."""
    name, *rest = parts
    if session.evicted:
        session.refuse_if_ended()
    if method == "POST" and rest != ["cancel"]:
        raise NotFound(f"no such endpoint: POST /responses/{'/'.join(parts)[:200]}")
    kept = session.kept.by_turn.get(turn_named(name))
    if kept is None or kept.turn not in session.tree:
        raise NotFound(f"Response with id '{name[:80]}' not found.")
    match method, rest:
        case "GET", []:
            input_items.unstreamed(query)
            return _response(session, kept, core.turns.codec)
        case "GET", ["input_items"]:
            items = session.kept.items(kept)
            work = partial(input_items.told, items, kept.turn, input_items.page(query))
            if sum(map(len, items)) + ITEM_WEIGHT * len(items) < OFF_LOOP_BYTES:
                return work()
            return await off_loop(lane(core.turns.pool, session.session_id), work)
        case "DELETE", []:
            session.refuse_if_ended()
            await core.sessions.record(session, ResponseForgotten(at=core.sessions.now(), turn=kept.turn))
            told = {"id": response_id(kept.turn), "object": "response", "deleted": True}
            return msgspec.json.encode(told)
        case "POST", ["cancel"]:
            raise Unsupported("only responses in the background can be cancelled", field="response_id")
    raise NotFound(f"no such endpoint: {method} /responses/{'/'.join(parts)[:200]}")


def _response(session: Session, kept: ResponseKept, codec: Codec) -> bytes:
    turn = session.tree[kept.turn]
    previous = response_id(kept.previous) if kept.previous else None
    context = Context(
        turns=(turn.id,),
        model=kept.model,
        created=turn.created,
        prompt_tokens=turn.prompt_tokens,
        form=session.kept.form(kept, previous),
    )
    choice = Choice(reply=turn.reply, finish=cast("Finish", turn.finish), stop_reason=turn.stop_reason)
    thought = reasoning_tokens(turn.ids, turn.reply, codec.bytes_of)
    return reply(context, [choice], Usage(turn.prompt_tokens, len(turn.ids), turn.cached_tokens, thought))
