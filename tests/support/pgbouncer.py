"""PgBouncer before a Postgres of the tests; skipped with the reason where there is none."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.waiting import until_now


@contextlib.contextmanager
def pooler(server: postgres.Server, mode: str, **settings: object) -> Iterator[str]:
    """Its DSN. `mode`: session, transaction, or statement; `settings`: of its own file, besides."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("no pgbouncer: it is not installed")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    ours = {"listen_addr": "127.0.0.1", "listen_port": port, "auth_type": "any", "pool_mode": mode}
    lines = [f"{key} = {value}" for key, value in (ours | {"unix_socket_dir": ""} | settings).items()]
    databases = ["[databases]", f"* = host=127.0.0.1 port={server.port} user=postgres", "[pgbouncer]"]
    with tempfile.TemporaryDirectory(prefix="sandgate-pgbouncer-") as name:
        file = Path(name, "pgbouncer.ini")
        file.write_text("\n".join([*databases, *lines, ""]))
        if server.who:
            shutil.chown(name, user=server.who)
        quiet = subprocess.DEVNULL
        argv = (program, str(file))
        with subprocess.Popen(
            argv, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", user=server.who
        ) as process:
            try:
                until_now(lambda: _listens(port), what="the pooler listens")
                yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
            finally:
                process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
