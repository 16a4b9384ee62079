"""Bounds of a session's rows: what its trainer takes of a prompt and of what follows, held before sampling. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sandgate.contract.errors import PromptTooLong
from sandgate.gateway.conversation.tree import Tree

PROMPT, RESPONSE = "prompt_tokens", "response_tokens"
"""Members of a session's `limits`; absent: as its gateway has it; 0: no bound."""


class Defaults(Protocol):
    """A gateway's own, of its settings."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def response_tokens(self) -> int: ...


def bounds(own: Mapping[str, Any] | None, gateways: Defaults) -> dict[str, int]:
    """Of one session: its own, else its gateway's."""
    said = own or {}
    return {
        name: getattr(gateways, name) if said.get(name) is None else said[name] for name in (PROMPT, RESPONSE)
    }


def most(limits: Mapping[str, int], window: int) -> int:
    """Tokens that any prompt of the session may have, with its answer."""
    prompt, response = limits.get(PROMPT) or 0, limits.get(RESPONSE) or 0
    return min(window, prompt + response) if prompt and response else window


def window_of(limits: Mapping[str, int], window: int, tree: Tree, parent: str | None, prompt: int) -> int:
    """Tokens that this turn's prompt and answer may have. `prompt`: those of its prompt; `parent`: the turn it goes on
    from. The row that it will be in begins with the prompt of that conversation's first turn: so much may not be more
    than `prompt_tokens`, and all that comes after it not more than `response_tokens`. Raises PromptTooLong."""
    first = prompt if parent is None else len(tree.path(parent)[0].context)
    bound, response = limits.get(PROMPT) or 0, limits.get(RESPONSE) or 0
    if bound and first > bound:
        raise PromptTooLong(tokens=first, limit=bound)
    return min(window, first + response) if response else window
