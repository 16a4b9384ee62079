"""Gateways and engines that write down what a weight update tells them, and fail where a test says."""

from __future__ import annotations

import asyncio

from sandgate.contract.errors import Conflict, EngineFailed, EngineUnavailable
from sandgate.trainer.client import weight_update


class Log:
    """Gateways and engines that write down what they are told; `fails`: (who, what) that is not answered, or
    "refuses" it."""

    def __init__(self, *fails: tuple[str, str]) -> None:
        self.fails, self.lines = set(fails), list[str]()
        self.generations = 0
        self.hangs: set[tuple[str, str]] = set()
        """(who, what) that is never answered."""
        self.loading, self.may_load = asyncio.Event(), asyncio.Event()
        self.may_load.set()
        self.label = 0
        """The newest that gateways saw on an engine."""
        self.version = 0
        """That gateways were told."""
        self.held: set[str] = set()
        """Gateways that an update before left on hold."""
        self.paused: set[str] = set()
        """Engines that an update before left paused."""
        self.begun = ""
        """The update that began last."""
        self.gateways = {name: Gateway(self, name) for name in ("g0", "g1")}
        self.engines: dict[str, Told] = {name: Told(self, name) for name in ("e0", "e1")}

    def of(self, who: str) -> list[str]:
        return [what for name, what in map(str.split, self.lines) if name == who]


class Told:
    """One of them."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name

    async def _do(self, what: str) -> None:
        await asyncio.sleep(0)
        if (self.name, what) in self.log.hangs:
            await asyncio.Event().wait()
        if (self.name, what.split("=", maxsplit=1)[0]) in self.log.fails:
            raise EngineUnavailable(f"{self.name} is away")
        if (self.name, f"refuses {what}") in self.log.fails:
            raise EngineFailed(f"{self.name} has no memory left")
        self.log.lines.append(f"{self.name} {what}")

    async def pause(self, mode: str = "") -> None:
        await self._do("pause" + (f"={mode}" if mode else ""))

    async def resume(self) -> None:
        await self._do("resume")

    async def update_weight_version(self, version: int | str) -> None:
        await self._do(f"label={version}")

    async def reset_prefix_cache(self) -> None:
        await self._do("reset")

    async def reload_weights(self, path: str) -> None:
        self.log.loading.set()
        await self.log.may_load.wait()
        await self._do("reload")


class Gateway(Told):
    """One that holds turns, and knows the update that began last."""

    async def pause(self, update: str = "") -> None:
        self.log.begun = max(update, self.log.begun)
        await super().pause()

    async def resume(self, update: str = "") -> None:
        self.check(update)
        await super().resume()

    def check(self, update: str) -> None:
        if update < self.log.begun:
            raise Conflict("another weight update began after this one")

    async def policy_version(
        self, version: int, *, labelled: bool | None = None, adapter: str = "", update: str = ""
    ) -> None:
        assert labelled is (True if self.log.engines else None)
        self.check(update)
        await self._do(f"version={version}" + (f" {adapter}" if adapter else ""))

    async def status(self) -> dict[str, object]:
        if (self.name, "status") in self.log.hangs:
            await asyncio.Event().wait()
        if (self.name, "status") in self.log.fails:
            raise EngineUnavailable(f"{self.name} is away")
        held = self.name in self.log.held
        return {
            "engines": [{"in_flight": self.log.generations}],
            "paused": held,
            "policy_version": self.log.version,
            "newest_label": self.log.label,
            "update": self.log.begun,
        }


class Says(Told):
    """An engine that says whether it is paused."""

    async def is_paused(self) -> list[bool]:
        if (self.name, "is_paused") in self.log.hangs:
            await asyncio.Event().wait()
        if (self.name, "refuses is_paused") in self.log.fails:
            raise EngineFailed("no such endpoint")
        return [self.name in self.log.paused]

    async def pause(self, mode: str = "") -> None:
        await super().pause(mode)
        self.log.paused.add(self.name)

    async def resume(self) -> None:
        await super().resume()
        self.log.paused.discard(self.name)


class Begun(Told):
    """An engine that says what it was started with."""

    def __init__(self, log: Log, name: str, folder: str) -> None:
        super().__init__(log, name)
        self.folder = folder

    async def model_folders(self) -> list[str]:
        if (self.name, "model_folders") in self.log.hangs:
            await asyncio.Event().wait()
        if (self.name, "refuses model_folders") in self.log.fails:
            raise EngineFailed("no such endpoint")
        return [self.folder]


async def update(
    log: Log,
    *,
    swap: bool = True,
    mode: weight_update.Mode = "keep",
    drain_s: float = 1.0,
    in_doubt: set[str] | None = None,
) -> None:
    async with weight_update.weight_update(
        log.gateways, 7, mode=mode, engines=log.engines, drain_s=drain_s, in_doubt=in_doubt
    ) as found:
        log.lines.append("t swap")
        if swap:
            await found.reload("/weights")
