"""Writes server-sent events for clients: one line of JSON each. (pure)"""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"
"""How OpenAI's streams end."""


_encode = msgspec.json.Encoder().encode


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event. `data` is JSON."""
    data = one_line(data)
    return b"event: " + name + b"\ndata: " + data + b"\n\n" if name else b"data: " + data + b"\n\n"


def one_line(raw: bytes) -> bytes:
    """The same JSON on one line for every client: some split lines where Unicode does, not only where SSE does
    (Python's `str.splitlines`, and so httpx's `iter_lines`). JSON itself escapes the ASCII ones."""
    if raw.isascii():
        return raw
    return (
        raw.replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
        .replace(b"\xc2\x85", b"\\u0085")
    )


def text_json(text: str) -> bytes:
    """A JSON string on one line."""
    return one_line(_encode(text))
