"""The input items of a kept response are told as OpenAI tells them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody, NotFound, Unsupported
from sandgate.gateway.protocols.input_items import Page, page, told, unstreamed

ASIS = {"type": "function_call", "call_id": "c", "name": "buy", "arguments": "{}", "id": "own"}
SHOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a user's text is a part": (
        {"role": "user", "content": "hi"},
        {"content": [{"type": "input_text", "text": "hi"}], "role": "user"},
    ),
    "an assistant's text is one that was said": (
        {"role": "assistant", "content": 'h"i'},
        {"content": [{"type": "output_text", "annotations": [], "text": 'h"i'}], "role": "assistant"},
    ),
    "parts stay": (
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}], "status": "incomplete"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}], "status": "incomplete"},
    ),
    "what is null is left out": (
        {"role": "user", "content": "", "name": None},
        {"role": "user", "content": [{"type": "input_text", "text": ""}]},
    ),
}


def listed(items: list[dict[str, Any]], query: bytes = b"order=asc") -> Any:
    return json.loads(told([json.dumps(item).encode() for item in items], "turn", page(query)))


@pytest.mark.parametrize(("sent", "shown"), SHOWN.values(), ids=SHOWN)
def test_a_message_is_told_in_full(sent: dict[str, Any], shown: dict[str, Any]) -> None:
    (item,) = listed([sent])["data"]
    assert item == {"id": "in_turn_0", "type": "message", "status": "completed"} | shown


def test_other_items_stay_as_they_are() -> None:
    assert listed([ASIS])["data"] == [ASIS]


PAGES: dict[str, tuple[bytes, list[int], bool]] = {
    "newest first, all of them": (b"", [2, 1, 0], False),
    "oldest first": (b"order=asc", [0, 1, 2], False),
    "a page": (b"order=asc&limit=2", [0, 1], True),
    "the next": (b"order=asc&limit=2&after=in_turn_1", [2], False),
    "behind one, newest first": (b"after=in_turn_1", [0], False),
    "no item is behind the last": (b"after=in_turn_0", [], False),
}


@pytest.mark.parametrize(("query", "numbers", "more"), PAGES.values(), ids=PAGES)
def test_items_come_in_pages(query: bytes, numbers: list[int], more: bool) -> None:
    found = listed([{"role": "user", "content": str(number)} for number in range(3)], query)
    ids = [f"in_turn_{number}" for number in numbers]
    assert [item["id"] for item in found["data"]] == ids
    assert (found["first_id"], found["last_id"], found["has_more"]) == (
        *((ids[0], ids[-1]) if ids else (None, None)),
        more,
    )


@pytest.mark.parametrize("query", [b"order=up", b"limit=0", b"limit=101", b"limit=x", b"limit=-1", b"limit="])
def test_a_page_that_cannot_be_is_refused_by_name(query: bytes) -> None:
    with pytest.raises(InvalidBody) as seen:
        page(query)
    assert seen.value.field == query.partition(b"=")[0].decode()


def test_an_item_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match="'nobody'"):
        told([json.dumps(ASIS).encode()], "turn", Page(after="nobody"))


def test_a_kept_response_is_not_streamed_again() -> None:
    unstreamed(b"")
    unstreamed(b"stream=false&include=x")
    with pytest.raises(Unsupported) as seen:
        unstreamed(b"include=x&stream=true")
    assert seen.value.field == "stream"
