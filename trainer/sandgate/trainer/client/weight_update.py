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
older is `Superseded` (`update_order`). What gateways and engines say of themselves is asked in `update_looks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from sandgate.contract.choices import EngineKind
from sandgate.contract.errors import EngineFailed, InvalidBody, Unavailable
from sandgate.trainer.client.checkpoint import check_checkpoint
from sandgate.trainer.client.update_looks import (
    Mode,
    PausableGateway,
    Tells,
    TellsFolders,
    TellsLabels,
    UpdatableEngine,
    all_of,
    answers,
    drained,
    each,
    held_before,
    in_time,
    labels_of,
    paused_before,
    started_anew,
    warn_of_old_labels,
)
from sandgate.trainer.client.update_order import SUPERSEDED, Superseded, overtaken, update_name

__all__ = [
    "DRAIN_S",
    "HalfUpdated",
    "Mode",
    "PausableGateway",
    "Superseded",
    "Tells",
    "TellsLabels",
    "UpdatableEngine",
    "Update",
    "carried_through",
    "check_version",
    "controls",
    "update_name",
    "weight_update",
]

log = logging.getLogger(__name__)

VERSION_MAX = 2**31 - 1
DRAIN_S = 600.0
"""How long `wait` waits for the longest generation."""
LEFT = (
    "it was paused before this update, or did not say whether it was: by an update before, after which nobody knows its"
    " weights, or by you. It stays so: load its weights with the next"
)
LOOK_S = 5.0
"""For a gateway's answer whether another update began."""


class HalfUpdated(Unavailable):
    """The weights are swapped, but not everybody was told. Repeat the update with the same version once they answer, or
    take them out."""

    def __init__(self, version: int, missed: Mapping[str, Exception]) -> None:
        """`missed`: by gateway name or engine URL, what it said."""
        said = "; ".join(f"{name}: {error}" for name, error in missed.items())
        super().__init__(f"version {version} did not reach all: {said}")
        self.missed = dict(missed)


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

    async def reload(self, path: str, *, partial: bool = False, check: bool = True) -> None:
        """Every engine loads a checkpoint folder that it can read. All are tried; raises an ExceptionGroup if one did
        not, and then the others have the new weights. A caller that is cancelled is told when it is through. Raises
        InvalidBody for a folder that is here and is no whole checkpoint, and Superseded; then no engine was asked.
        `partial`: what it lacks stays as engines have it. `check=False`: the folder is not looked at."""
        if check:
            await asyncio.to_thread(check_checkpoint, path, await self._folders(), partial=partial)
        if others := await self._superseded():
            raise Superseded(f"{path} is not loaded: {others}")
        self.loading = asyncio.ensure_future(self._load(path))
        await carried_through(self.loading)

    async def _folders(self) -> list[str]:
        """Of the models that engines were started with, as far as they say it within LOOK_S."""
        engines = {name: one for name, one in self.engines.items() if isinstance(one, TellsFolders)}
        said = await answers({name: one.model_folders() for name, one in engines.items()}, LOOK_S)
        return sorted({folder for one in said.values() if isinstance(one, list) for folder in one})

    async def _superseded(self) -> str:
        """Says so if another update began since; empty if none did. A gateway that does not answer within LOOK_S knows
        of none: agents wait meanwhile."""
        said = await answers({name: one.status() for name, one in self.gateways.items()}, LOOK_S)
        told = {name: str(one.get("update", "")) for name, one in said.items() if isinstance(one, dict)}
        others = overtaken(self.name, told)
        return SUPERSEDED.format(self.version, ", ".join(others)) if others else ""

    async def _load(self, path: str) -> None:
        asked = Unavailable(f"it was asked to load {path}, and nobody waited for its answer")
        before, self.unsure = self.unsure, dict.fromkeys(self.engines, asked)
        errors = await each(self.engines, lambda one: one.reload_weights(path))
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
    held, known = await held_before(gateways, version)
    update.name = update_name(known, uuid4().hex)
    paused, update.silent = await paused_before(update.engines)
    update.held = frozenset(in_doubt & update.engines.keys()) | paused | update.silent
    update.labels = await labels_of(update.engines)
    try:
        await all_of("pause", gateways, lambda one: in_time(one.pause(update.name)))
        if mode == "wait":
            await drained(gateways, drain_s)
        await all_of("pause", update.engines, lambda one: one.pause(mode))
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
    anew = await started_anew(fresh, update.labels)
    labelling = {name: one for name, one in fresh.items() if name not in anew}
    unlabelled = anew | await each(labelling, lambda one: _label(one, update.version))
    missed |= unlabelled
    doubtful = (left - update.silent) | (left & in_doubt) | update.unsure.keys() | unlabelled.keys()
    if done:
        labelled = True if update.engines else None
        named = {"adapter": update.adapter} if update.adapter else {}
        missed |= await each(
            gateways,
            lambda one: one.policy_version(update.version, labelled=labelled, update=update.name, **named),
        )
    if await _is_over(update, in_doubt):  # caches take seconds to clear
        return
    well = {name: one for name, one in update.engines.items() if name not in missed}
    in_doubt |= doubtful
    in_doubt.difference_update(well)
    missed |= await each(well, lambda one: one.resume())
    told = {name: one for name, one in gateways.items() if name not in missed and (done or name not in held)}
    missed |= await each(told, lambda one: one.resume(update.name))
    for name, error in missed.items():
        log.warning("weight update %d: %s: %s", update.version, name, error)
    if done and not update.engines and not update.adapter:
        await warn_of_old_labels(told, update.version)


async def _is_over(update: Update, in_doubt: set[str]) -> bool:
    """Another one began: what is labelled, told and let go on is from now on its to say."""
    update.over = await update._superseded()
    if update.over:
        in_doubt |= update.unsure.keys()
        log.warning("%s", update.over)
    return bool(update.over)


async def _label(engine: UpdatableEngine, version: int) -> None:
    await engine.update_weight_version(version)
    await engine.reset_prefix_cache()


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
