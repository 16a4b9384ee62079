"""Weight updates of SGLang servers: pause, load, label, flush, continue, on all replicas at once."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine.control import Answered, ReplicaControl
from sandgate.gateway.engine.sglang.server_info import ServerInfo

PAUSES = {"abort": "abort", "keep": "retract", "wait": "retract"}
"""Our mode of a pause -> SGLang's. `retract` freezes generations and drops what old weights computed of them; SGLang's
`in_place` would go on with that, and refuses to flush its cache. SGLang has no `wait`: gateways drain before."""


WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""How long SGLang goes on between two pauses (abort: between two looks) until its cache can be cleared, in seconds. A
grammar that compiles takes milliseconds to many seconds; each pause costs what runs its prefill. Together half a
minute, of the 240 s for which gateways hold turns."""

UNTOUCHED = (401, 403, 404, 405, 422)
"""Statuses of a load that was not looked at."""

NOTHING_LOADED = (
    "Failed to get weights iterator",
    "Failed to get model loader",
    "Online weight updates are not supported",
)
"""How 0.5.23's messages begin that come before a tensor is read (model_runner_components/weight_updater.py). All others
may stand for new weights: of a cache that was not cleared, say, or of a "roll back", which reads the new folder
again."""

RANKS = " | "
"""Between the messages of data parallel ranks, each of which loads for itself."""


class _Info(msgspec.Struct):
    weight_version: str


class _Path(msgspec.Struct):
    model_path: str = ""


class _Loaded(msgspec.Struct):
    message: str = ""


class SglangControl(ReplicaControl):
    """See `EngineControl`."""

    missing = "; is this SGLang 0.5.23 or later?"
    doubtful = "make the update again, or start it anew"

    async def pause(self, mode: Literal["abort", "wait", "keep"] = "keep") -> None:
        """Pauses generation. abort: what runs ends now (the gateway resumes it); keep, and wait for what still runs: it
        freezes, and goes on after `resume` with the new weights. The cache is cleared, too: where that is impossible,
        it must be known before the weights are other ones. EngineFailed: it is; let it go on."""
        await self._each(lambda url: self._pause(url, PAUSES[mode]))

    async def _pause(self, url: str, mode: str) -> None:
        """A frozen scheduler does not look at what waits for a grammar, and while something does its cache is not
        cleared: it goes on for a while, with the weights that it has. One that was paused before never does: an update
        left it so, and nobody knows its weights; `reset_prefix_cache` fails then."""
        try:
            before: bool | None = await self._is_paused(url)
        except EngineFailed:  # an older one, which cannot say it
            before = None
        # An abort waits for the end of what it aborts, in a lock that /continue_generation needs: for ever, where the
        # scheduler is frozen.
        mode = "retract" if before else mode
        freezes = mode == "retract"
        await self._ask("POST", url, "/pause_generation", {"mode": mode})
        refused = await self._flush(url)
        for seconds in WAITS_S:
            if refused is None or (freezes and before is not False):
                break
            if freezes:
                await self._ask("POST", url, "/continue_generation", {})
            await asyncio.sleep(seconds)
            if freezes:
                await self._ask("POST", url, "/pause_generation", {"mode": mode})
            refused = await self._flush(url)
        if refused is not None and not before:
            raise EngineFailed(
                "SGLang does not clear its cache, as something waits in it (a grammar that compiles), and new weights "
                f"would go on from what the old ones computed: {refused}"
            )

    async def _flush(self, url: str) -> Answered | None:
        """Its refusal, if it does not clear its cache now."""
        try:
            await self._ask("POST", url, "/flush_cache")
        except Answered as error:
            if error.code != 400:
                raise
            return error
        return None

    async def is_paused(self) -> list[bool]:
        """Whether each replica is paused, or not healthy, which /ready does not tell apart. EngineFailed: it does not
        say (older than 0.5.23)."""
        return await self._each(self._is_paused)

    async def _is_paused(self, url: str) -> bool:
        try:
            await self._ask("GET", url, "/ready")
        except Answered as error:
            if error.code == 503 and not error.body:
                return True
            if error.code >= 500:  # somebody's in between
                raise EngineUnavailable(str(error)) from error
            raise
        return False

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

    async def model_folders(self) -> list[str]:
        """Of each replica: where its weights are from, a folder or an id."""
        return [each.model_path for each in await self._get("/model_info", _Path)]

    async def reset_prefix_cache(self) -> None:
        """Drops what old weights computed. SGLang refuses it while something runs that is not retracted."""
        await self._all("POST", "/flush_cache")

    async def reload_weights(self, path: str) -> None:
        """Loads a checkpoint folder that every replica can read. From then on SGLang names the model by that path."""
        told = {"model_path": path, "abort_all_requests": False, "flush_cache": True}
        await self._load("/update_weights_from_disk", told)

    async def _has_the_old(self, url: str, error: Answered) -> bool:
        """See `ReplicaControl`. One rank answers for those of several machines, which may see other folders, and a
        draft model is loaded behind the model."""
        if error.code in UNTOUCHED:
            return True
        try:
            said = msgspec.json.decode(error.body, type=_Loaded).message
            if error.code != 400 or RANKS in said or not said.startswith(NOTHING_LOADED):
                return False
            told = msgspec.json.decode(await self._ask("GET", url, "/server_info"), type=ServerInfo)
        except (msgspec.DecodeError, UnicodeDecodeError, EngineFailed, EngineUnavailable):
            return False
        return told.speculative_algorithm is None and told.nnodes == 1
