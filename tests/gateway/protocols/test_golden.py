"""The wire, in files: what clients send, what we make of it, what they get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandgate.gateway.conversation.canonical import echo_of
from sandgate.gateway.conversation.matching import Level, MatchPolicy, recognise
from tests.gateway.protocols.golden import ADAPTER, Case, cases


@pytest.mark.parametrize("folder", cases(), ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", ["canonical.json", "response.json", "response.sse"])
def test_wire(folder: Path, name: str) -> None:
    assert Case(folder).made()[name] == (folder / name).read_bytes()


def test_there_is_a_file_for_every_quirk() -> None:
    assert len(cases()) >= 25


@pytest.mark.parametrize("folder", cases(), ids=lambda folder: folder.name)
def test_the_digest_does_not_depend_on_spelling_nor_on_streaming(folder: Path) -> None:
    case = Case(folder)
    body = json.loads(case.body)
    body = dict(reversed(body.items())) | {"stream": not body.get("stream"), "unknown_field": [1]}
    body.pop("stream_options", None)
    for ascii_only in (True, False):
        again = ADAPTER.decode(json.dumps(body, ensure_ascii=ascii_only, indent=3).encode(), {})
        assert again.digest == case.request.digest
        assert again.messages == case.request.messages
    body["messages"].append({"role": "user", "content": "more"})
    assert ADAPTER.decode(json.dumps(body).encode(), {}).digest != case.request.digest


@pytest.mark.parametrize("folder", cases(), ids=lambda folder: folder.name)
def test_what_we_send_comes_back_as_the_turn_it_was(folder: Path) -> None:
    """The message of the JSON body, put into the next request as it stands, is an exact echo."""
    case = Case(folder)
    for at, (told, choice) in enumerate(zip(json.loads(case.json())["choices"], case.choices, strict=True)):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "u"}, told["message"]]})
        echo = echo_of(ADAPTER.decode(body.encode(), {}).messages[1:])
        how = recognise(echo, case.context.turns[at], choice.reply, None, {}, MatchPolicy(lossy_echo=False))
        assert how is not None
        assert (how.level, how.cost, how.notes) == (Level.EXACT, 0, ())
