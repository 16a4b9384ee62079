"""A program's output, kept in a file: bounded, and without secrets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

CHUNK = 65536
TAIL_BYTES = 600
"""Kept for the detail of a failure: the last line or two of a traceback."""
HIDDEN = b"[key]"


class Redactor:
    """Replaces secrets in a stream of bytes, also those that two chunks share."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = sorted((one.encode() for one in secrets if one), key=len, reverse=True)
        self._keep = max((len(one) for one in self._secrets), default=1) - 1
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """What is certain by now."""
        text = self._hide(self._rest + chunk)
        cut = max(0, len(text) - self._keep)
        # Only what could still become a secret is kept back.
        while cut < len(text) and not self._may_begin(text[cut:]):
            cut += 1
        self._rest = text[cut:]
        return text[:cut]

    def end(self) -> bytes:
        """The rest."""
        rest, self._rest = self._rest, b""
        return rest

    def _hide(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _may_begin(self, text: bytes) -> bool:
        return any(secret.startswith(text) for secret in self._secrets)


class Log:
    """Reads a pipe into a file until all writers are gone."""

    def __init__(self, path: Path, secrets: Sequence[str], limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._redact = Redactor(secrets)
        self._left = limit
        self._limit = limit
        self._tail = b""
        self._pipe = -1
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def follow(self, pipe: int) -> None:
        """Take over the read end of a pipe."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        asyncio.get_running_loop().add_reader(pipe, self._readable)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._write(self._redact.feed(chunk))
        else:
            self._end()

    def _write(self, text: bytes) -> None:
        self._tail = (self._tail + text)[-TAIL_BYTES:]
        if self._left > 0:
            self._file.write(text[: self._left])
            self._left -= len(text)
            if self._left <= 0:
                self._file.write(b"\n[log cut at %d bytes]\n" % self._limit)

    def _end(self) -> None:
        if self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
            self._write(self._redact.end())
            self.close()
        if not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def drain(self, timeout_s: float) -> None:
        """Until all is read; at most `timeout_s`, then the rest is lost."""
        await asyncio.wait([self._ended], timeout=timeout_s)
        self._end()

    @property
    def tail(self) -> str:
        """The last of it, from the beginning of a line where there is one."""
        text = self._tail
        if len(text) >= TAIL_BYTES and b"\n" in text:
            text = text[text.index(b"\n") + 1 :]
        return text.decode("utf-8", "replace").strip()
