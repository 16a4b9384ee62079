"""How LoRA adapters reach engines: all of them or none, and what no turn can use any more goes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable, Unsupported
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer.trl.served import Saved, ServedAdapters
from tests.gateway.engine.test_replicas import nowhere

HEAD = "sandgate-shop-"
LAYER, LAYERS = "model.layers.0.self_attn.", ("q_proj", "v_proj", "o_proj")


@dataclass
class Gateways:
    """What a fleet is asked, and what it was told."""

    urls: Sequence[str]
    used: list[str] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    old: bool = False

    async def status(self) -> dict[str, dict[str, Any]]:
        return {"g": {} if self.old else {"adapter": "", "adapters": self.used}}

    async def engine_urls(self) -> tuple[str, ...]:
        return tuple(self.urls)

    @asynccontextmanager
    async def weight_update(self, version: int, *, adapter: str) -> AsyncIterator[None]:
        yield
        self.told.append((version, adapter))


@dataclass
class World:
    folder: Path
    gateways: Gateways
    engines: list[ScriptedServer]
    weights: ServedAdapters

    def saved(self, version: int, rank: int = 8) -> Saved:
        """As `save` leaves it."""
        what = f"v{version}-{version:012x}"
        folder = self.folder / what
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
        head = json.dumps({f"base_model.model.{LAYER}{one}.lora_A.weight": {} for one in LAYERS}).encode()
        (folder / "adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
        self.weights._saved = {version: (made := Saved(folder, HEAD + what))}
        return made

    async def publish(self, version: int, rank: int = 8) -> Saved:
        made = self.saved(version, rank)
        await self.weights.publish(self.gateways, version)  # type: ignore[arg-type]  # as much of it as is asked
        return made

    def folders(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def loaded(self) -> list[list[str]]:
        return [sorted(one.player.adapters) for one in self.engines]


@asynccontextmanager
async def world(folder: Path, *ranks: int, away: int = 0) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(ScriptedServer(Player([[1]]), lora_rank=rank)) for rank in ranks
        ]
        urls = [one.url for one in engines] + [nowhere() for _ in range(away)]
        yield World(folder, Gateways(urls), engines, ServedAdapters(folder, "shop", kept=2))


async def test_an_engine_that_refuses_it_leaves_all_as_they_were(tmp_path: Path) -> None:
    async with world(tmp_path, 16, 4) as it:
        first = await it.publish(1, rank=4)
        with pytest.raises(EngineFailed, match="LoRA rank 8 is greater than max_lora_rank 4"):
            await it.publish(2)
        assert it.loaded() == [[first.name]] * 2
        assert it.gateways.told == [(1, first.name)]
        assert first.folder.is_dir()


async def test_an_engine_that_is_away_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path, 16, away=1) as it:
        first = await it.publish(1)
        assert it.loaded() == [[first.name]]
        assert it.gateways.told == [(1, first.name)]
        assert "has no adapter of this version yet, and is not used" in caplog.text


@pytest.mark.parametrize(("away", "why"), [(2, "cannot connect|refused|Connect"), (0, "none is known")])
async def test_with_none_left_nobody_is_told(tmp_path: Path, away: int, why: str) -> None:
    async with world(tmp_path, away=away) as it:
        with pytest.raises(EngineUnavailable, match=f"(?i)no engine can be given the adapter: .*({why})"):
            await it.publish(1)
        assert it.gateways.told == []


async def test_published_again_it_is_loaded_where_it_is_not(tmp_path: Path) -> None:
    async with world(tmp_path, 16, 16) as it:
        first = await it.publish(1)
        it.engines[1].player.restart()
        assert it.loaded() == [[first.name], []]
        assert await it.publish(1) == first
        assert it.loaded() == [[first.name]] * 2
        assert it.gateways.told == [(1, first.name)] * 2


async def test_what_a_turn_in_flight_is_sampled_by_stays_and_the_rest_goes(tmp_path: Path) -> None:
    async with world(tmp_path, 16) as it:
        others = {f"{HEAD}v1-of-somebody": "/x", "sandgate-shop-2-v1-000000000001": "/y", "math": "/z"}
        it.engines[0].player.adapters.update(others)
        first = await it.publish(1)
        it.gateways.used = [first.name]
        later = [await it.publish(version) for version in (2, 3, 10)]
        assert set(it.loaded()[0]) == {first.name, later[-1].name, *others}
        assert it.folders() == sorted((first.folder, later[-2].folder, later[-1].folder))
        it.gateways.used = []
        last = await it.publish(11)
        assert set(it.loaded()[0]) == {last.name, *others}
        assert it.folders() == sorted((later[-1].folder, last.folder))


async def test_what_is_tried_is_gone_again_and_older_gateways_are_named(tmp_path: Path) -> None:
    async with world(tmp_path, 16) as it:
        await it.weights.try_loaded(it.gateways, it.saved(1))  # type: ignore[arg-type]
        assert (it.loaded(), it.folders(), it.gateways.told) == ([[]], [], [])
        it.gateways.old = True
        with pytest.raises(Unsupported, match="gateways that know no adapters: g"):
            await it.weights.try_loaded(it.gateways, it.saved(1))  # type: ignore[arg-type]
        assert it.folders() == []


TARGETS: dict[str, tuple[tuple[str, ...], str]] = {
    "all": ((), ""),
    "all that the adapter has, and others": ((*LAYERS, "up_proj"), ""),
    "some": (
        ("q_proj", f"{LAYER}o_proj"),
        "leaves out layers of the adapter: v_proj; start it without",
    ),
}


@pytest.mark.parametrize(("targets", "why"), TARGETS.values(), ids=TARGETS)
async def test_an_engine_that_would_pass_over_layers_is_refused_by_name(
    tmp_path: Path, targets: tuple[str, ...], why: str
) -> None:
    async with world(tmp_path, 16) as it, ScriptedServer(Player([[1]]), lora_targets=targets) as narrow:
        it.gateways.urls = [*it.gateways.urls, narrow.url]
        if why:
            with pytest.raises(Unsupported, match=f"{narrow.url}: .*{why}"):
                await it.weights.try_loaded(it.gateways, it.saved(1))  # type: ignore[arg-type]
        else:
            await it.weights.try_loaded(it.gateways, it.saved(1))  # type: ignore[arg-type]
        assert it.loaded() == [[]]
        assert narrow.player.adapters == {}


async def test_an_engine_that_does_not_tell_its_arguments_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as it, ScriptedServer(Player([[1]]), dev_mode=False) as closed:
        it.gateways.urls = [closed.url]
        await it.weights.try_loaded(it.gateways, it.saved(1))  # type: ignore[arg-type]
    assert f"{closed.url} does not tell whether it has --lora-target-modules" in caplog.text
