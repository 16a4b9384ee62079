"""Efforts of reasoning: what clients may ask for, and what of it a chat template knows. (pure)"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's and Anthropic's, the least first."""
UNSAID = ("default", "")
"""What clients send to let the model decide: dropped where its template reads no efforts, else refused."""
_THREE = {"minimal": "low", "xhigh": "high", "max": "high"}
"""What becomes of those that few models know, where a template's code does not list what it takes: gpt-oss's writes the
word as it is, and its model was trained on low, medium and high."""
_LISTED = 2
"""Words that a template holds if it lists what it takes: one alone is its default (gpt-oss), or all that it looks for,
and any other word is as good as none (DeepSeek V4's max)."""


def effort_for(asked: str, words: AbstractSet[str]) -> str | None:
    """The effort that a template of these words is told: as asked where it has that word; else, where it lists those
    that it takes, the next above that it has, or below where there is none; else one of three. None: it has no such
    effort. `words` are all that its code holds, whatever it does with them."""
    if asked in words:
        return asked
    if asked == "none":
        return None
    listed = [effort for effort in EFFORTS if effort in words]
    if len(listed) < _LISTED:
        return _THREE.get(asked, asked)
    known = [effort for effort in listed if effort != "none"]
    at = EFFORTS.index(asked)
    return next((effort for effort in known if EFFORTS.index(effort) > at), known[-1])
