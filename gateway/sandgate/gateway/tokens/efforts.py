"""Efforts of reasoning: what clients may ask for, and what of it a chat template knows. (pure)"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's and Anthropic's, the least first."""
_THREE = {"minimal": "low", "xhigh": "high", "max": "high"}
"""What becomes of those that not every template with efforts has; gpt-oss's writes the word as it is, and its model was
trained on low, medium and high."""
_NEXT = {"minimal": ("low",), "high": ("xhigh",), "max": ("xhigh", "high"), "xhigh": ("high",)}


def effort_for(asked: str, words: AbstractSet[str]) -> str | None:
    """The effort that a template of these words is told: as asked where it has that word, else the next that it has.
    None: it has no such effort. `words` are all that its code holds, whatever it does with them."""
    if asked in words:
        return asked
    if asked == "none":
        return None
    known = [one for one in _NEXT.get(asked, ()) if one in words]
    return known[0] if known else _THREE.get(asked, asked)
