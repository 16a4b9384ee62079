"""Removes folders that programs of others have filled."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def remove_tree(path: Path) -> None:
    """It is gone afterwards, whatever it was, and whatever modes its folders have: those of Go's module cache are
    read-only. Links are not followed, and nothing beside it is changed. Raises the first OSError, after all that can go
    went."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(mode):
        path.unlink(missing_ok=True)
        return
    removal = _Removal(os.fspath(path))
    try:
        shutil.rmtree(removal.root, onerror=removal.failed)
    except RecursionError as error:
        raise OSError(errno.ENAMETOOLONG, "folders are nested too deep", removal.root) from error
    if removal.errors:
        raise removal.errors[0]


def clear_away(path: Path) -> None:
    """The same for what is in nobody's way: where something stays, the log says so."""
    try:
        remove_tree(path)
    except OSError as error:
        log.warning("%s stays on the disk: %s", path, error)


@dataclass(slots=True)
class _Removal:
    root: str
    errors: list[OSError] = field(default_factory=list)
    _opened: set[str] = field(default_factory=set)
    """Folders whose mode was changed: each once, so that this ends."""

    def failed(self, what: Callable[..., Any], where: str, info: Any) -> None:
        """As shutil.rmtree tells it, which then goes on. What a mode forbade is tried again without it."""
        error: OSError = info[1]
        if isinstance(error, FileNotFoundError):  # it is gone
            return
        folders = [] if where == self.root else [os.path.dirname(where)]
        if what not in (os.unlink, os.rmdir):  # it could not be looked into
            folders.append(where)
        opened = [self._open(folder) for folder in folders if isinstance(error, PermissionError)]
        if not any(opened):
            self.errors.append(error)
        elif what in (os.unlink, os.rmdir):
            self._retry(what, where)
        else:
            shutil.rmtree(where, onerror=self.failed)

    def _retry(self, what: Callable[..., Any], where: str) -> None:
        try:
            what(where)
        except OSError as error:
            self.errors.append(error)

    def _open(self, folder: str) -> bool:
        """Whether it is worth another try."""
        if folder in self._opened or os.path.islink(folder):
            return False
        self._opened.add(folder)
        try:
            os.chmod(folder, 0o700)
        except OSError:  # another's
            return False
        return True
