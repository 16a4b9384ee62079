"""A Postgres server of the tests' own, on loopback; skipped with the reason where there is none."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def binary(name: str) -> str:
    """Debian keeps them out of the PATH."""
    found = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    if found is None:
        pytest.skip(f"no {name}: Postgres is not installed")
    return found


class Server:
    """One server, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.who = "postgres" if os.geteuid() == 0 else None
        """It refuses to run as root."""

    def _run(self, name: str, *args: str) -> None:
        with (self.folder / "log").open("ab") as log:  # no pipe: the server would keep it open
            subprocess.run(
                (binary(name), "-D", str(self.folder / "data"), *args),
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self.who,
            )

    def init(self) -> None:
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync")

    def copy(self, primary: Server) -> None:
        """Instead of `init`: it will be the other's hot standby, an asynchronous one."""
        copying = (
            binary("pg_basebackup"),
            "-d",
            primary.dsn,
            "-D",
            str(self.folder / "data"),
            "-R",
            "-c",
            "fast",
        )
        subprocess.run(copying, check=True, stdin=subprocess.DEVNULL, cwd="/", user=self.who)

    def promote(self) -> None:
        """The standby becomes a primary of its own."""
        self._run("pg_ctl", "promote", "-w")

    def start(self) -> None:
        """Returns when it answers."""
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-o", settings)

    def crash(self) -> None:
        """All its processes die; connections break, and nothing is flushed."""
        self._run("pg_ctl", "stop", "-m", "immediate")

    def sql(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """One statement; its rows, if it gives any."""
        import psycopg  # type: ignore[import-not-found, unused-ignore]

        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as db:
            cursor = db.execute(statement, args or None)
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def server(*, of: Server | None = None) -> Iterator[Server]:
    """A fresh one, or a hot standby of another."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        pytest.skip(f"Postgres runs as no user without a name, as {os.geteuid()} is here")
    with tempfile.TemporaryDirectory(prefix="sandgate-postgres-") as name:
        found = Server(Path(name))
        if found.who:
            shutil.chown(name, user=found.who)
        if of is None:
            found.init()
        else:
            found.copy(of)
        found.start()
        try:
            yield found
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have left it dead
                found.crash()
