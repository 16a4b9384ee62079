"""LoRA adapters that engines serve as such: each update loads one more, beside weights that stay as they are."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.errors import EngineFailed, EngineUnavailable, Unavailable, Unsupported
from sandgate.gateway.engine.control import AdapterControl, EngineControl
from sandgate.gateway.engine.labels import number_of
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.trl.lora import check_lora

log = logging.getLogger(__name__)

FILES = ("adapter_model.safetensors", "adapter_config.json")
"""What an engine reads of a folder."""
DIGEST_CHARS = 12
TRIAL = "trial"
"""In place of a version: the adapter that is loaded once when a trainer is attached, and sampled by nobody."""


@dataclass(frozen=True, slots=True)
class Saved:
    """An adapter on disk."""

    folder: Path
    name: str
    """At the engines. It says whose adapter it is, of which version, and the digest of its bytes: a name never means
    two adapters, so that neither a prefix cache nor an engine that has it already can be of another."""


class ServedAdapters:
    """See `Weights`. One adapter of LoRA, in a folder that trainer and engines share; vLLM loads it while it goes on
    sampling. Turns in flight end by the adapter that they began with; one that no turn is sampled by any more is
    unloaded, and its folder removed."""

    def __init__(self, folder: Path, job: str, *, urls: Sequence[str] = (), kept: int) -> None:
        """`urls`, `kept`: see FolderWeights."""
        self.folder, self.job, self.urls, self.kept = folder.absolute(), job, tuple(urls), kept
        self._saved: dict[int, Saved] = {}

    def check(self, model: Any) -> None:
        """See Weights: what is no plain LoRA of linear layers is refused by name."""
        check_lora(model)

    def save(self, model: Any, version: int, *, state: dict[str, Any] | None = None) -> None:
        """See Weights."""
        self._saved = {version: self._save(model, f"v{version}")}

    async def publish(self, fleet: AsyncFleet, version: int) -> None:
        """See Weights. An engine that does not answer is left out, and gateways do not use it before it has the
        adapter. Raises EngineFailed with an engine's words: then nothing has changed."""
        saved = self._saved[version]
        async with _controls(self.urls or await fleet.engine_urls()) as engines:
            await _loaded(engines, saved)
            async with fleet.weight_update(version, adapter=saved.name):
                pass
            await self._tidy(fleet, engines, saved)

    def try_saved(self, model: Any) -> Saved:
        """The adapter as it is now, for `try_loaded`."""
        return self._save(model, TRIAL)

    async def try_loaded(self, fleet: AsyncFleet, saved: Saved) -> None:
        """Each engine loads it and lets it go, so that what an engine refuses is known before anything is trained.
        Raises EngineFailed, Unsupported."""
        try:
            if old := [name for name, one in (await fleet.status()).items() if "adapter" not in one]:
                raise Unsupported(
                    f"gateways that know no adapters: {', '.join(old)}: use those of this version"
                )
            urls = self.urls or await fleet.engine_urls()
            async with _controls(urls) as engines:
                await asyncio.gather(*(_check_label(url) for url in urls))
                layers = await asyncio.to_thread(layers_of, saved.folder / FILES[0])
                await asyncio.gather(*(_check_targets(url, one, layers) for url, one in engines.items()))
                await _loaded(engines, saved)
                await _each(engines, lambda one: _unload(one, {saved.name}))
        finally:
            await asyncio.to_thread(shutil.rmtree, saved.folder, ignore_errors=True)

    def _save(self, model: Any, what: str) -> Saved:
        adapter = check_lora(model)
        part = self.folder / f".{what}.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part, selected_adapters=[adapter], save_embedding_layers=False)
        made = part if adapter == "default" else part / adapter  # where peft puts it
        digest = hashlib.sha256(b"".join((made / file).read_bytes() for file in FILES)).hexdigest()
        saved = Saved(
            self.folder / f"{what}-{digest[:DIGEST_CHARS]}", f"{self._head}{what}-{digest[:DIGEST_CHARS]}"
        )
        if not saved.folder.exists():  # never replaced: an engine may be reading it
            os.replace(made, saved.folder)
        shutil.rmtree(part, ignore_errors=True)
        return saved

    @property
    def _head(self) -> str:
        return f"sandgate-{self.job}-"

    async def _tidy(self, fleet: AsyncFleet, engines: Mapping[str, AdapterControl], saved: Saved) -> None:
        """All gateways were told: nobody asks for an older one again. What a turn in flight is sampled by stays, as
        vLLM may read its folder anew at any step. A failure is no harm: it is done the next time."""
        try:
            used = {name for one in (await fleet.status()).values() for name in one["adapters"]} | {
                saved.name
            }
            ours = re.compile(re.escape(self._head) + rf"(v\d+|{TRIAL})-[0-9a-f]{{{DIGEST_CHARS}}}")

            async def forget(one: AdapterControl) -> None:
                (names,) = await one.names()
                await _unload(one, {name for name in names - used if ours.fullmatch(name)})

            for url, error in (await _each(engines, forget)).items():
                log.warning("old adapters stay at %s: %s", url, error)
        except Unavailable as error:
            log.warning("old adapters stay: %s", error)
            return
        await asyncio.to_thread(self._remove, used)

    def _remove(self, used: Set[str]) -> None:
        """Folders of adapters that are not `used`, but for the last ones."""
        found = sorted(
            (one for one in self.folder.glob("v[0-9]*-*") if one.is_dir()),
            key=lambda one: (int(one.name[1:].partition("-")[0]), one.stat().st_mtime),
        )
        for old in found[: -self.kept]:
            if f"{self._head}{old.name}" not in used:
                shutil.rmtree(old, ignore_errors=True)


@asynccontextmanager
async def _controls(urls: Sequence[str]) -> AsyncIterator[dict[str, AdapterControl]]:
    async with AsyncExitStack() as stack:
        yield {url: await stack.enter_async_context(AdapterControl([url])) for url in urls}


async def _each(
    engines: Mapping[str, AdapterControl], ask: Callable[[AdapterControl], Awaitable[None]]
) -> dict[str, EngineFailed | EngineUnavailable]:
    """All are asked at once; who failed, and why."""
    said = await asyncio.gather(*map(ask, engines.values()), return_exceptions=True)
    failed: dict[str, EngineFailed | EngineUnavailable] = {}
    for url, error in zip(engines, said, strict=True):
        if isinstance(error, EngineFailed | EngineUnavailable):
            failed[url] = error
        elif isinstance(error, BaseException):
            raise error
    return failed


async def _loaded(engines: Mapping[str, AdapterControl], saved: Saved) -> None:
    """Raises EngineFailed if one refused it, and then none has it that had it not before; EngineUnavailable if none
    answers."""
    fresh: list[AdapterControl] = []

    async def load(one: AdapterControl) -> None:
        (names,) = await one.names()
        if saved.name not in names:
            await one.load(saved.name, str(saved.folder))
            fresh.append(one)

    failed = await _each(engines, load)
    refused = [str(error) for error in failed.values() if isinstance(error, EngineFailed)]
    if refused or len(failed) == len(engines):
        await _each({one.urls[0]: one for one in fresh}, lambda one: one.unload(saved.name))
    if refused:
        raise EngineFailed(f"an engine does not serve the adapter: {'; '.join(refused)}")
    if len(failed) == len(engines):
        why = "; ".join(map(str, failed.values())) or "none is known"
        raise EngineUnavailable(f"no engine can be given the adapter: {why}")
    for url, away in failed.items():
        log.warning("%s has no adapter of this version yet, and is not used: %s", url, away)


async def _unload(one: AdapterControl, names: Set[str]) -> None:
    for name in sorted(names):
        await one.unload(name)


def layers_of(adapter: Path) -> list[str]:
    """Names of the layers that an adapter has weights for, as the model has them, from the head of its file."""
    with adapter.open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = (name.partition(".lora_A.")[0] for name in head if ".lora_A." in name)
    return [name.removeprefix("base_model.model.") for name in found]


async def _check_targets(url: str, one: AdapterControl, layers: Sequence[str]) -> None:
    """Raises Unsupported for an engine that would leave out some of these layers, and sample from another policy."""
    try:
        (targets,) = await one.target_modules()
    except EngineFailed as error:
        log.warning(
            "%s does not tell whether it has --lora-target-modules, by which it would pass over layers of an adapter"
            " without a word: %s",
            url,
            error,
        )
        return
    except EngineUnavailable:  # said where it is given the adapter
        return
    left = sorted({name.rpartition(".")[2] for name in layers if not _named(name, targets)})
    if targets and left:
        raise Unsupported(
            f"{url}: --lora-target-modules {' '.join(targets)} leaves out layers of the adapter: {', '.join(left)};"
            " start it without",
            field="adapters",
        )


def _named(layer: str, targets: Sequence[str]) -> bool:
    return layer in targets or layer.rpartition(".")[2] in targets


async def _check_label(url: str) -> None:
    """Raises Unsupported for an engine whose own weights are of some version: not those that adapters are over."""
    async with EngineControl([url]) as control:
        try:
            (label,) = await control.weight_versions()
        except (EngineFailed, EngineUnavailable):  # it tells none: then nobody changes its weights, either
            return
    if number_of(label) is not None:
        raise Unsupported(
            f"{url}: merged weights were published to it (version {label}), and adapters go beside those that an"
            " engine was started with: start it anew",
            field="adapters",
        )
