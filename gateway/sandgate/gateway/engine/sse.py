"""Parses server-sent events of engines: bytes in any pieces -> the `data:` of each event; size limit. (pure)"""

from __future__ import annotations

from sandgate.contract.errors import EngineFailed

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Size limit of one event. A step of a generation is some kB, more with top logprobs."""


class Events:
    """Splits a stream into events. Engines write one `data: JSON` line per event and end with `data: [DONE]`."""

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """`[DONE]` was seen: the stream is whole."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the events that are complete now. Comments and other fields are skipped.

        Raises EngineFailed for an event over EVENT_BYTES_MAX.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EngineFailed(f"an event of the engine's stream is larger than {EVENT_BYTES_MAX} bytes")
        out = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
            elif payload:
                out.append(payload)
        return out
