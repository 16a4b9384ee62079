"""A body of Anthropic's messages that is understood, and every way to spoil it."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.protocols.bodies import (
    ABSENT,
    ABYSS,
    DEEP,
    HUGE,
    NOT_A_LIST,
    NOT_A_NUMBER,
    NOT_A_SWITCH,
    NOT_AN_OBJECT,
    NOT_TEXT,
    NOT_WHOLE,
    Spelt,
    Spoiling,
    no_bodies,
)

VALID: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 512,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "prices"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "sg1."},
                {"type": "text", "text": "I buy."},
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "kiwi"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [
                        {"type": "text", "text": "3"},
                        {"type": "tool_reference", "tool_name": "search"},
                    ],
                },
            ],
        },
    ],
    "tools": [
        {"name": "search", "description": "d", "input_schema": {"type": "object"}, "strict": True, "type": "custom"}
    ],
    "tool_choice": {"type": "tool", "name": "search", "disable_parallel_tool_use": False},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "array"}}},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "temperature": 0.5,
    "top_k": 5,
    "stop_sequences": ["END"],
    "stream": True,
    "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip

WRONG: dict[str, tuple[Any, ...]] = {
    "model": (*NOT_TEXT, None, ABSENT, "x" * 10_000),
    "max_tokens": (*NOT_WHOLE, 0, -1, -HUGE),
    "system": (1, True, {"a": 1}),
    "system[0]": ("x", 1, None, []),
    "system[0].type": (*NOT_TEXT, None, ABSENT, "image", "thinking"),
    "system[0].text": (*NOT_TEXT, None, ABSENT),
    "messages": (*NOT_A_LIST, None, ABSENT, []),
    "messages[0]": ("x", 1, None, [], True),
    "messages[0].role": (*NOT_TEXT, None, ABSENT, "", "tool", "developer", "USER", "x" * 1000),
    "messages[0].content": (1, True, None, ABSENT, {"a": 1}),
    "messages[0].content[0]": ("x", 1, None, []),
    "messages[0].content[0].type": (
        *NOT_TEXT,
        None,
        ABSENT,
        "video",
        "search_result",
        "tool_use",
        "thinking",
        "container_upload",
        "x" * 1000,
    ),
    "messages[0].content[0].text": (*NOT_TEXT, None, ABSENT),
    "messages[0].content[1].source": (*NOT_AN_OBJECT, None, ABSENT),
    "messages[0].content[1].source.type": (*NOT_TEXT, None, ABSENT, "file", "text"),
    "messages[0].content[1].source.media_type": (*NOT_TEXT, None, ABSENT),
    "messages[0].content[1].source.data": (*NOT_TEXT, None, ABSENT),
    "messages[0].content[1].source.url": NOT_TEXT,
    "messages[0].content[2].source": (*NOT_AN_OBJECT, None, ABSENT),
    "messages[0].content[2].source.type": (*NOT_TEXT, None, ABSENT, "base64", "url", "content", "file"),
    "messages[0].content[2].source.data": (*NOT_TEXT, None, ABSENT),
    "messages[1].content[0].type": (*NOT_TEXT, None, ABSENT, "image", "tool_result", "server_tool_use"),
    "messages[1].content[0].thinking": NOT_TEXT,
    "messages[1].content[0].signature": NOT_TEXT,
    "messages[1].content[1].data": NOT_TEXT,
    "messages[1].content[2].text": (*NOT_TEXT, None, ABSENT),
    "messages[1].content[3].id": NOT_TEXT,
    "messages[1].content[3].name": (*NOT_TEXT, None, ABSENT, ""),
    "messages[1].content[3].input": (*NOT_AN_OBJECT, None, "{}"),
    "messages[2].content[0].tool_use_id": (*NOT_TEXT, None, ABSENT),
    "messages[2].content[0].content": (1, True, {"a": 1}),
    "messages[2].content[0].content[0]": ("x", 1, None, []),
    "messages[2].content[0].content[0].type": (
        *NOT_TEXT,
        None,
        ABSENT,
        "tool_result",
        "search_result",
    ),
    "messages[2].content[0].content[0].text": (*NOT_TEXT, None, ABSENT),
    "messages[2].content[0].content[1].tool_name": (*NOT_TEXT, None, ABSENT, ""),
    "tools": NOT_A_LIST,
    "tools[0]": (*NOT_AN_OBJECT, None),
    "tools[0].type": (*NOT_TEXT, "web_search_20250305", "bash_20250124", "function", ""),
    "tools[0].name": (*NOT_TEXT, None, ABSENT, "", "x" * 257),
    "tools[0].description": NOT_TEXT,
    "tools[0].input_schema": (*NOT_AN_OBJECT, None, ABSENT),
    "tools[0].strict": NOT_A_SWITCH,
    "tool_choice": NOT_AN_OBJECT,
    "tool_choice.type": (*NOT_TEXT, None, ABSENT, "required", "function", ""),
    "tool_choice.name": (*NOT_TEXT, None, ABSENT, "find"),
    "tool_choice.disable_parallel_tool_use": NOT_A_SWITCH,
    "output_config": NOT_AN_OBJECT,
    "output_config.effort": (*NOT_TEXT, "minimal", ""),
    "output_config.format": NOT_AN_OBJECT,
    "output_config.format.type": (*NOT_TEXT, None, ABSENT, "json_object", "text"),
    "output_config.format.schema": (*NOT_AN_OBJECT, None, ABSENT, {"a": [2**64]}),
    "output_format": NOT_AN_OBJECT,
    "thinking": NOT_AN_OBJECT,
    "thinking.type": NOT_TEXT,
    "thinking.display": NOT_TEXT,
    "temperature": (*NOT_A_NUMBER, -0.1, 2.1, HUGE),
    "top_p": (*NOT_A_NUMBER, -0.1, 1.1, 0, HUGE),
    "top_k": (*NOT_WHOLE, -2, 2**31, HUGE),
    "stop_sequences": ("x", 1, True, {"a": 1}, ["x"] * 17),
    "stop_sequences[0]": (1, None, True, [], "", "x" * 257),
    "stream": NOT_A_SWITCH,
    "chat_template_kwargs": (*NOT_AN_OBJECT, {f"v{number}": 1 for number in range(9)}),
    "chat_template_kwargs.enable_thinking": (None, [], {}, "<|im_end|>", "x" * 65, "a\nb", HUGE),
    "thread": ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}, "x", 1, True),
    "mcp_servers": ([{"type": "url", "url": "http://x", "name": "x"}], "x"),
    "container": ("c1", {"skills": []}),
}
"""Field -> values it must not have; each is put into VALID alone."""

SPELT: list[Spelt] = [
    ("NaN", "temperature", b"0.5", b"NaN"),
    ("Infinity", "temperature", b"0.5", b"-Infinity"),
    ("a number beyond doubles", "temperature", b"0.5", b"1e999"),
    ("an integer of 5000 digits", "top_k", b'"top_k": 5', b'"top_k": ' + b"9" * 5000),
    ("half a surrogate pair in a system prompt", "system[0].text", b"Be brief.", b"\\ud83d"),
    ("half a surrogate pair in a block", "messages[0].content[0].text", b'"hi"', b'"\\ud83d!"'),
    ("half a surrogate pair in a call", "messages[1].content[3].input.q", b'"kiwi"', b'"\\ud83d"'),
    ("half a surrogate pair in a result", "messages[2].content[0].content[0].text", b'"3"', b'"\\ud83d"'),
    ("half a surrogate pair in a schema", "tools[0].description", b'"d"', b'"\\udfff"'),
    ("bytes that are not UTF-8", "body", b"Be brief.", b"\xff\xfe"),
    ("bytes that are not UTF-8 in a call", "messages[1].content[3].input", b'"kiwi"', b'"\xff"'),
    ("bytes that are not UTF-8 in a name of a call", "messages[1].content[3].input", b'"q"', b'"\xc3"'),
    ("bytes that are not UTF-8 in a result", "messages[2].content[0].content", b'"3"', b'"\xff"'),
    ("bytes that are not UTF-8 in a schema", "tools", b'"d"', b'"\xff"'),
    ("a trailing comma", "body", b'"top_k": 5', b'"top_k": 5,,'),
    ("a raw line break in a string", "body", b"Be brief.", b"Be\nbrief."),
    ("a raw line break in a call", "body", b'"kiwi"', b'"ki\nwi"'),
    ("a number that is none in a call", "messages[1].content[3].input.q", b'"kiwi"', b"NaN"),
    ("a schema nested 300 deep", "tools[0].input_schema", b'{"type": "object"}', DEEP),
    ("an answer's schema nested 300 deep", "output_config.format.schema", b'{"type": "array"}', DEEP),
    ("a call nested 100,000 deep", "body", b'{"q": "kiwi"}', b'{"q": ' + ABYSS + b"}"),
    ("a result nested 100,000 deep", "body", b'{"type": "text", "text": "3"}', ABYSS),
    ("tools nested 100,000 deep", "body", b'{"type": "object"}', ABYSS),
    ("an unknown field nested 100,000 deep", "body", b'"top_k": 5', b'"zz": ' + ABYSS),
    ("a tool chosen where there are none", "tool_choice.name", b'"tools"', b'"no_tools"'),
]

_HI = {"role": "user", "content": "hi"}


def _more(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [_HI], **fields}).encode()


WHOLE: list[tuple[str, str, bytes]] = [
    *no_bodies(VALID),
    ("any without tools", "tool_choice", _more(tool_choice={"type": "any"})),
    ("10,001 messages", "messages", _more(messages=[_HI] * 10_001)),
    ("513 tools", "tools", json.dumps(VALID | {"tools": VALID["tools"] * 513}).encode()),
    ("no format of the beta", "output_format.schema", _more(output_format={"type": "json_schema"})),
    ("a url that is none", "messages[0].content[0].source.url", _more(messages=[
        {"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}
    ])),
    ("an image as a system prompt", "messages[1].content[0].type", _more(messages=[
        _HI, {"role": "system", "content": [{"type": "image"}]}
    ])),
]  # fmt: skip

MESSAGES = Spoiling(VALID, WRONG, SPELT, WHOLE)
