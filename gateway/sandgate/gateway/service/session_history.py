"""SessionHistory: what a request of a session may refer to: earlier responses and their items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandgate.gateway.conversation.ids import item_mark, mark_of
from sandgate.gateway.protocols.base import Earlier, PreviousNotFound
from sandgate.gateway.protocols.input_items import item_named
from sandgate.gateway.protocols.reply_items import Item
from sandgate.gateway.protocols.responses_out import output_items, response_id, turn_named
from sandgate.gateway.protocols.wire import limited
from sandgate.gateway.service.session import Session

REFERRED_BYTES_MAX = 32 * 1024 * 1024
"""Of input items that a request refers to: what it could send itself (`limits.body_bytes`)."""


@dataclass(slots=True)
class SessionHistory:
    """A `History` over a session, for one request. It only reads: a long body is decoded in a thread."""

    session: Session
    _items: dict[str, tuple[Item, str]] | None = None
    """Mark of an output item -> the item and its turn; made when the first one is asked for."""
    _referred: int = 0
    """Bytes of the input items that the request referred to so far."""

    @property
    def weight(self) -> int:
        """About the bytes that a request reads which refers to all of it."""
        return self.session.kept.weight

    def chain(self, response: str) -> Sequence[Earlier] | None:
        """See `History`."""
        self._refuse_if_dropped()
        kept, tree = self.session.kept, self.session.tree
        named = turn_named(response)
        chain = kept.chain(named)
        if chain is None or any(one.turn not in tree for one in chain):
            self._refuse_if_forgotten(named)
            return None
        return [Earlier(one.turn, kept.items(one), tree[one.turn].reply) for one in chain]

    def item(self, item: str) -> tuple[Item, str] | None:
        """See `History`."""
        self._refuse_if_dropped()
        if self._items is None:
            tree = self.session.tree
            self._items = {
                item_mark(turn, number): (one, turn)
                for turn in self.session.kept.turns()
                if turn in tree
                for number, one in enumerate(output_items(tree[turn].reply))
            }
        return self._items.get(mark_of(item))

    def input(self, item: str, field: str) -> bytes | None:
        """See `History`."""
        self._refuse_if_dropped()
        turn, number = item_named(item) or ("", 0)
        kept = self.session.kept.by_turn.get(turn)
        if kept is None or number >= len(kept.items):
            return None
        raw = self.session.kept.contents[kept.items[number]]
        self._referred += len(raw)
        limited(self._referred, REFERRED_BYTES_MAX, "bytes of items that it refers to", field)
        return raw

    def _refuse_if_forgotten(self, named: str) -> None:
        """Raises PreviousNotFound for a response that is kept, and goes on from one that is not."""
        by_turn, at = self.session.kept.by_turn, named
        while (kept := by_turn.get(at)) is not None and kept.previous is not None:
            at = kept.previous
        if at != named and at not in by_turn:
            raise PreviousNotFound(
                f"Previous response with id '{response_id(at)}' not found: it was deleted, and "
                f"'{response_id(named)}' goes on from it.",
                field="previous_response_id",
            )

    def _refuse_if_dropped(self) -> None:
        """Raises Gone where there is nothing to refer to any more: that says more than that it is not found."""
        if self.session.evicted:
            self.session.refuse_if_ended()
