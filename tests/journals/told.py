"""What a journal says, as lines of JSON: every record, then the trajectories and the leases that follow from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from sandgate.contract.trajectory import to_json
from sandgate.gateway.conversation.turn import turn_of
from sandgate.gateway.journal.records import (
    Completed,
    Delivered,
    Opened,
    Record,
    Rewarded,
    Sealed,
    TurnCommitted,
    encode,
)
from sandgate.gateway.journal.store import Store
from sandgate.gateway.trajectories.leases import LeaseBook
from sandgate.gateway.trajectories.linearize import linearize


def told(store: Store) -> Iterator[dict[str, Any]]:
    """Records in order; rows of each sealed session; what the lease book would offer and forget."""
    sessions: dict[str, list[Record]] = {}
    book = LeaseBook()
    for seq, session, record in store.scan():
        sessions.setdefault(session, []).append(record)
        book.fold(session, record)
        said = msgspec.msgpack.decode(encode(record))  # as it is written: what is packed in it, too
        yield {"seq": seq, "session": session, **msgspec.to_builtins(said)}
    for session, records in sessions.items():
        for row in rows(session, records):
            yield {"trajectory": row}
    for session, member in book.members.items():
        yield {"member": session, "good": member.good, "leased": member.leased, "acked": member.acked}
    offer = book.lease("next", 1e9, ttl_s=1.0, max_groups=100)
    disposable = [name for group in book.disposable() for name in group]
    yield {"offer": offer.sessions if offer else [], "disposable": disposable}


def rows(session: str, records: list[Record]) -> list[dict[str, Any]]:
    opened = next((record for record in records if isinstance(record, Opened)), None)
    sealed = next((record for record in records if isinstance(record, Sealed)), None)
    turns = [record for record in records if isinstance(record, TurnCommitted)]
    if opened is None or sealed is None:
        return []
    found = linearize(
        [turn_of(record, number) for number, record in enumerate(turns)],
        session_id=session,
        spec=opened.spec,
        sealed=sealed,
        delivered={record.turn for record in records if isinstance(record, Delivered)},
        rewarded=[record for record in records if isinstance(record, Rewarded)],
        completed=next((record.info for record in records if isinstance(record, Completed)), None),
    )
    return [to_json(row) for row in found]


def lines(values: Iterator[dict[str, Any]]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
