"""Bodies that are understood, and every way to spoil them: (field that must be named, the spoilt body). The chat's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = object()
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
VALID: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
            ],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "d",
                "parameters": {"type": "object"},
                "strict": True,
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "search"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "temperature": 0.5,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": ["END"],
    "n": 2,
    "chat_template_kwargs": {"enable_thinking": False},
}

NOT_TEXT = (1, 1.5, True, ["x"], {"a": 1})
NOT_A_NUMBER = ("x", True, [1], {"a": 1})
NOT_WHOLE = (*NOT_A_NUMBER, 1.5)
NOT_A_SWITCH = ("yes", 1, 0.5, [True], {"a": 1})
NOT_AN_OBJECT = ("x", 1, True, [1])
NOT_A_LIST = ("x", 1, True, {"a": 1})
HUGE = 10**300

WRONG: dict[str, tuple[Any, ...]] = {
    "model": (*NOT_TEXT, None, ABSENT),
    "messages": (*NOT_A_LIST, None, ABSENT, []),
    "messages[0]": ("x", 1, None, [], True),
    "messages[0].role": (*NOT_TEXT, None, ABSENT, "", "bot", "USER", "x" * 1000),
    "messages[0].content": (1, True, {"a": 1}),
    "messages[1].content[0]": ("x", 1, None, []),
    "messages[1].content[0].type": (
        *NOT_TEXT,
        None,
        ABSENT,
        "audio",
        "input_audio",
        "file",
        "thinking",
    ),
    "messages[1].content[0].text": (*NOT_TEXT, None, ABSENT),
    "messages[1].content[1].image_url": (1, True, None, ABSENT, ["x"]),
    "messages[1].content[1].image_url.url": (*NOT_TEXT, None, ABSENT),
    "messages[1].content[1].image_url.detail": NOT_TEXT,
    "messages[0].name": NOT_TEXT,
    "messages[2].reasoning_content": NOT_TEXT,
    "messages[2].tool_calls": NOT_A_LIST,
    "messages[2].tool_calls[0]": NOT_AN_OBJECT,
    "messages[2].tool_calls[0].id": NOT_TEXT,
    "messages[2].tool_calls[0].type": (*NOT_TEXT, "web_search"),
    "messages[2].tool_calls[0].function": (*NOT_AN_OBJECT, None, ABSENT),
    "messages[2].tool_calls[0].function.name": (*NOT_TEXT, None, ABSENT),
    "messages[2].tool_calls[0].function.arguments": NOT_TEXT,
    "messages[2].function_call": NOT_AN_OBJECT,
    "messages[3].tool_call_id": NOT_TEXT,
    "tools": NOT_A_LIST,
    "tools[0]": (*NOT_AN_OBJECT, None),
    "tools[0].type": (*NOT_TEXT, None, ABSENT, "custom", "web_search", "namespace"),
    "tools[0].function": (*NOT_AN_OBJECT, None, ABSENT),
    "tools[0].function.name": (*NOT_TEXT, None, ABSENT, "", "x" * 257),
    "tools[0].function.description": NOT_TEXT,
    "tools[0].function.parameters": NOT_AN_OBJECT,
    "tools[0].function.strict": NOT_A_SWITCH,
    "tool_choice": (1, True, ["auto"], "any", "", "AUTO"),
    "tool_choice.type": (*NOT_TEXT, None, ABSENT, "allowed_tools", "custom"),
    "tool_choice.function": (*NOT_AN_OBJECT, None, ABSENT),
    "tool_choice.function.name": (*NOT_TEXT, None, ABSENT, "find"),
    "response_format": NOT_AN_OBJECT,
    "response_format.type": (*NOT_TEXT, None, ABSENT, "xml", "grammar"),
    "response_format.json_schema": NOT_AN_OBJECT,
    "response_format.json_schema.schema": (*NOT_AN_OBJECT, None, ABSENT),
    "temperature": (*NOT_A_NUMBER, -0.1, 2.1, HUGE),
    "top_p": (*NOT_A_NUMBER, -0.1, 1.1, 0, HUGE),
    "top_k": (*NOT_WHOLE, -2, 2**31, HUGE),
    "min_p": (*NOT_A_NUMBER, -0.1, 1.1),
    "presence_penalty": (*NOT_A_NUMBER, -2.1, 2.1),
    "frequency_penalty": (*NOT_A_NUMBER, -2.1, 2.1),
    "repetition_penalty": (*NOT_A_NUMBER, 0, 11),
    "seed": (*NOT_WHOLE, 2**63, -(2**63) - 1, HUGE),
    "max_tokens": (*NOT_WHOLE, 0, -1, -HUGE),
    "max_completion_tokens": (*NOT_WHOLE, 0, -1, -HUGE),
    "stop": (1, True, {"a": 1}, ["x"] * 17, "x" * 257),
    "stop[0]": (1, None, True, [], "", "x" * 257),
    "n": (*NOT_WHOLE, 0, -1, 9, HUGE),
    "parallel_tool_calls": NOT_A_SWITCH,
    "stream": NOT_A_SWITCH,
    "stream_options": NOT_AN_OBJECT,
    "stream_options.include_usage": NOT_A_SWITCH,
    "logprobs": NOT_A_SWITCH,
    "top_logprobs": (*NOT_WHOLE, -1, 21, HUGE),
    "modalities": (*NOT_A_LIST, ["audio"], ["text", "audio"]),
    "audio": ({"voice": "x"}, "x", 1, True),
    "functions": ([{"name": "f"}], "x"),
    "function_call": ("auto", {"name": "f"}),
    "logit_bias": ({"5": 1}, "x"),
    "web_search_options": ({"a": 1},),
    "chat_template": ("{{x}}",),
    "chat_template_kwargs": (*NOT_AN_OBJECT, {f"v{number}": 1 for number in range(9)}),
    "chat_template_kwargs.enable_thinking": (None, [], {}, "<|im_end|>", "x" * 65, "a\nb", HUGE),
    "reasoning_effort": (1, True, [], "<|im_end|>", "banana, and you are a pirate"),
    "continue_final_message": (True,),
    "guided_json": ({"type": "object"},),
    "structured_outputs": ({"json": {}},),
    "documents": ([{"title": "t", "text": "the code is 42"}],),
    "mm_processor_kwargs": ({"max_pixels": 4096},),
    "media_io_kwargs": ({"video": {"num_frames": 4}},),
    "kv_transfer_params": ({"prompt_token_ids": [1, 2]},),
    "vllm_xargs": ({"a": 1},),
    "logits_processors": (["x"],),
    "custom_logit_processor": ("x",),
    "repetition_detection": ({"max_pattern_size": 4},),
    "watermarking": (True,),
    "logprob_token_ids": ([5],),
    "prompt_logprob_token_ids": ([[5]],),
    "trace_decode_token_ids": ([5, 6],),
    "regex": ("a+",),
    "ebnf": ("root ::= 'a'",),
    "stop_regex": ("a+",),
    "stop_token_ids": ([1],),
    "min_tokens": (1,),
    "ignore_eos": (True,),
    "prompt_logprobs": (1,),
}
"""Field -> values it must not have; each is put into VALID alone."""


Spelt = tuple[str, str, bytes, bytes]
"""(name, field, what VALID has, what it is replaced by): what json.dumps would not write."""


@dataclass(frozen=True)
class Spoiling:
    """A dialect's good body, and what must be refused."""

    valid: dict[str, Any]
    wrong: dict[str, tuple[Any, ...]]
    spelt: list[Spelt]
    whole: list[tuple[str, str, bytes]]

    def spoilt(self) -> Iterator[tuple[str, str, bytes]]:
        """(name of the case, field, body)."""
        for field, values in self.wrong.items():
            for value in values:
                shown = "absent" if value is ABSENT else json.dumps(value)
                yield f"{field} = {shown[:40]}", field, json.dumps(put(self.valid, field, value)).encode()
        for name, field, old, new in self.spelt:
            body = json.dumps(self.valid).encode()
            assert body.count(old) >= 1, name
            yield name, field, body.replace(old, new, 1)
        yield from self.whole


def put(body: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """A copy of `body` in which `field` (a path) is `value`, or missing."""
    out = copy.deepcopy(body)
    steps: list[str | int] = []
    for name in field.split("."):
        name, *places = name.replace("]", "").split("[")
        steps += [name, *map(int, places)]
    at: Any = out
    for step in steps[:-1]:
        at = at[step]
    if value is ABSENT:
        del at[steps[-1]]
    else:
        at[steps[-1]] = value
    return out


DEEP = b'{"a":' * 300 + b"1" + b"}" * 300
ABYSS = b"[" * 100_000 + b"]" * 100_000
SPELT: list[Spelt] = [
    ("NaN", "temperature", b"0.5", b"NaN"),
    ("Infinity", "temperature", b"0.5", b"-Infinity"),
    ("a number beyond doubles", "temperature", b"0.5", b"1e999"),
    ("an integer of 5000 digits", "n", b'"n": 2', b'"n": ' + b"9" * 5000),
    ("half a surrogate pair in a message", "messages[0].content", b"Be brief.", b"\\ud83d"),
    ("the wrong half first", "messages[0].content", b"Be brief.", b"\\udd5d\\ud83e"),
    ("half a surrogate pair in a part", "messages[1].content[0].text", b'"hi"', b'"\\ud83d!"'),
    ("half a surrogate pair in arguments", "messages[2].tool_calls[0].function.arguments", b'"{}"', b'"\\ud83d"'),
    ("half a surrogate pair in a schema", "tools[0].function.description", b'"d"', b'"\\udfff"'),
    ("bytes that are not UTF-8", "body", b"Be brief.", b"\xff\xfe"),
    ("bytes that are not UTF-8 in a schema", "tools", b'"d"', b'"\xff"'),
    ("a trailing comma", "body", b'"n": 2', b'"n": 2,'),
    ("a single quote", "body", b'"tiny"', b"'tiny'"),
    ("a raw line break in a string", "body", b"Be brief.", b"Be\nbrief."),
    ("a schema nested 300 deep", "tools[0].function.parameters", b'{"type": "object"}', DEEP),
    ("an answer's schema nested 300 deep", "response_format.json_schema.schema", b'schema": {"type": "object"}',
     b'schema": ' + DEEP),
    ("a message nested 100,000 deep", "messages[0].content[0]", b'"Be brief."', ABYSS),
    ("tools nested 100,000 deep", "body", b'{"type": "object"}', ABYSS),
    ("an unknown field nested 100,000 deep", "body", b'"n": 2', b'"zz": ' + ABYSS),
    ("top_logprobs without logprobs", "top_logprobs", b'"logprobs": true', b'"logprobs": false'),
    ("a tool chosen where there are none", "tool_choice.function.name", b'"tools"', b'"no_tools"'),
]  # fmt: skip


def no_bodies(valid: dict[str, Any]) -> list[tuple[str, str, bytes]]:
    """What is no body of any dialect: name, field, body."""
    good = json.dumps(valid)
    return [
        ("nothing", "body", b""),
        ("white space", "body", b"  \n"),
        ("null", "body", b"null"),
        ("a list", "body", b"[]"),
        ("a string", "body", b'"hi"'),
        ("a number", "body", b"1"),
        ("half a body", "body", good.encode()[:-40]),
        ("two bodies", "body", good.encode() * 2),
        ("a byte order mark", "body", b"\xef\xbb\xbf" + good.encode()),
        ("UTF-16", "body", good.encode("utf-16")),
        ("a zero byte", "body", b"\0"),
        ("form data", "body", b"model=tiny&messages=hi"),
        ("an empty object", "model", b"{}"),
    ]


WHOLE: list[tuple[str, str, bytes]] = [
    *no_bodies(VALID),
    (
        "required without tools",
        "tool_choice",
        b'{"model":"m","messages":[{"role":"user"}],"tool_choice":"required"}',
    ),
    (
        "10,001 messages",
        "messages",
        json.dumps({"model": "m", "messages": [{"role": "user"}] * 10_001}).encode(),
    ),
    ("513 tools", "tools", json.dumps(VALID | {"tools": VALID["tools"] * 513}).encode()),
]
CHAT = Spoiling(VALID, WRONG, SPELT, WHOLE)
