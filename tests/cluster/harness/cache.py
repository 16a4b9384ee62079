"""Things that take minutes to make, kept outside the clone, one for each state of what they are made from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
"""tests/cluster"""


def cache() -> Path:
    """Everything that was built; safe to delete while no cluster runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sandgate" / "cluster"


MAKES = [True]
"""Whether this process makes what is missing. Not where tests run: tests/support/tiers.py."""


class NotMade(Exception):
    """A part that is missing, where none is made."""


@dataclass(frozen=True)
class Part:
    """`make(folder)` fills the folder. Other `pins`, other text of `inputs` (below tests/cluster) or of what it
    `needs`: another folder."""

    name: str
    make: Callable[[Path], None] = field(repr=False, compare=False)
    pins: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    needs: tuple[Part, ...] = ()
    quick: bool = False
    """It takes seconds: a test may make it."""

    def key(self) -> str:
        digest = hashlib.sha256("\0".join((*self.pins, *(part.key() for part in self.needs))).encode())
        digest.update(hash_of((HERE / name for name in self.inputs), HERE))
        return digest.hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return cache() / f"{self.name}-{self.key()}"

    def ensure(self) -> Path:
        """Its folder, made now if missing; who comes meanwhile waits.

        Raises what `make` raises, and NotMade in a run of tests, which makes nothing within a test's time."""
        folder = self.folder
        if folder.exists():
            return folder
        if not MAKES[0] and not self.quick:
            raise NotMade(
                f"{self.name} was not made: this test does not say that it needs it (tests/support/needs.py)"
            )
        for part in self.needs:
            part.ensure()
        with locked(cache() / f"{self.name}.lock"):
            if not folder.exists():
                print(f"for the test cluster, once: {folder.name}", file=sys.stderr, flush=True)
                unfinished = folder.with_name(f"{folder.name}.unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                self.make(unfinished)
                unfinished.rename(folder)
        return folder


def hash_of(paths: Iterable[Path], root: Path) -> bytes:
    """Of the names and the content of files and of all files in folders."""
    digest = hashlib.sha256()
    for file in sorted(found for path in paths for found in files(path)):
        digest.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.digest()


def files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    yield from (file for file in path.rglob("*") if file.is_file())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
