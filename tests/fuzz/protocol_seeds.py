"""Good bodies of each dialect, for fuzz_protocols to spoil. Golden requests where there are any; others are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


def good_bodies(dialect: str) -> list[bytes]:
    """Good bodies of a dialect. Raises KeyError for one that has none."""
    golden = [path.read_bytes() for path in sorted(GOLDEN.glob(f"{dialect}/*/request.json"))]
    return golden or [json.dumps(body).encode() for body in BODIES[dialect]]


_COMPLETIONS: list[dict[str, Any]] = [
    {"model": "tiny", "prompt": "Q: 2+2?\nA:", "max_tokens": 16, "temperature": 0, "stop": ["\n"], "n": 2},
    {
        "model": "tiny",
        "prompt": [1, 2, 3, 4],
        "logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {"model": "tiny", "prompt": ["once"], "seed": 7, "top_p": 0.5, "user": "u", "echo": False},
]
_TOOL = {
    "type": "function",
    "name": "search",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": False,
}
_RESPONSES: list[dict[str, Any]] = [
    {"model": "tiny", "input": "Find kiwi.", "instructions": "Be brief.", "max_output_tokens": 64, "temperature": 0.5},
    {
        "model": "tiny", "stream": True, "store": False, "include": ["reasoning.encrypted_content"],
        "tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": "auto"},
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Work in /tmp."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Find kiwi."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "kiwi"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {
                "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "Three.", "annotations": []}],
            },
            {"role": "user", "content": "Thanks."},
        ],
    },
    {
        "model": "tiny", "user": "u", "metadata": {"a": "b"}, "top_p": 0.9,
        "tools": [
            {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}},
            {"type": "namespace", "name": "files", "description": "d", "tools": [_TOOL]},
        ],
        "input": [
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        ],
    },
    {
        "model": "tiny", "input": [{"role": "user", "content": "A list."}], "truncation": "disabled",
        "text": {"format": {"type": "json_schema", "name": "out", "schema": {"type": "array"}, "strict": True}},
        "tools": [_TOOL], "tool_choice": {"type": "function", "name": "search"},
    },
]  # fmt: skip
_IDS: list[dict[str, Any]] = [
    {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 16, "temperature": 0.5}, "stream": True},
    {"token_ids": [7], "sampling_params": {"seed": 1, "top_p": 0.5, "top_k": 5, "stop": ["x"]}},
    {"token_ids": [3, 1], "sampling_params": {"logprobs": 2, "n": 2, "ignore_eos": False}, "model": "tiny"},
]
BODIES = {"openai_completions": _COMPLETIONS, "openai_responses": _RESPONSES, "token_generate": _IDS}
