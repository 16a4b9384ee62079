"""Fetch the tests that Anthropic's and OpenAI's SDKs have of themselves; print the folders they are in.

    python scripts/fetch_sdk_tests.py

They are other projects' files: they are read from the SDKs' pinned source distributions, as the chat templates are (see
fetch_templates), and never checked in. Running it again costs nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.fetch_templates import Pin, download


class Suite(NamedTuple):
    """Tests of one SDK."""

    pin: Pin
    """Of the version that constraints.txt installs."""
    tests: tuple[str, ...]
    """All that asks a server for what we serve. The others answer themselves, or are of other products."""

    @property
    def files(self) -> set[str]:
        """The tests, and what they import."""
        packages = {f"{folder}/__init__.py" for test in self.tests for folder in _above(test)}
        return {"__init__.py", "utils.py", *packages, *self.tests}


SUITES = {
    "anthropic": Suite(
        Pin(
            "anthropic",
            "anthropic-2.12.0.tar.gz",
            "571e6d250bcd6bbaf5fd5f3c764b8e11af9901ad2e44b025f8e773c6cc7a7173",
            "tests",
        ),
        ("api_resources/test_messages.py", "api_resources/beta/test_messages.py"),
    ),
    "openai": Suite(
        Pin(
            "openai",
            "openai-3.52.0.tar.gz",
            "258a4fec3e40b412c58672526ed33f20738c2e4ea27601792e73843af62466af",
            "tests",
        ),
        (
            "api_resources/chat/test_completions.py",
            "api_resources/test_completions.py",
            "api_resources/test_models.py",
            "api_resources/test_responses.py",
            "api_resources/responses/test_input_items.py",
            "api_resources/responses/test_input_tokens.py",
        ),
    ),
}


def folder(sdk: str) -> Path:
    """What holds the package `tests` of the pinned SDK, or will."""
    suite = SUITES[sdk]
    what = json.dumps([suite.pin.sha256, sorted(suite.files)])
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "sandgate" / f"{sdk}-tests-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def ready() -> bool:
    """All are there."""
    return all(folder(sdk).is_dir() for sdk in SUITES)


def fetch() -> list[Path]:
    """The folders, filled. Raises OSError (the index does not give a file), ValueError (not the pinned one)."""
    return [_fetch(sdk) for sdk in SUITES]


def _fetch(sdk: str) -> Path:
    there, suite = folder(sdk), SUITES[sdk]
    if there.is_dir():
        return there
    there.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=there.parent, prefix=f"{sdk}-tests-") as temporary:
        made = Path(temporary) / "made"
        for name, data in _files(suite, download(suite.pin)):
            (made / suite.pin.inside / name).parent.mkdir(parents=True, exist_ok=True)
            (made / suite.pin.inside / name).write_bytes(data)
        try:
            made.rename(there)
        except OSError:
            if not there.is_dir():  # not a second run that was faster
                raise
    return there


def _files(suite: Suite, data: bytes) -> Iterator[tuple[str, bytes]]:
    top = f"{suite.pin.file.removesuffix('.tar.gz')}/{suite.pin.inside}/"
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        for member in source:
            wanted = member.name.removeprefix(top) in suite.files
            opened = source.extractfile(member) if wanted else None
            if opened is not None:
                yield member.name.removeprefix(top), opened.read()


def _above(path: str) -> list[str]:
    """Folders of a path, without the last dot of all."""
    return [str(one) for one in Path(path).parents][:-1]


if __name__ == "__main__":
    print(*fetch(), sep="\n")
