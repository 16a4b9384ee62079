"""Where files of whole groups go: what a URL may be, and how a store is written to and read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest
from sandgate.gateway.delivery import storage

WRONG: dict[str, tuple[str, str]] = {
    "a relative path, in a pod": ("out/files", "neither a URL nor an absolute path"),
    "a scheme that nobody knows": ("nowhere://bucket/x", "nowhere"),
    "one that is read only": ("https://bucket.example.com/x", "https cannot be written to; use s3://"),
    "a file's URL that is relative": ("file://out/files", "is relative; file:///"),
    "a store without its bucket": ("s3:///x", "names no bucket: s3://bucket/folder"),
    "one whose package is not installed": ("dbfs+none://x/y", "dbfs"),
    "a setting that S3 does not have": (
        "s3://bucket/x?endpoint=minio:9000",
        "parameter in S3 URI: 'endpoint'",
    ),
    "a setting that GCS does not have": ("gs://bucket/x?region=eu", "parameter in GCS URI: 'region'"),
    "another value than a setting has": ("s3://bucket/x?scheme=htp", "scheme 'htp'"),
    "a blank that is not spelt %20": ("s3://bucket/a b", "syntax error at character ' '"),
    "a folder without a name": ("s3://bucket//x", "no empty name"),
    "a folder above": ("s3://bucket/a/../x", r"nor \. or \.\."),
}


@pytest.mark.parametrize(("url", "says"), WRONG.values(), ids=WRONG)
def test_a_url_that_no_retry_can_help_is_refused_at_the_start(url: str, says: str) -> None:
    with pytest.raises(BadManifest, match=says) as error:
        storage.check(url)
    assert error.value.field == "output.parquet"


TAKEN = (
    "s3://bucket/a%20b",
    "s3://bucket",
    "s3://bucket/",
    "s3://bucket/x#y",
    "gs://bucket/x",
    "gcs://bucket",
)


@pytest.mark.parametrize("url", TAKEN)
def test_no_store_is_asked_whether_its_url_is_well(url: str) -> None:
    storage.check(url)


@pytest.mark.parametrize("url", ["local", "memory://shelf/folder"])
def test_a_storage_reads_what_it_wrote(tmp_path: Path, url: str) -> None:
    shelf = storage.storage(str(tmp_path / "out") if url == "local" else url)
    assert shelf.read("q.parquet") is None
    shelf.put("q.parquet", b"rows")
    assert shelf.read("q.parquet") == b"rows"


REFUSALS: dict[str, tuple[OSError, bool]] = {
    "a bucket that may only be written": (
        OSError(5, "AWS Error ACCESS_DENIED during HeadObject operation"),
        False,
    ),
    "a folder that may only be written": (PermissionError(13, "no"), False),
    "one that is away": (OSError(5, "AWS Error NETWORK_CONNECTION during HeadObject operation"), True),
    "one that is away, whose name says something else": (
        OSError(
            5, "of key 'q.parquet' in bucket 'forbidden': AWS Error NETWORK_CONNECTION during HeadObject"
        ),
        True,
    ),
    "one that is called as what it says": (
        OSError(5, "of key 'q.parquet' in bucket 'forbidden': AWS Error ACCESS_DENIED during HeadObject"),
        False,
    ),
}


@pytest.mark.parametrize(("error", "raised"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_read_is_no_reason_not_to_write(error: OSError, raised: bool) -> None:
    class Refuses:
        def get_file_info(self, path: str) -> Any:
            raise error

    shelf = storage.RemoteFolder(Refuses(), "forbidden")
    with pytest.raises(OSError, match="NETWORK") if raised else contextlib.nullcontext():
        assert shelf.read("q.parquet") is None


@pytest.fixture
def refusing() -> Iterator[tuple[int, list[str]]]:
    """A bucket that refuses what is written to it: its port, and what it was asked."""
    asked: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.close_connection = True
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_PUT()

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], asked
        server.shutdown()


@pytest.mark.parametrize("settings", ["", "&allow_delayed_open=false"])
def test_a_small_file_that_a_bucket_refuses_leaves_no_parts_in_it(
    refusing: tuple[int, list[str]], settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload in parts that is not completed stays, unseen, and is paid for; unless the URL wants it so."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret-of-anybody")
    port, asked = refusing
    url = f"s3://bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1{settings}"
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        storage.storage(url).put("q.parquet", b"rows")
    assert asked == ["POST /bucket/x/q.parquet?uploads" if settings else "PUT /bucket/x/q.parquet"]
