"""`sandgate key` and `sandgate gateway`: a gateway by hand, as docs/reference/gateway.md shows it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sandgate.contract.keys import Scope, verify
from sandgate.gateway.engine.scripted.script import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer import tinymodel
from sandgate.trainer.cli.command import app, main

SECRET = "ab" * 32


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return path


def ask(*argv: str | Path) -> str:
    said = CliRunner().invoke(app, [*map(str, argv)])
    assert said.exit_code == 0, said.output
    return said.stdout.strip()


def test_a_key_is_the_trainers_of_every_job_unless_told_otherwise(secret: Path) -> None:
    known = verify(bytes.fromhex(SECRET), ask("key", "--secret-file", secret), time.time())
    assert (known.scope, known.job, known.session, known.expires_at) == (Scope.TRAINER, "", "", 0.0)


def test_scope_job_and_expiry_are_in_the_key(secret: Path) -> None:
    told = json.loads(
        ask("key", "--secret-file", secret, "--scope", "admin", "--job", "shop", "--ttl", "60", "--json")
    )
    known = verify(bytes.fromhex(SECRET), told["key"], time.time())
    assert (known.scope, known.job) == (Scope.ADMIN, "shop")
    assert time.time() < known.expires_at <= time.time() + 60
    assert int(told["expires_at"]) == known.expires_at


BAD: dict[str, tuple[list[str], str]] = {
    "a scope of sessions": (["--scope", "agent"], "trainer, admin"),
    "a time that is over": (["--ttl", "-1"], "--ttl"),
    "a time that is none": (["--ttl", "nan"], "--ttl"),
    "a job of half a character": (["--job", "shop\udce9"], "--job"),
    "a job longer than a gateway takes": (["--job", "x" * 254], "--job"),
    "a time without an end": (["--ttl", "inf"], "--ttl"),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_what_is_refused(
    secret: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["key", "--secret-file", str(secret), *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short").write_text("abcd")
    with pytest.raises(SystemExit) as ended:
        main(["key", "--secret-file", str(tmp_path / "short")])
    assert ended.value.code == 2
    assert "at least 16" in capsys.readouterr().err


async def by_hand(folder: Path, secret: Path, **settings: Any) -> asyncio.subprocess.Process:
    """`sandgate gateway` there, with these settings."""
    common = {"journal": str(folder / "journal.sqlite"), "secret_file": str(secret)}
    (folder / "gateway.json").write_text(json.dumps(common | settings))
    return await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("sandgate"), "gateway", "--config", folder / "gateway.json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ},
    )  # fmt: skip


async def test_a_gateway_by_hand_says_where_it_listens_and_takes_the_key(
    tmp_path: Path, secret: Path
) -> None:
    tinymodel.write_tiny_model(tmp_path / "model")
    async with ScriptedServer(Player(["hello"]), model="tiny") as engine:
        model = {"name": "tiny", "tokenizer": str(tmp_path / "model")}
        process = await by_hand(tmp_path, secret, engine={"urls": [engine.url]}, model=model)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                told = json.loads(await process.stdout.readline())
            assert (told["job"], told["model"]) == ("", "tiny")
            headers = {"authorization": f"Bearer {ask('key', '--secret-file', secret)}"}
            async with httpx.AsyncClient(base_url=told["listening"], headers=headers) as http:
                created = await http.post("/v1/sessions", json={"uid": "q1"})
            assert created.status_code == 201
            assert created.json()["base_url"].startswith(told["listening"])
        finally:
            process.terminate()
            async with asyncio.timeout(60):
                assert await process.wait() == 0


async def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path, secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await by_hand(
            tmp_path,
            secret,
            listen={"port": port},
            engine={"urls": ["http://127.0.0.1:9"]},
            model={"name": "tiny", "tokenizer": str(tmp_path)},
        )
        async with asyncio.timeout(60):
            _, said = await process.communicate()
    assert process.returncode == 2
    words = f"error: listen.port: 127.0.0.1:{port}: Address already in use; choose another host or port"
    assert words in said.decode()
    assert not (tmp_path / "journal.sqlite").exists()
