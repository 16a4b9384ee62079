"""A folder to put whole files into: of this machine, of S3, GCS or HDFS, or of whatever an installed fsspec knows.

Everything here blocks. Needs the extra `gateway-arrow`; imported where it is used. Credentials are the environment's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pyarrow import ArrowException, fs

from sandgate.contract.errors import BadManifest
from sandgate.gateway.journal import durable_folders

FIELD = "output.parquet"
NATIVE = ("file", "s3", "gs", "gcs", "hdfs", "viewfs")
"""Schemes that Arrow brings itself; an S3 that is not Amazon's is
`s3://bucket/folder?endpoint_override=host:9000&scheme=http`."""


class Storage(Protocol):
    """What trajectories are written to."""

    def put(self, name: str, data: bytes) -> None:
        """When this returns, the file of that name is `data`, durably; until then it is what it was before, or absent.
        Raises what the storage raises."""


def check(url: str) -> None:
    """Raises BadManifest for a URL that no retry can help: no kind that is known here, or a relative path."""
    scheme, found, _ = url.partition("://")
    if not found:
        if not url.startswith("/"):
            raise BadManifest(f"{FIELD}: {url!r} is neither a URL nor an absolute path", field=FIELD)
    elif scheme not in NATIVE:
        try:
            from fsspec import get_filesystem_class

            get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise BadManifest(f"{FIELD}: {scheme}: {error}", field=FIELD) from error


def storage(url: str) -> Storage:
    """Of a URL that `check` let pass. Raises what the storage raises: S3 is asked for the bucket's region."""
    try:
        found, folder = fs.FileSystem.from_uri(url)
    except ArrowException:
        import fsspec

        remote, folder = fsspec.core.url_to_fs(url)
        found = fs.PyFileSystem(fs.FSSpecHandler(remote))
    return LocalFolder(Path(folder)) if isinstance(found, fs.LocalFileSystem) else RemoteFolder(found, folder)


class LocalFolder:
    """Of this machine: a volume of the pod. It is made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        """See Storage. Raises OSError."""
        durable_folders.make(self._folder)
        part = self._folder / f".{name}.part"
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / name)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        durable_folders.sync(self._folder)


class RemoteFolder:
    """Where a file is there once it was closed, as objects of a store are."""

    def __init__(self, system: Any, folder: str) -> None:
        """`system`: a pyarrow FileSystem; `folder`: the path in it."""
        self._system, self._folder = system, folder.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """See Storage."""
        with self._system.open_output_stream(f"{self._folder}/{name}") as out:
            out.write(data)
