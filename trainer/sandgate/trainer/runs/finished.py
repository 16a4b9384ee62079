"""The result of a finished run, kept in its folder, so that asking for it again needs no engine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.trajectory import Json
from sandgate.trainer.export.files import replacing
from sandgate.trainer.runs import folder

RESULT = "result.json"
"""In the --out folder of a run that ended and told what it gave."""
FORMAT = 1
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a finished run."""

    told: dict[str, Any]
    """As `sandgate run --json` gave it."""
    gone: int
    """Files of groups that are not there any more; their rows are in the merged file."""


def identity(job: RolloutJob, manifest_dir: Path) -> str:
    """Of what was asked for: the manifest as it is understood, and the tasks. Empty if the tasks cannot be read."""
    digest = hashlib.sha256(json.dumps(encode(job), sort_keys=True).encode("utf-8", "surrogatepass"))
    if job.spec.tasks.file is not None:
        try:
            with (manifest_dir / job.spec.tasks.file).open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError:
            return ""
    return digest.hexdigest()


def keep(out: Path, asked: str, told: dict[str, Json]) -> None:
    """Leave in `out` what the run gave, complete or not."""
    merged = out / folder.TRAJECTORIES
    found = {
        "format": FORMAT,
        "asked": asked,
        "trajectories_bytes": merged.stat().st_size if merged.is_file() else None,
        "groups": _groups(out),
        "told": told,
    }
    with replacing(out / RESULT) as file:
        file.write_text(json.dumps(found, ensure_ascii=False, indent=1), "utf-8")


def forget(out: Path) -> None:
    """Remove the result of an earlier run, because a new one begins."""
    (out / RESULT).unlink(missing_ok=True)


def finished(out: Path, asked: str) -> Finished | None:
    """What a run gave that was asked for exactly this, is complete, and whose trajectories are still there; None: run
    it."""
    try:
        found = json.loads((out / RESULT).read_text("utf-8"))
        same = (found["format"], found["asked"]) == (FORMAT, asked)
        whole = (out / folder.TRAJECTORIES).stat().st_size == found["trajectories_bytes"]
        journal = (out / folder.JOURNAL).is_file()
        gone = max(0, int(found["groups"]) - _groups(out))
        told = found["told"]
        complete = told["complete"] is True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Finished(told, gone) if asked and same and complete and whole and journal else None


def _groups(out: Path) -> int:
    return sum(1 for _ in out.glob(folder.GROUPS))
