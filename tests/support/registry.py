"""A registry of the tests' own, on loopback: the reference implementation over a folder, without TLS or passwords."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.cluster.harness.programs import binary
from tests.support.waiting import until_now

START_S = 30.0


@contextmanager
def registry(home: Path) -> Iterator[str]:
    """Its `host:port`, while the block runs."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(home / "data")}},
        "http": {"addr": address},
    }
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}  # by default it tells a collector, and there is none
    argv = [str(binary("registry")), "serve", str(home / "config.yaml")]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(argv, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            until_now(lambda: _listens(address), what="the registry listens", within_s=START_S)
            yield address
        finally:
            process.terminate()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0
