"""Turns as the template of the tiny models writes them (examples/shop/model); the makers of the models check it."""

from __future__ import annotations

import json
from typing import Any

Piece = tuple[str, bool]
"""A part of a conversation, and whether the model says it itself: only that is taught."""


def user_turn(request: str) -> str:
    return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"


def tool_turn(answer: str) -> str:
    return (
        f"\n<|im_start|>user\n<tool_response>\n{answer}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def call(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call><|im_end|>'
