"""Bytes that say which gateways can read them."""

from __future__ import annotations

import msgspec
import pytest

from sandgate.contract.errors import NewerRecord
from sandgate.gateway.journal.records import (
    SCHEMA,
    AdapterServed,
    CapacityChanged,
    EnginesLabelled,
    EnginesSet,
    ImagesFetched,
    ItemsKept,
    LetGo,
    PicturesKept,
    ResponseForgotten,
    ResponseKept,
    Retired,
    TasksForgotten,
    TasksPushed,
    TurnsHeld,
    decode,
    encode,
)
from tests.gateway.journal.samples import EVERY_KIND

SINCE = {
    EnginesSet: 2,
    TasksPushed: 2,
    TasksForgotten: 2,
    CapacityChanged: 3,
    TurnsHeld: 4,
    EnginesLabelled: 5,
    LetGo: 6,
    ItemsKept: 7,
    ResponseKept: 7,
    ResponseForgotten: 7,
    PicturesKept: 8,
    ImagesFetched: 9,
    Retired: 11,
    AdapterServed: 12,
}
KINDS_SINCE = {"a cut turn": 6, "a turn with a picture": 8, "a video": 10}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_record_says_the_first_schema_that_knew_its_kind(kind: str) -> None:
    record = EVERY_KIND[kind]
    raw = encode(record)
    assert decode(raw) == record
    assert msgspec.msgpack.decode(raw).get("schema", 1) == (
        KINDS_SINCE.get(kind) or SINCE.get(type(record), 1)
    )


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_newer_record_is_refused_whatever_else_is_in_it(kind: str) -> None:
    said = msgspec.msgpack.decode(encode(EVERY_KIND[kind])) | {
        "schema": SCHEMA + 1,
        "type": "from the future",
    }
    with pytest.raises(NewerRecord):
        decode(msgspec.msgpack.encode(said))
