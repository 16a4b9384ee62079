"""Storage of output files: a local folder, S3, GCS, HDFS, or any that an installed fsspec knows.

Everything here blocks. Needs the extra `gateway-arrow`; imported where it is used. Credentials come from the
environment.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlencode

from pyarrow import ArrowException, ArrowInvalid, fs

from sandgate.contract.errors import BadManifest
from sandgate.gateway.journal import durable_folders

FIELD = "output.parquet"
BUCKETS = ("s3", "gs", "gcs")
NATIVE = (*BUCKETS, "hdfs", "viewfs")
"""URL schemes of stores that Arrow knows itself; an S3 that is not Amazon's is
`s3://bucket/folder?endpoint_override=host:9000&scheme=http`."""
READ_ONLY = ("http", "https", "data", "github", "zip", "tar", "libarchive", "reference")
"""Schemes that fsspec knows and does not write files to."""

DENIED = ("access_denied", "access denied", "permission denied", "permissiondenied", "forbidden")
"""Words, one of which the stores that Arrow knows say where reading is not allowed; it has no error of its own."""


class Storage(Protocol):
    """A folder that trajectories are written to."""

    def put(self, name: str, data: bytes) -> None:
        """Writes a file. When this returns, the file is `data`, durably; until then it is what it was before, or
        absent.
        Raises what the storage raises."""

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if there is none, or if it may only be written. Raises what the storage raises."""


def check(url: str) -> None:
    """Raises BadManifest for a URL that no retry can help: of an unknown scheme or one that only reads, without a
    bucket, or a relative path."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        if not url.startswith("/"):
            raise BadManifest(f"{FIELD}: {url!r} is neither a URL nor an absolute path", field=FIELD)
    elif scheme in ("file", "local"):
        if not rest.startswith("/"):
            raise BadManifest(f"{FIELD}: {url!r} is relative; {scheme}:///... is absolute", field=FIELD)
    elif scheme in READ_ONLY:
        raise BadManifest(f"{FIELD}: {scheme} cannot be written to; use s3://bucket/folder", field=FIELD)
    elif scheme in BUCKETS:
        if not rest.partition("/")[0]:
            raise BadManifest(f"{FIELD}: {url!r} names no bucket: {scheme}://bucket/folder", field=FIELD)
        _check_bucket(url)
    elif scheme not in NATIVE:
        try:
            from fsspec import get_filesystem_class

            get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise BadManifest(f"{FIELD}: {scheme}: {error}", field=FIELD) from error


def _check_bucket(url: str) -> None:
    """Raises BadManifest. A region is said, because Amazon would be asked for the bucket's."""
    try:
        _, folder = _opened(_said(url, region="us-east-1") if url.startswith("s3:") else url)
    except (ArrowException, ValueError) as error:
        raise BadManifest(f"{FIELD}: {error}", field=FIELD) from error
    if {"", ".", ".."} & set(folder.rstrip("/").split("/")):
        raise BadManifest(f"{FIELD}: {url!r}: a folder has no empty name, nor . or ..", field=FIELD)


def check_folder(url: str) -> None:
    """Makes the folder of a URL that `check` accepted, if it is one of this machine, and writes a file there. Raises
    BadManifest. Others are not asked: a store may be away for a while, and every file in it costs."""
    if (folder := local_folder(url)) is None:
        return
    try:
        durable_folders.make(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "is no folder" if isinstance(error, FileExistsError) else error.strerror or error
        text = f"{FIELD}: cannot write to {folder}: {error.filename or folder}: {why}"
        raise BadManifest(text, field=FIELD) from error


def local_folder(url: str) -> Path | None:
    """The folder, if it is one of this machine. Arrow would take a URL with a blank for a store's."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url)
    return Path(unquote(rest)) if scheme in ("file", "local") else None


def storage(url: str) -> Storage:
    """The folder of a URL that `check` accepted. Raises what the storage raises: S3 is asked for the bucket's
    region."""
    if (local := local_folder(url)) is not None:
        return LocalFolder(local)
    return RemoteFolder(*_opened(url))


def _opened(url: str) -> tuple[Any, str]:
    """The store that Arrow or fsspec knows, and the path in it. Raises ArrowException for a URL that Arrow knows better
    than an fsspec without that store's package."""
    scheme = url.partition("://")[0]
    try:
        return _opened_by_arrow(url, scheme)
    except ArrowException as error:
        import fsspec

        try:
            remote, folder = fsspec.core.url_to_fs(url)
        except ImportError:
            if scheme not in NATIVE:
                raise
            raise error from None
        return fs.PyFileSystem(fs.FSSpecHandler(remote)), folder


def _opened_by_arrow(url: str, scheme: str) -> tuple[Any, str]:
    """A small file is one request to S3. One in parts that is refused leaves them in the bucket, where nobody sees them
    and somebody pays, and each try leaves more."""
    if scheme == "s3":
        with suppress(ArrowInvalid):  # an older Arrow, or a mistake that the next line names
            return fs.FileSystem.from_uri(_said(url, allow_delayed_open="true"))  # type: ignore[no-any-return]
    return fs.FileSystem.from_uri(url)  # type: ignore[no-any-return]


def _said(url: str, **settings: str) -> str:
    """The URL with settings that it does not have."""
    url, mark, fragment = url.partition("#")
    have = {key for key, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    more = urlencode({key: value for key, value in settings.items() if key not in have})
    return f"{url}{'&' if '?' in url else '?'}{more}{mark}{fragment}"


class LocalFolder:
    """A folder of this machine: a volume of the pod. It is made if it is not there."""

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

    def read(self, name: str) -> bytes | None:
        """See Storage. Raises OSError."""
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


class RemoteFolder:
    """A folder of a store whose files are there, whole, once they were closed, as objects are."""

    def __init__(self, system: Any, folder: str) -> None:
        """`system`: a pyarrow FileSystem; `folder`: the path in it."""
        self._system, self._folder = system, folder.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """See Storage."""
        with self._system.open_output_stream(f"{self._folder}/{name}") as out:
            out.write(data)

    def read(self, name: str) -> bytes | None:
        """See Storage. A bucket may let us write and not read: some then say "denied" of what is not there, too."""
        path = f"{self._folder}/{name}"
        try:
            if self._system.get_file_info(path).type == fs.FileType.NotFound:
                return None
            with self._system.open_input_stream(path) as file:
                return bytes(file.read())
        except OSError as error:
            if isinstance(error, PermissionError) or any(word in _without(path, error) for word in DENIED):
                return None
            raise


def _without(path: str, error: OSError) -> str:
    """What an error says, without the names that were ours: a bucket may be called "forbidden-requests"."""
    said = str(error)
    for name in (path, *(f"'{part}'" for part in path.split("/", 1))):
        said = said.replace(name, "")
    return said.lower()
