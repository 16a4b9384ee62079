"""Environments of pinned packages, where scripts/pinned-env.sh puts them; tests/support/needs.py has them built."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built(script: str, argument: str) -> Path | None:
    """What `scripts/SCRIPT ARGUMENT` prints, if it is there."""
    name, pins = {
        "engine-env.sh": ("engine", Path("engine/requirements.lock")),
        "agent-env.sh": (f"agent-{Path(argument).name}", Path(argument) / "requirements.txt"),
        "trainer-env.sh": (f"trainer-{argument}", Path("trainer/envs") / f"{argument}.lock"),
    }[script]
    digest = hashlib.sha256((ROOT / pins).read_bytes()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandgate"
    venv = caches / f"{name}-{digest}"
    return venv if (venv / ".sandgate-ready").exists() and (venv / "bin" / "python").exists() else None


def node_packages(folder: str) -> Path:
    """Where `scripts/node-env.sh FOLDER` put the packages. Raises AssertionError if it was not run."""
    found = node_built(folder)
    assert found is not None, f"scripts/node-env.sh {folder} was not run: tests/support/needs.py"
    return found


def node_built(folder: str) -> Path | None:
    """What `scripts/node-env.sh FOLDER` prints, if it is there."""
    digest = hashlib.sha256((ROOT / folder / "package.json").read_bytes()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandgate"
    made = caches / f"node-{Path(folder).name}-{digest}"
    return made if (made / ".sandgate-ready").exists() else None


def python_of(script: str, argument: str = "") -> Path:
    """Its interpreter. Raises AssertionError: it is made before tests, and this one did not say that it needs it."""
    venv = built(script, argument)
    assert venv is not None, f"scripts/{script} {argument}".rstrip() + " was not run: tests/support/needs.py"
    return venv / "bin" / "python"
