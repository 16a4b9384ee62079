"""The settings file: what the environment adds, and what is refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest, InvalidBody
from sandgate.gateway.app import gateway
from sandgate.gateway.config import expanded, load
from sandgate.trainer import tinymodel
from tests.support.waiting import until

ENV = {"POD_NAME": "shop-0", "A.b-c": "x", "TWICE": "$(POD_NAME)"}
TEXTS = {
    "text without a reference stays": ("/data/j", "/data/j"),
    "a reference becomes its value": ("http://$(POD_NAME).gw:8000", "http://shop-0.gw:8000"),
    "two references in one text": ("$(POD_NAME)/$(POD_NAME)", "shop-0/shop-0"),
    "names as Kubernetes allows them": ("$(A.b-c)", "x"),
    "an escaped reference is text": ("$$(POD_NAME)", "$(POD_NAME)"),
    "an escaped unset one is text, too": ("$$(NOBODY)", "$(NOBODY)"),
    "a dollar alone is text": ("a$b", "a$b"),
    "a shell's spelling is text": ("${POD_NAME}", "${POD_NAME}"),
    "a value is not read again": ("$(TWICE)", "$(POD_NAME)"),
}


@pytest.mark.parametrize(("text", "want"), TEXTS.values(), ids=TEXTS)
def test_expanded(text: str, want: str) -> None:
    assert expanded(text, ENV, "origin") == want


def _file(folder: Path, **more: Any) -> Path:
    said: dict[str, Any] = {
        "journal": "j",
        "engine": {"urls": ["http://e"]},
        "model": {"name": "m", "tokenizer": "t"},
        "secret_file": "s",
    }
    path = folder / "gateway.json"
    path.write_text(json.dumps(said | more))
    return path


def test_origin_journal_and_node_are_expanded_and_nothing_else(tmp_path: Path) -> None:
    names = {"journal": "/data/$(POD_NAME)", "node": "$(A.b-c)", "job": "$(POD_NAME)"}
    config = load(_file(tmp_path, origin="http://$(POD_NAME):8000", **names), ENV)
    assert (config.origin, config.journal, config.node) == ("http://shop-0:8000", "/data/shop-0", "x")
    assert config.job == "$(POD_NAME)"


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unset variable": ({"journal": "/data/$(NOBODY)"}, "journal", "NOBODY"),
    "no engine, and nothing to wait for": ({"engine": {"urls": []}}, "engine.urls", "engine.wait"),
    "an engine that is not served": (
        {"engine": {"urls": ["u"], "kind": "tgi"}},
        "engine.kind",
        "engine.kind: Invalid enum value 'tgi'; it may be vllm, sglang$",
    ),
    "an engine in no mode that there is": (
        {"engine": {"urls": ["u"], "logprobs_mode": "raw"}},
        "engine.logprobs_mode",
        "'raw'; it may be processed_logprobs, raw_logprobs$",
    ),
    "a key that nobody knows": ({"engine": {"url": "u"}}, "engine", "engine: .*`url`$"),
    "no object at all": ({"engine": ["u"]}, "engine", "Expected `object`, got `array`$"),
    "a host of images with a path": (
        {"media": {"allowed_hosts": ["a.example", "b.example/x"]}},
        "media.allowed_hosts[1]",
        "'b.example/x' is not a host such as",
    ),
    "a port that is none": ({"listen": {"port": 65536}}, "listen.port", "must be 0 to 65535, not 65536$"),
    "a time that ends before it begins": (
        {"limits": {"drain_s": -1}},
        "limits.drain_s",
        "must be 0 to 2147483647, not -1$",
    ),
    "a time without an end": ({"limits": {"retire_s": 1e308}}, "limits.retire_s", r"not 1e\+308$"),
    "fewer sessions than none": ({"limits": {"sessions": -1}}, "limits.sessions", "must be 0 to "),
    "a text that is cut": ({"job": "a\0b"}, "job", "NUL"),
    "an engine of no address": ({"engine": {"urls": ["http://e", "e:8000"]}}, "engine.urls[1]", "base URL"),
    "an engine of no port": (
        {"engine": {"urls": ["http://e:99999"]}},
        "engine.urls[0]",
        "a port is 1 to 65535",
    ),
    "a level that nobody logs at": ({"log_level": "info"}, "log_level", "must be one of CRITICAL, "),
    "no text in a list": ({"engine": {"urls": [5]}}, "engine.urls[0]", "Expected `str`, got `int`$"),
}


@pytest.mark.parametrize(("more", "field", "says"), BAD.values(), ids=BAD)
def test_a_bad_config_names_the_field(tmp_path: Path, more: Any, field: str, says: str) -> None:
    with pytest.raises(BadManifest, match=says) as caught:
        load(_file(tmp_path, **more), ENV)
    assert caught.value.field == field


def test_without_an_engine_it_is_told_to_wait(tmp_path: Path) -> None:
    assert load(_file(tmp_path, engine={"wait": True}), {}).engine.urls == ()


@pytest.mark.parametrize(
    ("peers", "place"),
    [
        ({}, 0),
        ({"count": 4, "name": "$(POD)"}, 3),
        ({"count": 2, "name": "$(POD)"}, 1),
        ({"count": 4, "name": "gateway"}, 0),
        ({"count": 4}, 0),
    ],
    ids=[
        "alone",
        "by the number of its name",
        "beyond the count, as gateways are added",
        "no number",
        "no name",
    ],
)
def test_a_gateways_place_among_its_peers(tmp_path: Path, peers: dict[str, Any], place: int) -> None:
    assert load(_file(tmp_path, peers=peers), {"POD": "shop-gateway-3"}).peers.place == place


def test_a_gateway_is_one_of_its_peers(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match=r"peers\.count"):
        load(_file(tmp_path, peers={"count": 0}), {})


async def test_a_gateway_does_not_start_with_a_temperature_that_no_turn_can_have(tmp_path: Path) -> None:
    config = load(_file(tmp_path, sampling={"temperature": -1}), ENV)
    with pytest.raises(InvalidBody, match=r"sampling\.temperature: must be a number in \[0, 2\]$"):
        async with gateway(config, origin="http://127.0.0.1"):
            pass


LISTENING: dict[str, tuple[str, str, dict[str, bool]]] = {
    "all addresses of both families": ("::", "127.0.0.1", {"127.0.0.1": True, "::1": True}),
    "all of IPv4": ("0.0.0.0", "127.0.0.1", {"127.0.0.1": True, "::1": False}),
    "one of IPv6": ("::1", "[::1]", {"127.0.0.1": False, "::1": True}),
}


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="Linux with IPv6")
@pytest.mark.parametrize(("host", "said", "reached"), LISTENING.values(), ids=LISTENING)
async def test_where_a_gateway_is_reached(
    tmp_path: Path, host: str, said: str, reached: dict[str, bool]
) -> None:
    (tmp_path / "secret").write_text("00" * 32)
    more = {
        "listen": {"host": host},
        "journal": str(tmp_path / "j"),
        "secret_file": str(tmp_path / "secret"),
        "model": {"name": "m", "tokenizer": str(tinymodel.write_tiny_model(tmp_path / "model"))},
        "engine": {"wait": True},
    }
    words = ("-m", "sandgate.gateway.app", "--config", str(_file(tmp_path, **more)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        origin: str = json.loads(await process.stdout.readline())["listening"]
        address, _, port = origin.removeprefix("http://").rpartition(":")
        assert address == said

        async def accepts() -> bool:
            return any(_connects(at, int(port)) for at in reached)

        await until(accepts, what="the gateway accepts connections")
        assert {at: _connects(at, int(port)) for at in reached} == reached
    finally:
        process.terminate()
        await process.communicate()


def _connects(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port)):
        return True
    return False
