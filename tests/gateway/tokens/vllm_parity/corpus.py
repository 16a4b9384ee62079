"""Answers as the templates themselves write them: thoughts, words, calls with hostile arguments; and cut. (pure)"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Tool, ToolCall
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.probe_conversations import assistant, user

ASKED = (user("q"),)
TOOLS = (
    Tool(
        "buy",
        "Buys.",
        {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"type": "number"},
                "gift": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "to": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "size": {"enum": ["1", "2"]},
                "tip": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "free": {"description": "Anything."},
            },
        },
    ),
    Tool("look-up_2", "Looks.", {"type": "object", "properties": {}}),
)

STRINGS = {
    "words": "two ripe kiwis",
    "nothing": "",
    "quotes": "she said \"kiwi\" and 'fig'",
    "backslashes": "C:\\new\\table\\",
    "lines": "first\n\n  second\tthird",
    "Unicode": "naïve 你好 🙂 e\u0301",
    "braces": '{"name": "rob", "arguments": {}}] }, {',
    "a number": "007",
    "null": "null",
    "spaces around": " kiwi ",
    "very long": "kiwi, fig; " * 40,
}
"""Values of a string argument."""

MARKERS = (
    "</tool_call>",
    "<tool_call>",
    "</think>",
    "</arg_value>",
    "</parameter>",
    "<|im_end|>",
    "[TOOL_CALLS]",
)
"""Spelt in letters inside an argument: a client's words never become control tokens, and a policy may spell them."""

OTHERS: dict[str, dict[str, Any]] = {
    "no arguments": {},
    "numbers": {"count": -3, "price": 2.5e-7},
    "a whole number that is a float": {"price": 3.0},
    "booleans": {"gift": True},
    "nesting": {
        "to": {"street": {"name": "Ring", "no": [1, [2, {"a": None}]]}, "zip": "1"},
        "tags": ["a", "b, c"],
    },
    "empty nests": {"tags": [], "to": {}},
    "every kind": {"item": "kiwi", "count": 2, "gift": False, "tags": ["x"], "to": {"k": "v"}},
}

TYPES: dict[str, dict[str, Any]] = {
    "JSON in a text that may be null": {"note": '{"version": 1.10}'},
    "a number in a text that may be null": {"note": "12345678901234567890.50"},
    "a boolean in a text that may be null": {"note": "true"},
    "a null that may be a text": {"note": None},
    "a number in a text of a list": {"size": "1"},
    "a number that may be a text": {"tip": 2.5},
    "words that may be a number": {"tip": "ten %"},
    "a number in a text of no type": {"free": "007"},
    "JSON in a text of no type": {"free": "[1, 2.0]"},
}
"""Arguments whose schema leaves more than one type, or none."""

TEXTS = ("", "I look.", "First this.\n\nThen that: 100 %.", "Ünï 🙂")
THOUGHTS = ("", "Hm.", 'One line.\n\nAnother {"a": 1}.')


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled turn."""

    name: str
    prompt: Ids
    ids: Ids
    text: str
    """The visible text that the template was given."""
    calls: list[tuple[str, Any]]
    """The calls that it was given."""
    whole: bool = True
    """False: it was cut."""


def answers(codec: TemplateCodec, seed: int = 0) -> Iterator[Answer]:
    """Every answer that the template can write behind its own generation prompt."""
    for name, text, thought, calls in _said(random.Random(seed)):
        made = _written(codec, text, thought, calls)
        if made is not None:
            given = [(_name(arguments), arguments) for arguments in calls]
            yield Answer(name, *made, text, given)


def cuts(answer: Answer) -> Iterator[Answer]:
    """The answer cut behind each of its tokens but the last."""
    for end in range(1, len(answer.ids)):
        name = f"{answer.name}, cut at {end}"
        yield Answer(name, answer.prompt, answer.ids[:end], answer.text, answer.calls, whole=False)


def _said(dice: random.Random) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    for thought in THOUGHTS:
        for text in TEXTS:
            yield f"text {text!r} behind {thought!r}", text, thought, []
    for name, value in STRINGS.items():
        yield f"a string: {name}", "", "", [{"item": value}]
    for marker in MARKERS:
        yield f"spelt {marker}", "", "", [{"item": f"say {marker} now"}]
    for name, arguments in OTHERS.items():
        yield name, "", "", [arguments]
    for name, arguments in TYPES.items():
        yield name, "", "Hm.", [arguments]
    for number in (1, 2, 3):
        some: list[dict[str, Any]] = [
            {"item": dice.choice(list(STRINGS.values())), **dice.choice(list(OTHERS.values()))}
            for _ in range(number)
        ]
        yield f"{number} calls of any kind", dice.choice(TEXTS), dice.choice(THOUGHTS), some
    yield MIXED, "I look.", "Hm.", [OTHERS["every kind"], {"item": "fig"}]
    yield ONE, "I look.", "Hm.", [OTHERS["every kind"]]


MIXED = "a thought, words and two calls"
ONE = "a thought, words and a call"
"""What is cut at every token; the second where a template takes one call at a time."""


def _name(arguments: dict[str, Any]) -> str:
    return TOOLS[0].name if arguments else TOOLS[1].name


def _written(
    codec: TemplateCodec, text: str, thought: str, calls: Sequence[dict[str, Any]]
) -> tuple[Ids, Ids] | None:
    """The prompt, and what was sampled behind it, without the token that ends it; None if the template cannot."""
    made = [
        ToolCall(f"call_{number:024}", _name(arguments), json.dumps(arguments))
        for number, arguments in enumerate(calls)
    ]
    said = assistant(text, made, thought or None)
    try:
        prompt = codec.render(ASKED, TOOLS)
        whole = codec._conversation((*ASKED, said), TOOLS)
    except BadRequest:
        return None
    if whole[: len(prompt)] != prompt:
        return None
    ids = whole[len(prompt) :]
    end = next((place for place, token in enumerate(ids) if token in codec.stop_ids), len(ids))
    return prompt, ids[:end]
