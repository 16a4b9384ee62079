"""AReaL trains on a RolloutJob with sandboxes: the real package's rollout engine and actor, two updates, from a
manifest; agents are processes of this machine."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer import testing, tinymodel
from sandgate.trainer.testing import tiny_player
from tests.trainer.areal.env import ROOT, Areal
from tests.trainer.jobs import AGENT, MANIFEST

ROOMS = (*(ROOT / room for room in ("contract", "gateway", "operator", "sandbox", "trainer")), ROOT)
GROUP = 3
PAGE = ROOT / "docs" / "trainers" / "areal.md"


class ArealServer(ScriptedServer):
    """vLLM as AReaL starts it: with its own endpoints for pauses and weights (areal/engine/vllm_ext)."""

    def __init__(self, player: Player) -> None:
        super().__init__(player, model="tiny", versions=False)
        self.told: list[str] = []

    async def __aenter__(self) -> ArealServer:
        await super().__aenter__()
        return self

    def _controls(self) -> list[web.RouteDef]:
        names = ("areal_pause_generation", "areal_continue_generation", "areal_update_weights")
        return [*super()._controls(), *(web.post(f"/{name}", self._areal) for name in names)]

    async def _areal(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix("/areal_")
        self.told.append(name)
        if name == "pause_generation":
            self.player.pause("abort")
        elif name == "continue_generation":
            self.player.resume()
        return web.json_response({"success": True})


def answers(ids: Any, number: int) -> str:
    """Of three samples some are right, some are wrong, and one agent dies."""
    return ("yes", "no", "die")[number % 3]


def manifest(folder: Path) -> Path:
    tinymodel.write_tiny_model(folder / "model")
    dying = 'if answer["choices"][0]["message"]["content"] == "die":\n    sys.exit(7)\n'
    (folder / "agent.py").write_text(AGENT.replace("sys.exit(0 if", f"{dying}sys.exit(0 if"))
    text = MANIFEST.replace("PYTHON", sys.executable).replace("groupSize: 2", f"groupSize: {GROUP}")
    text = re.sub(r"tasks: .*", "tasks: {queue: {}}", text)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def from_the_page(folder: Path) -> dict[str, Any]:
    """What docs/trainers/areal.md tells AReaL, with the places of this test."""
    (said,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    told: dict[str, Any] = yaml.safe_load(said)
    assert told["workflow_kwargs"].keys() == {"manifest", "out", "command"}
    sandgate = str(Path(sys.executable).with_name("sandgate"))
    told["workflow_kwargs"] = {
        "manifest": str(manifest(folder)),
        "out": str(folder / "out"),
        "command": [sandgate],
    }
    return told


def player() -> Player:
    return tiny_player(answers)


async def told(areal: Areal, folder: Path) -> tuple[dict[str, Any], list[ArealServer]]:
    async with ArealServer(player()) as first, ArealServer(player()) as second:
        code, out, errors = await areal.arun(
            Path(__file__).parent / "check_job.py",
            json.dumps(from_the_page(folder)),
            folder / "out",
            ROOT / "examples" / "shop" / "model",
            *(one.url.removeprefix("http://") for one in (first, second)),
            path=ROOMS,
            seconds=200.0,
            TORCHDYNAMO_DISABLE="1",
        )
    assert code == 0, errors[-6000:] + out[-2000:]
    found: dict[str, Any] = {}
    for line in re.findall(r"^CHECK (.*)$", out, re.MULTILINE):
        found |= json.loads(line)
    return found, [first, second]


@pytest.mark.timeout(240)
def test_two_updates_on_groups_of_a_job_with_each_token_its_version(areal: Areal, tmp_path: Path) -> None:
    found, servers = asyncio.run(told(areal, tmp_path))
    for step in range(2):
        rows = found[f"batch {step}"]
        assert found[f"moved {step}"], "the update changed the weights"
        assert len(rows) >= 2
        for row in rows:
            parts = list(zip(row["versions"], row["loss_mask"], row["logprobs"], strict=True))
            assert {version for version, mask, _ in parts if mask} == {step}, "sampled between two updates"
            assert {version for version, mask, _ in parts if not mask} == {-1}
            assert all(bool(logprob) == bool(mask) for _, mask, logprob in parts)
    stats = found["stats"]
    assert 0.0 < stats["rollout/reward"] < 1.0, "what sessions scored: of advantages the mean is 0"
    for server in servers:
        assert server.told == ["pause_generation", "update_weights", "continue_generation"] * 2
        assert server.player.counts["generations"], "AReaL's servers were found, both of them"
    runs = list((tmp_path / "out").glob("train-*"))
    assert len(runs) == 1, "one run for the engine, however many workflows AReaL made"


@pytest.mark.timeout(120)
async def test_areals_own_agent_by_its_path_and_the_gateway_is_told_the_version(areal: Areal) -> None:
    """By one whose turns a trainer that was killed left on hold; it hears that this one lives."""
    async with (
        ArealServer(player()) as server,
        testing.gateway(lambda ids, number: f"answer {number}") as running,
    ):
        await running.client.pause()
        code, out, errors = await areal.arun(
            Path(__file__).parent / "check_agent.py",
            running.origin,
            running.admin_key,
            server.url.removeprefix("http://"),
            path=ROOMS,
        )
        status = await running.client.status()
    assert code == 0, errors[-6000:]
    assert status["trainer_seen_at"], "an admin's key is no sign of life: heartbeats are"
    assert not status["paused"]
    assert status["update"] == "000000000001.run-7", "AReaL's pause began an update by its trainer's name"
    found: dict[str, Any] = {}
    for line in re.findall(r"^CHECK (.*)$", out, re.MULTILINE):
        found |= json.loads(line)
    assert {version: said["versions"] for version, said in found.items()} == {"0": [0], "5": [5]}
    assert all(said["rewards"][-1] == 0.5 for said in found.values())
