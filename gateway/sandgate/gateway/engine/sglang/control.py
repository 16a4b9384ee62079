"""Weight updates of SGLang servers: pause, load, label, flush, continue, on all replicas at once."""

from __future__ import annotations

from typing import Literal

import msgspec

from sandgate.gateway.engine.control import ReplicaControl

PAUSES = {"abort": "abort", "keep": "retract", "wait": "retract"}
"""Our mode of a pause -> SGLang's. `retract` freezes generations and drops what old weights computed of them; SGLang's
`in_place` would go on with that, and refuses to flush its cache. SGLang has no `wait`: gateways drain before."""


class _Info(msgspec.Struct):
    weight_version: str


class SglangControl(ReplicaControl):
    """See `EngineControl`."""

    missing = "; is this SGLang 0.5.23 or later?"

    async def pause(self, mode: Literal["abort", "wait", "keep"] = "keep") -> None:
        """Pauses generation. abort: what runs ends now (the gateway resumes it); keep, and wait for what still runs: it
        freezes, and goes on after `resume` with the new weights."""
        await self._all("POST", "/pause_generation", {"mode": PAUSES[mode]})

    async def resume(self) -> None:
        """Lets the engines generate again."""
        await self._all("POST", "/continue_generation", {})

    async def update_weight_version(self, version: int | str) -> None:
        """Sets the label of tokens that are sampled from now on. Nothing is aborted for it."""
        told = {"new_version": str(version), "abort_all_requests": False}
        await self._all("POST", "/update_weight_version", told)

    async def weight_versions(self) -> list[str]:
        """The label of each replica."""
        return [each.weight_version for each in await self._get("/model_info", _Info)]

    async def reset_prefix_cache(self) -> None:
        """Drops what old weights computed. SGLang refuses it while something runs that is not retracted."""
        await self._all("POST", "/flush_cache")

    async def reload_weights(self, path: str) -> None:
        """Loads a checkpoint folder that every replica can read. From then on SGLang names the model by that path."""
        told = {"model_path": path, "abort_all_requests": False, "flush_cache": True}
        await self._load("/update_weights_from_disk", told)
