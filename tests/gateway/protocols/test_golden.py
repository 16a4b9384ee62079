"""The wire, in files: what clients send, what we make of it, what they get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.conversation.echo_matching import Level, MatchPolicy, recognise
from sandgate.gateway.conversation.message_equality import echo_of
from tests.gateway.protocols.golden import DIALECTS, MESSAGES, Case, cases

EVERY = pytest.mark.parametrize("folder", cases(), ids=lambda folder: f"{folder.parent.name}-{folder.name}")
QUIRKS = {"openai_chat": 25, "anthropic_messages": 15}


@EVERY
@pytest.mark.parametrize("name", ["canonical.json", "response.json", "response.sse"])
def test_wire(folder: Path, name: str) -> None:
    assert Case(folder).made()[name] == (folder / name).read_bytes()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_there_is_a_file_for_every_quirk(dialect: str) -> None:
    assert len(cases(DIALECTS[dialect])) >= QUIRKS[dialect]


@EVERY
def test_the_digest_does_not_depend_on_spelling_nor_on_streaming(folder: Path) -> None:
    case = Case(folder)
    body = json.loads(case.body)
    body = dict(reversed(body.items())) | {"stream": not body.get("stream"), "unknown_field": [1]}
    body.pop("stream_options", None)
    for ascii_only in (True, False):
        again = case.adapter.decode(json.dumps(body, ensure_ascii=ascii_only, indent=3).encode(), {})
        assert again.digest == case.request.digest
        assert again.messages == case.request.messages
    body["messages"].append({"role": "user", "content": "more"})
    assert case.adapter.decode(json.dumps(body).encode(), {}).digest != case.request.digest


def said(case: Case) -> list[Any]:
    """The assistant's messages of the JSON body, as clients put them into the next request."""
    answer = json.loads(case.json())
    if case.adapter is MESSAGES:
        return [{"role": "assistant", "content": answer["content"]}]
    return [told["message"] for told in answer["choices"]]


@EVERY
def test_what_we_send_comes_back_as_the_turn_it_was(folder: Path) -> None:
    """The message of the JSON body, put into the next request as it stands, is an exact echo. Anthropic's dialect has
    arguments as an object, which no client spells as we do."""
    case = Case(folder)
    for at, (told, choice) in enumerate(zip(said(case), case.choices, strict=True)):
        user = {"role": "user", "content": "u"}
        body = json.dumps({"model": "m", "messages": [user, told, user]})
        echo = echo_of(case.adapter.decode(body.encode(), {}).messages[1:2])
        how = recognise(echo, case.context.turns[at], choice.reply, None, {}, MatchPolicy(lossy_echo=False))
        assert how is not None
        assert how.notes == ()
        spelt = case.adapter is MESSAGES and choice.reply.tool_calls
        assert how.level == Level.EXACT or (spelt and how.level == Level.ARGUMENTS)
