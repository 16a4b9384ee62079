"""An S3 of the tests' own, on loopback: versitygw over a folder, and how to look into it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.programs import binary
from tests.support.waiting import until_now

BUCKET = "rollouts"
KEY, SECRET = "tests", "not-a-secret-of-anybody"
START_S = 30.0


@dataclass(frozen=True)
class S3:
    """A server, and its one bucket."""

    port: int
    folder: Path
    """What the bucket holds, as files."""

    def url(self, path: str, endpoint: str) -> str:
        """As `spec.output.parquet.url` has it; `endpoint`: how the writer reaches the server."""
        return f"s3://{BUCKET}/{path}?endpoint_override={endpoint}&scheme=http&region=us-east-1"

    def files(self, path: str) -> list[Path]:
        """What lies in a folder of the bucket."""
        return sorted((self.folder / path).glob("*"))


@contextmanager
def server(home: Path) -> Iterator[S3]:
    """`home`: on a disk with extended attributes. Built when it is missing."""
    program = binary("versitygw")
    bucket = home / BUCKET
    bucket.mkdir(parents=True)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    env = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    argv: list[Any] = [program, "--port", f"127.0.0.1:{port}", "posix", home]
    with (
        (home.parent / "s3.log").open("wb") as log,
        subprocess.Popen(argv, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            until_now(lambda: _listens(port), what="the S3 server listens", within_s=START_S)
            yield S3(port, bucket)
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
