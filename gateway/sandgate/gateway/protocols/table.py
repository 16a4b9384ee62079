"""URL paths and their API dialects. A new dialect is a new row. (pure)"""

from __future__ import annotations

from sandgate.gateway.protocols.anthropic_messages import AnthropicMessages
from sandgate.gateway.protocols.base import Adapter
from sandgate.gateway.protocols.openai_chat import OpenAIChat
from sandgate.gateway.protocols.openai_completions import OpenAICompletions
from sandgate.gateway.protocols.openai_responses import OpenAIResponses
from sandgate.gateway.protocols.token_generate import TokenGenerate

ADAPTERS: dict[str, Adapter] = {
    "/chat/completions": OpenAIChat(),
    "/completions": OpenAICompletions(),
    "/messages": AnthropicMessages(),
    "/responses": OpenAIResponses(),
    "/inference/v1/generate": TokenGenerate(),
}
"""Path without `/v1` -> adapter."""

COUNTERS: dict[str, tuple[Adapter, dict[str, str]]] = {
    "/messages/count_tokens": (ADAPTERS["/messages"], {}),
    "/responses/input_tokens": (ADAPTERS["/responses"], {"object": "response.input_tokens"}),
}
"""Path without `/v1` -> (adapter, fields of the answer beside `input_tokens`), of requests whose prompt is counted and
not sampled after."""

FALLBACK: Adapter = ADAPTERS["/chat/completions"]
"""The adapter that words the errors of paths that belong to no dialect."""


def adapter_for(path: str) -> Adapter | None:
    """The adapter of a path below the session. `/v1` may be missing (AReaL's agents) or doubled (Anthropic's SDKs)."""
    return ADAPTERS.get(_bare(path))


def counter_for(path: str) -> tuple[Adapter, dict[str, str]] | None:
    """What COUNTERS has for a path."""
    return COUNTERS.get(_bare(path))


def _bare(path: str) -> str:
    for _ in range(2):
        path = path.removeprefix("/v1")
    return path
