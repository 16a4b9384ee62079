"""The input items of a kept response, as OpenAI lists them. What they hold is not read again: it was taken. (pure)"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sandgate.contract.errors import InvalidBody, NotFound, Unsupported

Item = dict[str, msgspec.Raw]

LIMIT_MAX = 100
"""Of one page; without a limit it is all items, where OpenAI has 20."""
_ITEM: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)
MEMBERS_MAX = 10_000
"""An item with more is told as it was sent, but for its id: to read 300,000 would hold every thread for 100 ms."""


class _Named(msgspec.Struct):
    id: str | msgspec.UnsetType = msgspec.UNSET


_NAMED = msgspec.json.Decoder(_Named)
_MESSAGE, _COMPLETED = msgspec.Raw(b'"message"'), msgspec.Raw(b'"completed"')
_PARTS = {
    True: b'[{"type":"output_text","annotations":[],"text":%s}]',
    False: b'[{"type":"input_text","text":%s}]',
}


@dataclass(frozen=True, slots=True)
class Page:
    """What is asked of a list."""

    after: str = ""
    limit: int = 0
    """0: all."""
    newest_first: bool = True


def page(query: bytes) -> Page:
    """Of a query string. Raises InvalidBody."""
    asked = dict(urllib.parse.parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    order, limit = asked.get("order", "desc"), asked.get("limit")
    if order not in ("asc", "desc"):
        raise InvalidBody("order: asc or desc", field="order")
    if limit is not None and not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= LIMIT_MAX):
        raise InvalidBody(f"limit: 1 to {LIMIT_MAX}", field="limit")
    return Page(asked.get("after", ""), int(limit or 0), order == "desc")


def unstreamed(query: bytes) -> None:
    """Raises Unsupported where a kept response is to be streamed: OpenAI streams only those of the background again."""
    asked = dict(urllib.parse.parse_qsl(query.decode("latin-1")))
    if asked.get("stream", "").lower() in ("true", "1"):
        raise Unsupported("only responses in the background can be streamed again", field="stream")


_ID = re.compile(r"in_(.+)_([0-9]{1,9})", re.ASCII)


def item_id(turn: str, number: int) -> str:
    """Of an item that came without one."""
    return f"in_{turn}_{number}"


def item_named(name: str) -> tuple[str, int] | None:
    """The turn, and which of its items, of such an id."""
    found = _ID.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def told(items: Sequence[bytes], turn: str, asked: Page) -> bytes:
    """The list's body. Raises NotFound for an item that it is to begin behind, and that is not there."""
    data = [_shown(raw, b'"%s"' % item_id(turn, number).encode()) for number, raw in enumerate(items)]
    if asked.newest_first:
        data.reverse()
    if asked.after:
        ids = [_named(item) for item in data]
        if asked.after not in ids:
            raise NotFound(f"Item with id '{asked.after[:80]}' not found.")
        data = data[ids.index(asked.after) + 1 :]
    shown = data[: asked.limit or None]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": shown,
            "first_id": _named(shown[0]) if shown else None,
            "last_id": _named(shown[-1]) if shown else None,
            "has_more": len(shown) < len(data),
        }
    )


def _shown(raw: bytes, name: bytes) -> msgspec.Raw:
    """Each has an id and a type, and a message's content is a list of parts, as OpenAI tells them."""
    if raw.count(b'":') > MEMBERS_MAX:
        return msgspec.Raw(
            raw if _given(raw) else b'%s,"id":%s}' % (raw[:-1], name)
        )  # of two the last one counts
    item = {key: value for key, value in _ITEM.decode(raw).items() if bytes(value) != b"null"}
    item = {"id": msgspec.Raw(name), "type": _MESSAGE, **item}
    if bytes(item["type"]) == b'"message"':
        content = bytes(item.get("content", b"[]"))
        if content.startswith(b'"'):
            own = bytes(item.get("role", b"")) == b'"assistant"'
            item["content"] = msgspec.Raw(_PARTS[own] % content)
        item.setdefault("status", _COMPLETED)
    return msgspec.Raw(msgspec.json.encode(item))


def _named(item: msgspec.Raw) -> str:
    return _given(bytes(item)) or ""


def _given(raw: bytes) -> str | None:
    """The id that an item came with."""
    try:
        found = _NAMED.decode(raw).id
    except msgspec.ValidationError:
        return None
    return None if found is msgspec.UNSET else found
