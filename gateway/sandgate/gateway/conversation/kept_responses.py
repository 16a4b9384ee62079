"""KeptResponses: what a session keeps of responses, so that later requests can refer to them. (pure)

Content is kept once, by digest: a client that sends its tools and its history with every request fills no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from sandgate.gateway.conversation.messages import ResponseForm
from sandgate.gateway.journal.records import ItemsKept, ResponseForgotten, ResponseKept

DIGEST_BYTES = 16
RESPONSE_WEIGHT, ITEM_WEIGHT = 256, 64
"""What it costs to go on from a response, and from one of its items, beside the items' bytes: as if it were so many."""


def digest_of_item(raw: bytes) -> bytes:
    """The name of a content."""
    return blake2b(raw, digest_size=DIGEST_BYTES, person=b"sandgate-kept").digest()


def digests_of(items: Iterable[bytes], echo: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """The `digests` of a form. 20,000 items take 10 ms, and so do 10 MB."""
    return tuple([digest_of_item(raw) for raw in (*items, *echo.values())])


@dataclass(slots=True)
class KeptResponses:
    """Folded from the session's records, live and in replay alike."""

    contents: dict[bytes, bytes] = field(default_factory=dict)
    by_turn: dict[str, ResponseKept] = field(default_factory=dict)
    """In order of commit."""
    weight: int = 0
    """About the bytes that are read where a request goes on from all of them."""
    _names: dict[bytes, bytes] = field(default_factory=dict)
    """Each digest as one object: a client that sends its history with every request names each item every time."""

    def apply(self, record: ItemsKept | ResponseKept | ResponseForgotten) -> None:
        """Folds one record in. Idempotent."""
        match record:
            case ItemsKept():
                self.contents.update(record.items)
            case ResponseKept():
                if record.turn not in self.by_turn:
                    one = self._names.setdefault
                    items = tuple([one(digest, digest) for digest in record.items])
                    self.by_turn[record.turn] = msgspec.structs.replace(record, items=items)
                    self.weight += self._weight(record)
            case ResponseForgotten():
                if forgotten := self.by_turn.pop(record.turn, None):
                    self.weight -= self._weight(forgotten)

    def _weight(self, kept: ResponseKept) -> int:
        sizes = sum(len(self.contents.get(digest, b"")) for digest in kept.items)
        return RESPONSE_WEIGHT + ITEM_WEIGHT * len(kept.items) + sizes

    def keep(
        self, form: ResponseForm, *, turn: str, previous: str | None, model: str, at: float
    ) -> list[ItemsKept | ResponseKept]:
        """The records that keep a response. Contents that are kept already are not among them."""
        items = form.digests[: len(form.items)]
        told = dict(zip(form.echo, form.digests[len(items) :], strict=True))
        echo = tuple(sorted(told.items()))
        known = self.contents
        fresh = {
            digest: raw for digest, raw in zip(items, form.items, strict=True) if digest not in known
        } | {digest: form.echo[name] for name, digest in echo if digest not in known}
        kept = ResponseKept(
            at=at, turn=turn, model=model, previous=previous, items=items, echo=echo, sealed=form.sealed
        )
        return [ItemsKept(at=at, items=tuple(fresh.items())), kept] if fresh else [kept]

    def form(self, kept: ResponseKept, previous: str | None) -> ResponseForm:
        """What was asked; `previous`: the id of the response before."""
        return ResponseForm(
            previous=previous,
            items=self.items(kept),
            echo={name: self.contents[digest] for name, digest in kept.echo},
            sealed=kept.sealed,
        )

    def items(self, kept: ResponseKept) -> tuple[bytes, ...]:
        """A response's own input items, as JSON."""
        return tuple([self.contents[digest] for digest in kept.items])

    def chain(self, turn: str) -> list[ResponseKept] | None:
        """This response and those that it goes on from, the first one first; None if one of them is not kept."""
        out: list[ResponseKept] = []
        at: str | None = turn
        while at is not None:
            kept = self.by_turn.get(at)
            if kept is None:
                return None
            out.append(kept)
            at = kept.previous
        out.reverse()
        return out

    def turns(self) -> Iterable[str]:
        """The turns whose responses are kept."""
        return list(self.by_turn)
