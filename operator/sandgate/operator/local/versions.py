"""Keeps beside a local run's journals how many policy versions its trainer has published, for the run that goes on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from sandgate.operator.local.files import replace


def read(path: Path) -> tuple[int, int, int | None] | None:
    """The newest version, how many there were, and how many groups were acknowledged by then (None: a release before
    kept no such). None: nobody kept them, or something else stands there. Blocks."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(path.read_text("utf-8"))
        done = kept.get("done")
        return int(kept["version"]), int(kept["published"]), None if done is None else int(done)
    return None


def write(path: Path, version: int, published: int, done: int | None) -> None:
    """A kill between two versions loses nothing: the next run sees by how much the gateways' is higher. Blocks."""
    replace(path, json.dumps({"version": version, "published": published, "done": done}))
