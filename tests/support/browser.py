"""A real Chromium without a screen, driven over its debugging pipe; skipped with the reason where there is none.

Protocol: https://chromedevtools.github.io/devtools-protocol/ (JSON messages that end with a NUL byte, on the browser's
file descriptors 3 and 4).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root with it; the pages are ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)
ANSWER_S = 60.0
"""A loaded machine starts a browser in a few seconds."""
MESSAGE_BYTES_MAX = 64 * 2**20


class Page:
    """One tab."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._session: str | None = None

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol; events are passed over. Raises RuntimeError with the browser's words."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        await self._writer.drain()
        async with asyncio.timeout(ANSWER_S):
            while True:
                answer = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if answer.get("id") == number:
                    break
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        """Returns when the document and its scripts are there; the navigation alone is done before it is parsed."""
        gone = await self.call("Page.navigate", url=url)
        assert "errorText" not in gone, gone
        await self.run(
            "new Promise((done) => document.readyState === 'complete' "
            "? done() : addEventListener('load', () => done()))"
        )

    async def run(self, javascript: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = await self.call(
            "Runtime.evaluate", expression=javascript, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, javascript: str) -> Any:
        """The value of an expression as soon as it is truthy; it is looked at whenever the document changes."""
        return await self.run(
            f"""new Promise((resolve, reject) => {{
                const look = () => {{ const found = {javascript}; if (found) resolve(found); return found; }};
                if (look()) return;
                const watch = new MutationObserver(look);
                watch.observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
                setTimeout(() => reject(new Error(document.body.innerText)), {1000 * ANSWER_S / 2});
            }})"""
        )


def program() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    return found


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A browser with one empty tab; all that it writes is in `profile`, and its processes end with it."""
    path = program()
    to_read, to_write = os.pipe(), os.pipe()

    def pipes() -> None:
        os.dup2(to_read[0], 3)
        os.dup2(to_write[1], 4)

    process = await asyncio.create_subprocess_exec(
        path,
        *FLAGS,
        f"--user-data-dir={profile}",
        env={**os.environ, "HOME": str(profile), "XDG_CACHE_HOME": str(profile)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=pipes,
        start_new_session=True,
    )
    os.close(to_read[0])
    os.close(to_write[1])
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MESSAGE_BYTES_MAX)
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(to_write[0], "rb")
    )
    outgoing, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(to_read[1], "wb")
    )
    page = Page(reader, asyncio.StreamWriter(outgoing, protocol, None, loop))
    try:
        await page.attach()
        yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        outgoing.close()
        incoming.close()
