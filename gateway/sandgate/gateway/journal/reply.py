"""Reply: an assistant message (text, reasoning, tool calls) as parsed from sampled ids and kept in a turn. (pure)"""

from __future__ import annotations

from typing import Literal

import msgspec

ReplyPart = Literal["text", "reasoning", "call"]


class ReplyCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call as parsed from ids. `arguments` is exactly the sampled JSON text, or, for families whose calls
    are not JSON, its compact JSON form."""

    name: str
    arguments: str
    id: str = ""
    """As sampled, for families whose calls print one (Kimi K2, Mistral). Clients get another, `call_id`; the
    model is shown its own again."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """An assistant message. `text` excludes reasoning, tool-call markup and the closer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ReplyCall, ...] = ()
    malformed: tuple[str, ...] = ()
    """Tool-call markup that did not parse; it is also left in `text`, as an engine's own parser leaves it."""
    order: tuple[tuple[ReplyPart, int], ...] = ()
    """In which order the parts were said: kind, and how many characters of it (of calls: how many). Empty for the
    common one: reasoning, then text, then calls."""
