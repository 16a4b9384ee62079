"""New weights into engines that run: what a trainer does before the next round."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.weight_update import Mode
from sandgate.trainer.trl.adapters import adapted, check_adapters, plain
from sandgate.trainer.trl.served import ServedAdapters

KEPT = 2
"""Folders: of the version that is served, and of the one before, which an engine may still be reading."""


class Weights(Protocol):
    """How weights reach the engines. Yours may send them by NCCL. A method `check(model)`, if there is one, is called
    when a trainer is attached, and raises InvalidBody for a model that they cannot publish."""

    def save(self, model: Any, version: int, *, state: dict[str, Any] | None = None) -> None:
        """In the training thread of process 0, before anything is paused. `model`: a transformers model, or one of
        peft. `state`: its weights, where several processes train it; they may not lie in `model`."""
        ...

    async def publish(self, fleet: AsyncFleet, version: int) -> None:
        """When it returns, engines and gateways go on with the new weights, and carry `version`."""
        ...


class FolderWeights:
    """Through a folder that trainer and engines share, and vLLM's own controls (VLLM_SERVER_DEV_MODE=1)."""

    def __init__(
        self,
        folder: Path,
        *,
        urls: Sequence[str] = (),
        mode: Mode = "abort",
        kept: int = KEPT,
        check: bool = True,
    ) -> None:
        """`urls`: of the engines, as seen from here; none: as the gateways see them. `mode`: what happens to
        generations that run. abort: they end, and the gateway takes them up again with the new weights, each token with
        its version and its exact logprob. wait: they end first. keep: they freeze and go on over what the old weights
        computed for their beginning, so their logprobs are of no one version. `kept`: versions that stay in
        `folder`. `check`: as in `Update.reload`."""
        self.looks = check
        self.urls, self.folder, self.mode, self.kept = tuple(urls), folder.absolute(), mode, max(KEPT, kept)

    def served(self, job: str) -> ServedAdapters:
        """Instead of these: adapters alone, through the same folder, of a job of this name (see `Rollouts.attach`)."""
        return ServedAdapters(self.folder, job, urls=self.urls, kept=self.kept)

    def of(self, version: int) -> Path:
        """The checkpoint folder of a version."""
        return self.folder / f"v{version}"

    def check(self, model: Any) -> None:
        """See Weights: adapters that cannot be merged in are refused."""
        check_adapters(model)

    def save(self, model: Any, version: int, *, state: dict[str, Any] | None = None) -> None:
        """See Weights. Adapters are merged in."""
        if adapted(model):
            model, state = plain(model)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".v{version}.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part, state_dict=state)
        shutil.rmtree(self.of(version), ignore_errors=True)
        os.replace(part, self.of(version))
        mine = (
            one for one in self.folder.glob("v[0-9]*") if one.name[1:].isdecimal()
        )  # not those of adapters
        found = sorted(mine, key=lambda one: int(one.name[1:]))
        for old in found[: -self.kept]:
            shutil.rmtree(old, ignore_errors=True)

    async def publish(self, fleet: AsyncFleet, version: int) -> None:
        """See Weights. Raises what `AsyncFleet.weight_update` does; publishing again with the same version is fine."""
        urls = self.urls or await fleet.engine_urls()
        async with fleet.weight_update(version, mode=self.mode, engines=urls) as update:
            await update.reload(str(self.of(version)), check=self.looks)
