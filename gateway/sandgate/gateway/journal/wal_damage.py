"""Finds lost transactions in SQLite's write-ahead log, whose damaged end SQLite drops in silence. (pure)

Source: https://www.sqlite.org/walformat.html, sections 4.1, 4.2 and "The WAL-Index Header".
"""

from __future__ import annotations

import struct

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24


def frames_kept(index: bytes) -> int:
    """How many frames SQLite accepted, from the first bytes of the -shm file (in this machine's byte order)."""
    return int(struct.unpack_from("=I", index, 16)[0]) if len(index) >= 20 else 0


def lost_commits(log: bytes, kept: int) -> int:
    """Transactions of the log's newest generation that end after its first `kept` frames: once synced, now damaged.

    At least as many records are gone. The very last transaction does not count: a process that is killed while it
    writes leaves it just so, and no caller had an answer. What was cut off with the file's end leaves no trace."""
    if len(log) < HEADER_BYTES:
        return 0
    page, salt = struct.unpack_from(">I4x8s", log, 8)
    frame = FRAME_HEADER_BYTES + page
    commits = frames = last_commit = 0
    for offset in range(HEADER_BYTES + kept * frame, len(log) - FRAME_HEADER_BYTES + 1, frame):
        pages_after_commit, seen = struct.unpack_from(">4xI8s", log, offset)
        if seen != salt:  # from here on an older generation
            break
        frames += 1
        if pages_after_commit:
            commits, last_commit = commits + 1, frames
    return commits - (commits > 0 and last_commit == frames)
