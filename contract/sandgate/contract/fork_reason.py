"""Fork reasons: why a turn starts a new root or leaves its branch, as records have it. (pure)"""

from __future__ import annotations

from enum import StrEnum


class ForkReason(StrEnum):
    """Why a turn starts a new root or leaves its branch. A fork is data, not an error."""

    NEW_ROOT = "new_root"
    """A later conversation of the session that shares nothing with an earlier one."""
    SYSTEM_CHANGED = "system_changed"
    """Same history under another system prompt."""
    TOOLS_CHANGED = "tools_changed"
    """Same history under other tools."""
    TEMPLATE_KWARGS_CHANGED = "template_kwargs_changed"
    """Same history under other variables of the chat template (`chat_template_kwargs`, `reasoning_effort`)."""
    ASSISTANT_EDITED = "assistant_edited"
    """An assistant turn came back as something that was not sampled."""
    ASSISTANT_DROPPED = "assistant_dropped"
    """A sampled assistant turn was left out of the history."""
    USER_OR_TOOL_EDITED = "user_or_tool_edited"
    """A user or tool message differs from what was sent before."""
    HISTORY_TRUNCATED = "history_truncated"
    """The history is a proper part of what was said before; also of a call that was let go of, and committed when the
    next one had been asked."""
    COMPACTION = "compaction"
    """The client replaced its history by a summary, or asks for that summary."""
    SIDE_CALL = "side_call"
    """A title, summary, sub-agent or judge call beside the main conversation."""
    RETRY_RESAMPLED = "retry_resampled"
    """The same request was sampled again."""
    TEMPLATE_NOT_ADDITIVE = "template_not_additive"
    """The tail cannot be proved to render on its own for this chat template."""
    HISTORY_REWRITTEN_BY_TEMPLATE = "history_rewritten_by_template"
    """History policy `template`: the template renders the past differently than it was sampled."""
    MULTIMODAL_NOT_BRIDGEABLE = "multimodal_not_bridgeable"
    """Images or videos in the tail and no family renderer that can bridge them."""
    TOKENS_DIFFER = "tokens_differ"
    """Messages agree but ids do not: the stored ids are not the head of the prompt."""
