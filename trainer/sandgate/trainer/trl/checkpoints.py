"""transformers' checkpoint folders: finds which of them are whole and on disk."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

STATE = "trainer_state.json"
"""What transformers writes last (Trainer._save_checkpoint), before it deletes older checkpoints."""
_NAME = re.compile(r"checkpoint-(\d+)")


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint, for `resume_from_checkpoint`; None if there is none. transformers' own
    `get_last_checkpoint`, and `resume_from_checkpoint=True`, also take one that a kill cut short, and fail. Raises
    OSError where one cannot be read now: with an older one, or none, a training would write over what it has."""
    found = {}
    for path in Path(output_dir).glob("checkpoint-*"):
        named = _NAME.fullmatch(path.name)
        if named is not None and _whole(path, int(named[1])):
            found[int(named[1])] = str(path)
    return found[max(found)] if found else None


def _whole(path: Path, step: int) -> bool:
    try:
        state = json.loads((path / STATE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return isinstance(state, dict) and state.get("global_step") == step


def sync(folder: Path, *, own: bool = True) -> None:
    """Return when every file of the folder is on disk, and the folder's name. What is acknowledged after that is not
    lost with the machine's power. `own`: False = another process writes there too, and may not have begun."""
    for path in (*folder.rglob("*"), folder, folder.parent):
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            if own:
                raise
            continue  # the other one's: it syncs it itself
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
