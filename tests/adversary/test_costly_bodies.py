"""A body costs the gateway about as much memory as it has bytes, whatever it holds and whatever is wrong with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.gateway.protocols import openai_chat_in, wire
from tests.adversary.victim import MIB, victim

ROOM_MB = 96
"""For a body of a few MB: its chunks, the body, what it is read into; at 490fd5d the first case took over 4,000."""
KEY = "k" * MIB


def _with(**fields: str) -> bytes:
    """A chat completion with these fields, each given as JSON."""
    said = {"model": '"shop"', "messages": '[{"role":"user","content":"hi"}]', **fields}
    return ("{" + ",".join(f'"{name}":{text}' for name, text in said.items()) + "}").encode()


def _call(calls: str) -> bytes:
    return _with(messages='[{"role":"assistant","tool_calls":[' + calls + "]}]")


COSTLY: dict[str, Callable[[], bytes]] = {
    "a long name over many values and one that is no JSON": lambda: _with(
        **{KEY: "[" + "0," * 4_000 + "0]", "x": "NaN"}
    ),
    "a long name over many values and one that is no JSON, in a field that is read": lambda: _with(
        tools=f'[{{"type":"function","function":{{"name":"f","parameters":{{"{KEY}":['
        + "0," * 4_000
        + "NaN]}}}]"
    ),
    "half a character below a long name": lambda: _with(**{KEY: '["a","\\ud800"]'}),
    "nothing but brackets, and one that is no JSON": lambda: _with(x="[" + "[]," * MIB + "NaN]"),
    "empty calls": lambda: _call("{}," * 2 * MIB + "{}"),
    "empty messages": lambda: _with(messages="[" + '{"role":""},' * MIB + '{"role":""}]'),
    "empty parts": lambda: _with(
        messages='[{"role":"user","content":[' + '{"type":""},' * MIB + '{"type":""}]}]'
    ),
    "reasoning that is no text": lambda: _with(
        messages='[{"role":"assistant","reasoning":[' + "[]," * 2 * MIB + "[]]}]"
    ),
    "a tool's schema of brackets": lambda: _with(
        tools='[{"type":"function","function":{"name":"f","parameters":{"a":[' + "[]," * 2 * MIB + "[]]}}}]"
    ),
    "an answer's schema of brackets": lambda: _with(
        response_format='{"type":"json_schema","json_schema":{"schema":{"a":[' + "{}," * 2 * MIB + "{}]}}}"
    ),
}


async def test_no_body_takes_memory_beyond_its_own_size(tmp_path: Path) -> None:
    """In one process, one after the other: what the first took is not given to the second."""
    async with victim(tmp_path) as v:
        agent = await v.session()
        seen = {}
        for name, make in COSTLY.items():
            v.forget_peak()
            answer = await agent.post("v1/chat/completions", content=make())
            seen[name] = v.grown_mb()
            assert answer.status_code == 400, f"{name}: {answer.text[:300]}"
            assert len(answer.content) < 1_000, f"{name}: {len(answer.content)} bytes come back"
        assert {name: mb for name, mb in seen.items() if mb > ROOM_MB} == {}


NAMED = {
    "a number that is none": (b'{"a":[1,{"b":NaN}]}', "a[1].b"),
    "a number beyond float64": (b'{"a":{"b":[0,1e999]}}', "a.b[1]"),
    "infinity": (b'{"a":[Infinity]}', "a[0]"),
    "half a character": (b'{"a":{"b":"\\ud800"}}', "a.b"),
    "a name with half a character is named by what holds it": (b'{"a":{"\\ud800":1}}', "a"),
    "the first of two bad values is named": (b'{"a":1,"b":NaN,"c":NaN}', "b"),
    "a long name is cut": (b'{"' + b"k" * 5_000 + b'":NaN}', "k" * 77 + "..."),
    "many names are cut": (b'{"abcdefghi":' * 100 + b"NaN" + b"}" * 100, "abcdefghi." * 19 + "abcdef..."),
    "a body too long to be looked through": (b'{"a":"' + b"k" * MIB + b'","b":NaN}', "body"),
    "a body that is cut short has no place to name": (b'{"a":[1', "body"),
}


@pytest.mark.parametrize(("raw", "field"), NAMED.values(), ids=NAMED)
def test_the_bad_place_is_named_and_the_name_is_bounded(raw: bytes, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        wire.read(wire.ANYTHING, raw)
    assert (caught.value.field, len(str(caught.value)) < 400) == (field, True)


def test_naming_the_bad_place_takes_time_in_proportion_to_the_body() -> None:
    """A long name over twice the values takes about twice as long, not four times."""

    def took(values: int) -> float:
        raw = b'{"' + b"k" * 64 * values + b'":[' + b"0," * values + b'0],"x":NaN}'
        best = 9.0
        for _ in range(3):
            began = time.perf_counter()
            with pytest.raises(BadRequest):
                wire.read(wire.ANYTHING, raw)
            best = min(best, time.perf_counter() - began)
        return best

    took(10)
    assert took(3_200) < 12 * took(800) + 0.01


def test_an_honest_long_history_is_no_crowd() -> None:
    """What fills a window of a million tokens with code and JSON: 4 MB of text, a fifth of it commas and brackets."""
    page = json.dumps([{"id": n, "tags": ["a", "b"], "price": 1.5} for n in range(80_000)])
    assert 3_500_000 < len(page) < 5_000_000
    request = openai_chat_in.decode(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": page}]}).encode()
    )
    assert request.messages[0].text == page
