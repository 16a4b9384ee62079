"""Trajectories of a run as they are handed over: a durable part per lease, merged into one file when the run stops.

A lease is acknowledged only after its part is durable, so a kill at any point loses nothing; what is then handed over
twice is one row in the merged file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.arrow import Merged, merge_parquet, write_parquet
from sandgate.trainer.outdir import TRAJECTORIES

FOLDER = "parts"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Lease ids become file names."""


class Parts:
    """The trajectories of `out`: parts that came, and the file they become."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER

    def add(self, lease_id: str, trajectories: Iterable[Trajectory]) -> int:
        """Make one lease durable; how many rows. The same lease again replaces itself. Raises InvalidBody, OSError:
        then the lease must not be acknowledged."""
        if not NAME.fullmatch(lease_id):
            raise InvalidBody(f"lease id {lease_id!r} is not a file name", field="lease_id")
        return write_parquet(self.folder / f"{lease_id}.parquet", trajectories)

    @property
    def pending(self) -> list[Path]:
        """Parts that are not merged yet, in name order."""
        return sorted(self.folder.glob("[!.]*.parquet"))

    def merge(self) -> Merged:
        """All that ever came in trajectories.parquet, each trajectory once; then the parts are removed. Repeatable
        after a kill at any point. Raises Conflict, CorruptRecord: then everything is left as it is."""
        parts, whole = self.pending, self.out / TRAJECTORIES
        done = merge_parquet([*([whole] if whole.exists() else []), *parts], whole)
        for part in parts:
            part.unlink()
        with suppress(OSError):  # a part came meanwhile, or there never was one
            self.folder.rmdir()
        return done
