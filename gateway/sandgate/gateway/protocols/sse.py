"""Server-sent events. (pure)"""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
"""How OpenAI's streams end."""


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event. `data` is JSON on one line: it holds no line break, so it needs no splitting."""
    return b"event: " + name + b"\ndata: " + data + b"\n\n" if name else b"data: " + data + b"\n\n"
