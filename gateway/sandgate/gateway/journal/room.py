"""Room: disk space that is set aside, so that a journal on a full volume still takes what empties it."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOM_BYTES = 32 << 20
"""What a few commits take, and the -wal's way into the file: deleting writes before it frees."""
SHARE = 8
"""At most one part in so many of the volume."""


def volume(journal: Path) -> tuple[float, float]:
    """Bytes free on the volume of the journal, and the volume's size; NaN where they cannot be asked for."""
    try:
        disk = os.statvfs(journal.parent)
    except OSError:
        return math.nan, math.nan
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


@dataclass(slots=True)
class Room:
    """A file of zeros beside the journal. After a write that failed it is taken away, for deletions, leases and
    acknowledgements; nothing else is written before it is there again."""

    path: Path
    size: int
    held: bool = False

    @classmethod
    def beside(cls, journal: Path, size: int) -> Room:
        """Of at most `size` bytes; it is not there yet. Raises OSError."""
        disk = os.statvfs(journal.parent)
        return cls(Path(f"{journal}.room"), min(size, disk.f_blocks * disk.f_frsize // SHARE))

    def take(self) -> bool:
        """Whether it is there now. It is made while as much again is free: what is written next is not to fail at
        once."""
        if not self.held:
            try:
                disk = os.statvfs(self.path.parent)
                there = self.path.stat().st_blocks * 512 if self.path.exists() else 0
                if there + disk.f_bavail * disk.f_frsize < 2 * self.size:
                    raise OSError(errno.ENOSPC, "full")
                self._allocate()
            except OSError:
                self.release()
            else:
                self.held = True
        return self.held

    def release(self) -> None:
        """Its space is free."""
        self.held = False
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _allocate(self) -> None:
        if sys.platform != "linux":
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(self.size, 1))
        finally:
            os.close(fd)
