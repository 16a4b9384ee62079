"""Looks of a weight update at gateways and engines: who is on hold, paused, labelled or started anew; all are asked at
once, and each only for so long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from sandgate.contract.errors import EngineFailed, Unavailable
from sandgate.contract.trajectory import Json

log = logging.getLogger(__name__)

T = TypeVar("T")
Mode = Literal["keep", "abort", "wait"]
"""What becomes of generations that run. keep: they freeze, and go on with the new weights. abort: the engine ends them,
and the gateway takes each up again after its last token. wait: they end first."""
DRAIN_POLL_S = 0.1
ANEW = "it was started anew during the update: nobody knows what weights it has; make the weight update again"
OLD_LABEL = (
    "weight update %d: %s: its engines' weights are labelled %d, so their tokens carry that, and not %d. Say `engines=`"
    " (`fleet.engines`, `await fleet.engine_urls()`), which labels them, or that labels mean nothing here:"
    " `policy_version(version, labelled=False)`"
)
LOWER = (
    "weight update %d: gateways know version %d, which is higher. It is taken all the same: `max_behind` counts no"
    " token with a number above the trainer's as old, whatever weights it is of, and `spec.staleness` admits nothing"
    " for a step back. Where %d was of other weights than these go on from, begin with `fleet.version() + 1`"
)
PREPARE_S = 60.0
"""For a gateway's answer before the swap. One that restarts is back by then; turns that the others hold meanwhile are
refused after 240 s (`pause_hold_s`), and those others know nothing of one that hangs."""


class PausableGateway(Protocol):
    """What is needed of a gateway's client."""

    async def pause(self, update: str = ...) -> None: ...
    async def resume(self, update: str = ...) -> None: ...
    async def policy_version(
        self, version: int, *, labelled: bool | None = None, adapter: str = "", update: str = ""
    ) -> None: ...
    async def status(self) -> dict[str, Json]: ...


class UpdatableEngine(Protocol):
    """What is needed of an inference server's control."""

    async def pause(self, mode: Mode = ...) -> None: ...
    async def resume(self) -> None: ...
    async def update_weight_version(self, version: int | str) -> None: ...
    async def reset_prefix_cache(self) -> None: ...
    async def reload_weights(self, path: str) -> None:
        """Raises EngineFailed if the old weights are there still, and anything else if nobody knows."""


@runtime_checkable
class Tells(Protocol):
    """An engine's control that says whether it is paused, replica by replica (EngineFailed: an older SGLang)."""

    async def is_paused(self) -> list[bool]: ...


@runtime_checkable
class TellsLabels(Protocol):
    """An engine's control that says the labels of its weights, replica by replica."""

    async def weight_versions(self) -> list[str]: ...


@runtime_checkable
class TellsFolders(Protocol):
    """An engine's control that says the folder of its model, or its id, replica by replica."""

    async def model_folders(self) -> list[str]: ...


async def held_before(
    gateways: Mapping[str, PausableGateway], version: int
) -> tuple[frozenset[str], list[str]]:
    """Those that an update before this one left on hold: it did not reach them, or its trainer died in it. They go on
    when one has gone through, and not before: what weights they sample from, and under which version, nobody knows.
    One that does not answer now may be one of them. A version below what they know is said to go back. And the names
    of the updates that they know."""
    asked = (in_time(one.status()) for one in gateways.values())
    said = await asyncio.gather(*asked, return_exceptions=True)
    for error in said:
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error
    told = [one for one in said if not isinstance(one, BaseException)]
    newest = max(
        (max(int(one.get("policy_version", 0)), int(one.get("newest_label", 0))) for one in told), default=0
    )
    if version < newest:
        log.warning(LOWER, version, newest, newest)
    held = frozenset(
        name
        for name, one in zip(gateways, said, strict=True)
        if isinstance(one, BaseException) or one.get("paused")
    )
    return held, [str(one.get("update", "")) for one in told]


async def paused_before(engines: Mapping[str, UpdatableEngine]) -> tuple[frozenset[str], frozenset[str]]:
    """Those that an update before this one left paused, as they say themselves: its trainer may have died since; and
    those that do not answer now, which may be some of them. One that cannot say it is taken for none."""
    told = await answers({name: one.is_paused() for name, one in engines.items() if isinstance(one, Tells)})
    paused = frozenset(name for name, one in told.items() if isinstance(one, list) and any(one))
    silent = frozenset(
        name for name, one in told.items() if not isinstance(one, list) and not isinstance(one, EngineFailed)
    )
    return paused, silent


async def labels_of(engines: Mapping[str, UpdatableEngine]) -> dict[str, list[str]]:
    """Of those that say it."""
    said = await answers(
        {name: one.weight_versions() for name, one in engines.items() if isinstance(one, TellsLabels)}
    )
    return {name: one for name, one in said.items() if isinstance(one, list)}


async def started_anew(
    engines: Mapping[str, UpdatableEngine], before: Mapping[str, list[str]]
) -> dict[str, Exception]:
    """Those that are paused no more, and have not the label that they had: an engine that was started anew has the
    weights of its start, and a label would hide it. (A block that puts an engine to sleep and wakes it lets it go on;
    its label stays.) Each is paused again, so that nothing is sampled under a label that may be wrong. One that cannot
    say it is taken for none; one that does not answer cannot be labelled either."""
    said = await answers({name: one.is_paused() for name, one in engines.items() if isinstance(one, Tells)})
    now = await labels_of(engines)
    anew: dict[str, Exception] = {}
    for name, one in said.items():
        if isinstance(one, list) and not all(one):
            if name in now and now[name] == before.get(name):
                continue
            anew[name] = Unavailable(ANEW)
            await each({name: engines[name]}, lambda each: each.pause("keep"))
        elif isinstance(one, Exception) and not isinstance(one, EngineFailed):
            anew[name] = one
    return anew


async def warn_of_old_labels(gateways: Mapping[str, PausableGateway], version: int) -> None:
    """Engines may have labels of an earlier training's updates, or of this one's. A trainer that swaps weights without
    labelling them would go on under those, and never hear of it."""
    said = await asyncio.gather(*(in_time(one.status()) for one in gateways.values()), return_exceptions=True)
    for name, one in zip(gateways, said, strict=True):
        newest = 0 if isinstance(one, BaseException) else int(one.get("newest_label", 0))
        if 0 < newest < version:
            log.warning(OLD_LABEL, version, name, newest, version)


async def drained(gateways: Mapping[str, PausableGateway], seconds: float) -> None:
    """No gateway has a generation in an engine any more. Raises Unavailable."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                said = await asyncio.gather(*(one.status() for one in gateways.values()))
                if not sum(engine["in_flight"] for one in said for engine in one["engines"]):
                    return
                await asyncio.sleep(DRAIN_POLL_S)
    except TimeoutError:
        raise Unavailable(f"generations still run after {seconds:g} s; the weights are not swapped") from None


async def answers(
    asked: Mapping[str, Coroutine[Any, Any, T]], seconds: float | None = None
) -> dict[str, T | Exception]:
    """What each says, or its error. `seconds`: default PREPARE_S."""
    waits = (in_time(one, seconds) for one in asked.values())
    said = await asyncio.gather(*waits, return_exceptions=True)
    found: dict[str, T | Exception] = {}
    for name, one in zip(asked, said, strict=True):
        if isinstance(one, BaseException) and not isinstance(one, Exception):
            raise one
        found[name] = one
    return found


async def in_time(asked: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Raises Unavailable for a gateway that takes longer (default: PREPARE_S)."""
    limit = PREPARE_S if seconds is None else seconds
    try:
        async with asyncio.timeout(limit):
            return await asked
    except TimeoutError:
        raise Unavailable(f"no answer within {limit:g} s") from None


async def each(those: Mapping[str, Any], ask: Callable[[Any], Awaitable[None]]) -> dict[str, Exception]:
    """All are asked at once; who failed, and why."""
    said = await asyncio.gather(*(ask(one) for one in those.values()), return_exceptions=True)
    for error in said:
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error
    return {name: error for name, error in zip(those, said, strict=True) if isinstance(error, Exception)}


async def all_of(what: str, those: Mapping[str, Any], ask: Callable[[Any], Awaitable[None]]) -> None:
    if errors := await each(those, ask):
        raise ExceptionGroup(f"{what}: {', '.join(errors)}", list(errors.values()))
