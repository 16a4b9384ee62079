"""Fetch the tests of messages that Anthropic's SDK has of itself; print the folder they are in.

    python scripts/fetch_sdk_tests.py

They are another project's files: they are read from its pinned source distribution, as the chat templates are (see
fetch_templates), and never checked in. Running it again costs nothing.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.fetch_templates import Pin, download

PIN = Pin(
    "anthropic",
    "anthropic-2.12.0.tar.gz",
    "571e6d250bcd6bbaf5fd5f3c764b8e11af9901ad2e44b025f8e773c6cc7a7173",
    "tests",
)
"""Of the version that constraints.txt installs."""
SUITES = ("api_resources/test_messages.py", "api_resources/beta/test_messages.py")
"""All that asks a server for messages. The others answer themselves, or are of Anthropic's other products."""
FILES = {"__init__.py", "utils.py", "api_resources/__init__.py", "api_resources/beta/__init__.py", *SUITES}


def folder() -> Path:
    """What holds the package `tests` of the pinned SDK, or will."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "sandgate" / f"anthropic-tests-{PIN.sha256[:12]}"


def fetch() -> Path:
    """The folder, filled. Raises OSError (the index does not give the file), ValueError (not the pinned one)."""
    ready = folder()
    if ready.is_dir():
        return ready
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix="anthropic-tests-") as temporary:
        made = Path(temporary) / "made"
        for name, data in _files(download(PIN)):
            (made / PIN.inside / name).parent.mkdir(parents=True, exist_ok=True)
            (made / PIN.inside / name).write_bytes(data)
        try:
            made.rename(ready)
        except OSError:
            if not ready.is_dir():  # not a second run that was faster
                raise
    return ready


def _files(data: bytes) -> Iterator[tuple[str, bytes]]:
    top = f"{PIN.file.removesuffix('.tar.gz')}/{PIN.inside}/"
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        for member in source:
            opened = source.extractfile(member) if member.name.removeprefix(top) in FILES else None
            if opened is not None:
                yield member.name.removeprefix(top), opened.read()


if __name__ == "__main__":
    print(fetch())
