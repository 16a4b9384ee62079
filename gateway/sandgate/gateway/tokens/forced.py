"""tool_choice `required` and `named` as vLLM `structured_outputs`. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandgate.gateway.conversation.messages import Tool, ToolChoice
from sandgate.gateway.tokens.grammar import Grammar
from sandgate.gateway.tokens.vocab import Vocab


def structured_outputs(
    grammar: Grammar, vocab: Vocab, tools: Sequence[Tool], choice: ToolChoice
) -> dict[str, Any] | None:
    """A constraint under which the turn must call one of `tools` (or the named one); None if there is none."""
    return None
