"""Log of a sandbox: a program's output in a file, bounded in size, and without secrets."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

CHUNK = 65536
TAIL_BYTES = 600
"""Bytes kept for the detail of a failure: the last line or two of a traceback."""
ERRORS_BYTES = 4096
"""Bytes kept of stderr alone, however much stdout has meanwhile: the end of a traceback of some depth."""
HIDDEN = b"[key]"

log = logging.getLogger("sandgate.sandbox")


class Redactor:
    """Replaces secrets in a stream of bytes, also those that two chunks share."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = sorted((secret.encode() for secret in secrets if secret), key=len, reverse=True)
        self._keep = max((len(secret) for secret in self._secrets), default=1) - 1
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk. Returns the bytes that cannot be part of a secret any more, with secrets replaced."""
        text = self._hide(self._rest + chunk)
        cut = max(0, len(text) - self._keep)
        # Only what could still become a secret is kept back.
        while cut < len(text) and not self._may_begin(text[cut:]):
            cut += 1
        self._rest = text[cut:]
        return text[:cut]

    def end(self) -> bytes:
        """The rest of the stream."""
        rest, self._rest = self._rest, b""
        return rest

    def _hide(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _may_begin(self, text: bytes) -> bool:
        return any(secret.startswith(text) for secret in self._secrets)


class Log:
    """Reads pipes into a file until all writers are gone."""

    def __init__(self, path: Path, secrets: Sequence[str], limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._secrets = secrets
        self._left = limit
        self._limit = limit
        self._tail = self._errors = b""
        self._pipes: dict[int, Redactor] = {}
        self._stderr = -1
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def follow(self, stdout: int, stderr: int = -1) -> None:
        """Takes over the read ends of one or two pipes, and reads them as they become readable. Lines of the two keep
        their order, but for those of the same moment."""
        self._stderr = stderr
        for pipe in (stdout, stderr):
            if pipe >= 0:
                os.set_blocking(pipe, False)
                self._pipes[pipe] = Redactor(self._secrets)
                asyncio.get_running_loop().add_reader(pipe, self._readable, pipe)

    def _readable(self, pipe: int) -> None:
        try:
            chunk = os.read(pipe, CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._write(pipe, self._pipes[pipe].feed(chunk))
        else:
            self._end(pipe)

    def _write(self, pipe: int, text: bytes) -> None:
        self._tail = (self._tail + text)[-TAIL_BYTES:]
        if pipe == self._stderr:
            self._errors = (self._errors + text)[-ERRORS_BYTES:]
        if self._left > 0:
            kept = text[: self._left]
            self._left -= len(text)
            self._keep(kept if self._left > 0 else kept + b"\n[log cut at %d bytes]\n" % self._limit)

    def _keep(self, text: bytes) -> None:
        """Writes to the file. On a full disk the log ends, and reading goes on: an agent whose pipe is full would wait
        for ever."""
        try:
            self._file.write(text)
        except OSError as error:
            self._left = 0
            log.warning("%s ends here: %s", self._file.name, error.strerror)

    def _end(self, pipe: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe)
        os.close(pipe)
        self._write(pipe, self._pipes.pop(pipe).end())
        if not self._pipes:
            self.close()
            if not self._ended.done():
                self._ended.set_result(None)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    async def drain(self, timeout_s: float) -> None:
        """Waits until all is read, `timeout_s` at most; then the rest is lost."""
        await asyncio.wait([self._ended], timeout=timeout_s)
        for pipe in list(self._pipes):
            self._end(pipe)

    @property
    def tail(self) -> str:
        """The end of the output, from the beginning of a line where there is one."""
        return _whole_lines(self._tail, TAIL_BYTES)

    @property
    def errors(self) -> str:
        """The end of stderr, from the beginning of a line where there is one."""
        return _whole_lines(self._errors, ERRORS_BYTES)


def _whole_lines(text: bytes, limit: int) -> str:
    if len(text) >= limit and b"\n" in text:
        text = text[text.index(b"\n") + 1 :]
    return text.decode("utf-8", "replace").rstrip().lstrip("\r\n")
