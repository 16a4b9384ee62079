"""Weight update of running engines over many gateways: pause, swap, resume; and what a failure in between means.

    gateways hold new turns -> engines pause (or turns drain) -> the swap -> engines are labelled, caches cleared
    -> gateways are told the version -> engines go on -> gateways go on

A failure before the swap undoes all of it. A swap that raises leaves the version as it was: the old weights must be
there still; engines on which `Update.reload` had succeeded carry the new ones, and are labelled so; one that did not
answer it may carry either, and one that failed at it neither: it stays paused, and is named. `Update.reload` is
carried through, whatever happens to the caller. After the swap
there is no way back: whoever answers is brought to the new version and goes on, and `HalfUpdated` names the others.
What they do meanwhile is safe: a gateway is on hold until somebody tells it, through restarts too; an engine that was
not labelled stays paused. Repeating the update with the same version is harmless: it is what brings back an engine that
restarted. Gateways that were told of labelled weights do not use one whose label is that of its start.

An engine that an update left paused has weights that nobody can name, and stays so until an update reaches it: one that
fails before its swap lets the others go on.

Two trainers that update at once (one was thought dead): the update that began last has gateways and engines, and the
older is `Superseded`. Gateways know it by the name that the pause brought; names are ordered (`update_name`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable
from uuid import uuid4

from sandgate.contract.choices import EngineKind
from sandgate.contract.errors import Conflict, EngineFailed, InvalidBody, Unavailable
from sandgate.contract.trajectory import Json
from sandgate.trainer.client.checkpoint import check_checkpoint

log = logging.getLogger(__name__)

T = TypeVar("T")
Mode = Literal["keep", "abort", "wait"]
"""What becomes of generations that run. keep: they freeze, and go on with the new weights. abort: the engine ends them,
and the gateway takes each up again after its last token. wait: they end first."""
VERSION_MAX = 2**31 - 1
DRAIN_S = 600.0
"""How long `wait` waits for the longest generation."""
DRAIN_POLL_S = 0.1
LEFT = (
    "it was paused before this update, or did not say whether it was: by an update before, after which nobody knows its"
    " weights, or by you. It stays so: load its weights with the next"
)
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
SUPERSEDED = (
    "weight update {}: another one began since ({}): two trainers update at once. This one labels, tells and lets go"
    " on nothing more; turns go on when the other is through, or the next. Let one trainer update"
)
LOOK_S = 5.0
"""For a gateway's answer whether another update began."""
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


class HalfUpdated(Unavailable):
    """The weights are swapped, but not everybody was told. Repeat the update with the same version once they answer, or
    take them out."""

    def __init__(self, version: int, missed: Mapping[str, Exception]) -> None:
        """`missed`: by gateway name or engine URL, what it said."""
        said = "; ".join(f"{name}: {error}" for name, error in missed.items())
        super().__init__(f"version {version} did not reach all: {said}")
        self.missed = dict(missed)


class Superseded(Conflict):
    """Another weight update began while this one was under way: two trainers update the same engines. Nothing was told
    or let go on by this one; the engines have the weights of whichever loaded last."""


@dataclass(slots=True)
class Update:
    """A weight update that is under way."""

    version: int
    engines: Mapping[str, UpdatableEngine]
    """By URL; empty if the trainer swaps without our help."""
    gateways: Mapping[str, PausableGateway] = field(default_factory=dict)
    name: str = ""
    """By which gateways know it: greater than those of all updates before, as far as they said."""
    adapter: str = ""
    """LoRA adapter that is the policy from then on, which engines have loaded by this name."""
    loaded: set[str] = field(default_factory=set)
    """Engines that have the new weights. A swap of your own that may fail half-way adds to it."""
    unsure: dict[str, Exception] = field(default_factory=dict)
    """Engines that have the old weights, the new ones or none, nobody knows which; and why. They stay paused."""
    held: frozenset[str] = frozenset()
    """Engines that an update before this one left paused. They go on when they have this version."""
    silent: frozenset[str] = frozenset()
    """Those of them that did not say whether they are."""
    labels: Mapping[str, list[str]] = field(default_factory=dict)
    """What engines' weights were called before the update, of those that say it."""
    loading: asyncio.Future[None] | None = None
    """`reload`, which goes on if its caller does not wait for it."""
    over: str = ""
    """Another update began since: it says so."""

    async def reload(self, path: str) -> None:
        """Every engine loads a checkpoint folder that it can read. All are tried; raises an ExceptionGroup if one did
        not, and then the others have the new weights. A caller that is cancelled is told when it is through. Raises
        InvalidBody for a folder that is here and is no whole checkpoint, and Superseded; then no engine was asked."""
        await asyncio.to_thread(check_checkpoint, path)
        if others := await self._superseded():
            raise Superseded(f"{path} is not loaded: {others}")
        self.loading = asyncio.ensure_future(self._load(path))
        await carried_through(self.loading)

    async def _superseded(self) -> str:
        """Says so if another update began since; empty if none did. A gateway that does not answer within LOOK_S knows
        of none: agents wait meanwhile."""
        said = await _answers({name: one.status() for name, one in self.gateways.items()}, LOOK_S)
        others = [
            name
            for name, one in said.items()
            if isinstance(one, dict) and str(one.get("update", "")) > self.name
        ]
        return SUPERSEDED.format(self.version, ", ".join(others)) if others else ""

    async def _load(self, path: str) -> None:
        asked = Unavailable(f"it was asked to load {path}, and nobody waited for its answer")
        before, self.unsure = self.unsure, dict.fromkeys(self.engines, asked)
        errors = await _each(self.engines, lambda one: one.reload_weights(path))
        # One that refuses now may have loaded before, when it gave no answer.
        self.unsure = {
            name: error
            for name, error in errors.items()
            if name in before or not isinstance(error, EngineFailed)
        }
        self.loaded |= self.engines.keys() - errors.keys()
        if errors:
            stays = f"; {', '.join(self.unsure)}: may have it, and stays paused" if self.unsure else ""
            raise ExceptionGroup(f"{', '.join(errors)}: {path} is not loaded{stays}", list(errors.values()))


def check_version(version: int) -> None:
    """Raises InvalidBody for a version that no gateway takes."""
    if not 0 <= version <= VERSION_MAX:
        raise InvalidBody(f"version: {version} is not in 0..{VERSION_MAX}", field="version")


@asynccontextmanager
async def weight_update(
    gateways: Mapping[str, PausableGateway],
    version: int,
    *,
    mode: Mode = "keep",
    engines: Mapping[str, UpdatableEngine] | None = None,
    drain_s: float = DRAIN_S,
    adapter: str = "",
    in_doubt: set[str] | None = None,
) -> AsyncIterator[Update]:
    """See the module. Without `engines`, `keep` and `abort` are the swap's own business, and `wait` waits until no
    gateway has a generation in an engine. `adapter`: see `Update.adapter`. `in_doubt`: engines that updates before this
    one left paused; it is kept up to date, and is for the next one. Those that say that they are paused need not stand
    there. Raises InvalidBody, an ExceptionGroup of what the gateways and engines said, Superseded and HalfUpdated; what
    the block raises has a note for each that does not go on."""
    check_version(version)
    update, done = Update(version, dict(engines or {}), gateways, adapter=adapter), False
    missed: dict[str, Exception] = {}
    raised: BaseException | None = None
    in_doubt = set() if in_doubt is None else in_doubt
    held, update.name = await _held(gateways, version)
    paused, update.silent = await _paused(update.engines)
    update.held = frozenset(in_doubt & update.engines.keys()) | paused | update.silent
    update.labels = await _labels(update.engines)
    try:
        await _all("pause", gateways, lambda one: _in_time(one.pause(update.name)))
        if mode == "wait":
            await _drained(gateways, drain_s)
        await _all("pause", update.engines, lambda one: one.pause(mode))
        yield update
        done = True
    except BaseException as error:
        raised = error
        raise
    finally:
        going = asyncio.ensure_future(_go_on(gateways, update, missed, held, in_doubt, done=done))
        await carried_through(going)
        if raised is not None and update.over:
            raised.add_note(update.over)
        elif raised is not None:
            for name, why in missed.items():
                raised.add_note(f"weight update {version}: {name} does not go on: {why}")
    if update.over:
        raise Superseded(update.over)
    if missed:
        raise HalfUpdated(version, missed)


async def _held(gateways: Mapping[str, PausableGateway], version: int) -> tuple[frozenset[str], str]:
    """Those that an update before this one left on hold: it did not reach them, or its trainer died in it. They go on
    when one has gone through, and not before: what weights they sample from, and under which version, nobody knows.
    One that does not answer now may be one of them. A version below what they know is said to go back. And a name for
    this update, behind those that they know."""
    asked = (_in_time(one.status()) for one in gateways.values())
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
    return held, update_name([str(one.get("update", "")) for one in told], uuid4().hex)


def update_name(known: Iterable[str], own: str) -> str:
    """Of an update that begins behind those `known`. All order names alike, whichever they hear of first: of two that
    begin at once, knowing the same, the one with the greater `own` is the later."""
    numbers = (one.partition(".")[0] for one in known)
    newest = max((int(one) for one in numbers if one.isdecimal()), default=0)
    return f"{newest + 1:012d}.{own}"


async def _paused(engines: Mapping[str, UpdatableEngine]) -> tuple[frozenset[str], frozenset[str]]:
    """Those that an update before this one left paused, as they say themselves: its trainer may have died since; and
    those that do not answer now, which may be some of them. One that cannot say it is taken for none."""
    told = await _answers({name: one.is_paused() for name, one in engines.items() if isinstance(one, Tells)})
    paused = frozenset(name for name, one in told.items() if isinstance(one, list) and any(one))
    silent = frozenset(
        name for name, one in told.items() if not isinstance(one, list) and not isinstance(one, EngineFailed)
    )
    return paused, silent


async def _go_on(
    gateways: Mapping[str, PausableGateway],
    update: Update,
    missed: dict[str, Exception],
    held: frozenset[str],
    in_doubt: set[str],
    *,
    done: bool,
) -> None:
    """Tell whoever has the new weights, then let everybody go on who is as he should be. `held`: gateways that stay on
    hold unless the update is done. `in_doubt` is brought up to date."""
    if update.loading is not None:  # its caller was interrupted, and went on without it
        await asyncio.wait([update.loading])
    if await _is_over(update, in_doubt):
        return
    new = (update.loaded or (set(update.engines) if done else set())) - update.unsure.keys()
    left = update.held - new
    missed |= dict.fromkeys(left, Unavailable(LEFT)) | update.unsure
    fresh = {name: one for name, one in update.engines.items() if name in new}
    anew = await _anew(fresh, update.labels)
    labelling = {name: one for name, one in fresh.items() if name not in anew}
    unlabelled = anew | await _each(labelling, lambda one: _label(one, update.version))
    missed |= unlabelled
    doubtful = (left - update.silent) | (left & in_doubt) | update.unsure.keys() | unlabelled.keys()
    if done:
        labelled = True if update.engines else None
        named = {"adapter": update.adapter} if update.adapter else {}
        missed |= await _each(
            gateways,
            lambda one: one.policy_version(update.version, labelled=labelled, update=update.name, **named),
        )
    if await _is_over(update, in_doubt):  # caches take seconds to clear
        return
    well = {name: one for name, one in update.engines.items() if name not in missed}
    in_doubt |= doubtful
    in_doubt.difference_update(well)
    missed |= await _each(well, lambda one: one.resume())
    told = {name: one for name, one in gateways.items() if name not in missed and (done or name not in held)}
    missed |= await _each(told, lambda one: one.resume(update.name))
    for name, error in missed.items():
        log.warning("weight update %d: %s: %s", update.version, name, error)
    if done and not update.engines and not update.adapter:
        await _warn_of_old_labels(told, update.version)


async def _is_over(update: Update, in_doubt: set[str]) -> bool:
    """Another one began: what is labelled, told and let go on is from now on its to say."""
    update.over = await update._superseded()
    if update.over:
        in_doubt |= update.unsure.keys()
        log.warning("%s", update.over)
    return bool(update.over)


async def _labels(engines: Mapping[str, UpdatableEngine]) -> dict[str, list[str]]:
    """Of those that say it."""
    said = await _answers(
        {name: one.weight_versions() for name, one in engines.items() if isinstance(one, TellsLabels)}
    )
    return {name: one for name, one in said.items() if isinstance(one, list)}


async def _answers(
    asked: Mapping[str, Coroutine[Any, Any, T]], seconds: float | None = None
) -> dict[str, T | Exception]:
    """What each says, or its error. `seconds`: default PREPARE_S."""
    waits = (_in_time(one, seconds) for one in asked.values())
    said = await asyncio.gather(*waits, return_exceptions=True)
    found: dict[str, T | Exception] = {}
    for name, one in zip(asked, said, strict=True):
        if isinstance(one, BaseException) and not isinstance(one, Exception):
            raise one
        found[name] = one
    return found


async def _anew(
    engines: Mapping[str, UpdatableEngine], before: Mapping[str, list[str]]
) -> dict[str, Exception]:
    """Those that are paused no more, and have not the label that they had: an engine that was started anew has the
    weights of its start, and a label would hide it. (A block that puts an engine to sleep and wakes it lets it go on;
    its label stays.) Each is paused again, so that nothing is sampled under a label that may be wrong. One that cannot
    say it is taken for none; one that does not answer cannot be labelled either."""
    said = await _answers({name: one.is_paused() for name, one in engines.items() if isinstance(one, Tells)})
    now = await _labels(engines)
    anew: dict[str, Exception] = {}
    for name, one in said.items():
        if isinstance(one, list) and not all(one):
            if name in now and now[name] == before.get(name):
                continue
            anew[name] = Unavailable(ANEW)
            await _each({name: engines[name]}, lambda each: each.pause("keep"))
        elif isinstance(one, Exception) and not isinstance(one, EngineFailed):
            anew[name] = one
    return anew


async def _warn_of_old_labels(gateways: Mapping[str, PausableGateway], version: int) -> None:
    """Engines may have labels of an earlier training's updates, or of this one's. A trainer that swaps weights without
    labelling them would go on under those, and never hear of it."""
    said = await asyncio.gather(
        *(_in_time(one.status()) for one in gateways.values()), return_exceptions=True
    )
    for name, one in zip(gateways, said, strict=True):
        newest = 0 if isinstance(one, BaseException) else int(one.get("newest_label", 0))
        if 0 < newest < version:
            log.warning(OLD_LABEL, version, name, newest, version)


async def _label(engine: UpdatableEngine, version: int) -> None:
    await engine.update_weight_version(version)
    await engine.reset_prefix_cache()


async def _drained(gateways: Mapping[str, PausableGateway], seconds: float) -> None:
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


async def _in_time(asked: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Raises Unavailable for a gateway that takes longer (default: PREPARE_S)."""
    limit = PREPARE_S if seconds is None else seconds
    try:
        async with asyncio.timeout(limit):
            return await asked
    except TimeoutError:
        raise Unavailable(f"no answer within {limit:g} s") from None


async def _each(those: Mapping[str, Any], ask: Callable[[Any], Awaitable[None]]) -> dict[str, Exception]:
    """All are asked at once; who failed, and why."""
    said = await asyncio.gather(*(ask(one) for one in those.values()), return_exceptions=True)
    for error in said:
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error
    return {name: error for name, error in zip(those, said, strict=True) if isinstance(error, Exception)}


async def _all(what: str, those: Mapping[str, Any], ask: Callable[[Any], Awaitable[None]]) -> None:
    if errors := await _each(those, ask):
        raise ExceptionGroup(f"{what}: {', '.join(errors)}", list(errors.values()))


async def carried_through(task: asyncio.Future[None]) -> None:
    """Waits for `task`, whatever happens to the caller, which is told afterwards that it was cancelled: a trainer that
    goes away must not leave agents on hold, nor a change behind that comes in the middle of the next."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if not cancelled:
        task.result()
        return
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("what was carried through though its caller was cancelled: %s", error)
    raise asyncio.CancelledError


@asynccontextmanager
async def controls(
    urls: Iterable[str], api_key: str = "", *, kind: EngineKind | str = EngineKind.VLLM
) -> AsyncIterator[dict[str, UpdatableEngine]]:
    """Servers of one kind by URL (vLLM with VLLM_SERVER_DEV_MODE=1); each is asked alone, so that it is known which one
    failed."""
    from sandgate.gateway.engine.control import EngineControl
    from sandgate.gateway.engine.sglang.control import SglangControl

    sglang = EngineKind(kind) is EngineKind.SGLANG
    control: type[EngineControl | SglangControl] = SglangControl if sglang else EngineControl
    async with AsyncExitStack() as stack:
        servers = {url: control([url], api_key=api_key) for url in urls}
        for one in servers.values():
            await stack.enter_async_context(one)
        yield dict(servers)
