"""Parser of families whose grammar only `renderers` knows: the reply comes when the turn has ended. (pure)"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.tokens.api import ParseDelta
from sandgate.gateway.tokens.jsonslice import sayable
from sandgate.gateway.tokens.reply import ReplyBuilder
from sandgate.gateway.tokens.template_values import tools_json


class HeldParser:
    """`renderers`' own `parse_response` over the whole turn. Deltas come from `finish` only."""

    def __init__(
        self, renderer: Any, prompt: list[int], tools: Sequence[Tool] = (), stop: Sequence[str] = ()
    ) -> None:
        self._renderer = renderer
        self._prompt = prompt
        self._tools = tuple(tools)
        self._ids: Ids = array("i")

    def feed(self, ids: Ids) -> list[ParseDelta]:
        """See `Parser.feed`."""
        self._ids.extend(ids)
        return []

    def finish(self, *, stopped_on: str | None = None, whole: bool = True) -> tuple[list[ParseDelta], Reply]:
        """See `Parser.finish`."""
        parsed = self._renderer.parse_response(
            self._ids.tolist(), tools=tools_json(self._tools), prompt_ids=self._prompt or None
        )
        out = ReplyBuilder()
        reasoning, text = parsed.reasoning_content or "", parsed.content or ""
        if stopped_on and stopped_on in text:
            text = text[: text.rindex(stopped_on)]
        elif stopped_on and not text and stopped_on in reasoning:
            reasoning = reasoning[: reasoning.rindex(stopped_on)]
        out.reasoning(reasoning)
        out.text(text)
        for attempt in parsed.tool_calls:
            if attempt.status.value == "ok" and attempt.name and sayable((attempt.name, attempt.arguments)):
                out.call(ReplyCall(attempt.name, _arguments(attempt.arguments)))
            else:
                out.malformed.append(attempt.raw)
                out.text(attempt.raw)
        return out.take(), out.reply()


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value if value is not None else {}, ensure_ascii=False, separators=(",", ":"))
