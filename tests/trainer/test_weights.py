"""A weight update over gateways and engines, and every place where one of them may fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from sandgate.contract.errors import Conflict, EngineFailed, EngineUnavailable, InvalidBody, Unavailable
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.journal.memory import MemoryDisk
from sandgate.trainer.client import update_looks, weight_update
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.fleet import fleet as connected
from sandgate.trainer.client.weight_update import HalfUpdated
from tests.gateway.test_engine_set import server
from tests.gateway.test_labels import Home
from tests.support.gateway import admin_key
from tests.trainer.world import World


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


async def test_in_order_pause_swap_label_tell_resume() -> None:
    log = Log()
    await update(log)
    assert log.of("g0") == log.of("g1") == ["pause", "version=7", "resume"]
    assert log.of("e0") == log.of("e1") == ["pause=keep", "reload", "label=7", "reset", "resume"]

    def last(what: str) -> int:
        return max(at for at, line in enumerate(log.lines) if line.split()[1] == what)

    def first(what: str, who: str) -> int:
        return min(at for at, line in enumerate(log.lines) if line.startswith(who) and line.endswith(what))

    swap = log.lines.index("t swap")
    assert last("pause") < first("pause=keep", "e") < swap, "gateways hold before engines pause"
    assert last("reset") < first("version=7", "g") < last("version=7") < first("resume", "e")
    assert max(at for at, line in enumerate(log.lines) if line == "e1 resume") < first("resume", "g")


GOES_WRONG: dict[
    str, tuple[set[tuple[str, str]], type[Exception] | None, list[str], dict[str, list[str]]]
] = {
    "a gateway that cannot be paused: nothing is swapped, all go on": (
        {("g1", "pause")},
        ExceptionGroup,
        [],
        {"g0": ["pause", "resume"], "g1": ["resume"], "e0": ["resume"], "e1": ["resume"]},
    ),
    "an engine that cannot be paused: nothing is swapped, all go on": (
        {("e0", "pause")},
        ExceptionGroup,
        [],
        {"g0": ["pause", "resume"], "e0": ["resume"], "e1": ["pause=keep", "resume"]},
    ),
    "an engine that refuses to load: the one that did is labelled, the version stays, all go on": (
        {("e1", "refuses reload")},
        ExceptionGroup,
        [],
        {
            "g0": ["pause", "resume"],
            "e0": ["pause=keep", "reload", "label=7", "reset", "resume"],
            "e1": ["pause=keep", "resume"],
        },
    ),
    "an engine that may have loaded, as its answer was lost, stays paused": (
        {("e1", "reload")},
        ExceptionGroup,
        [],
        {
            "g0": ["pause", "resume"],
            "e0": ["pause=keep", "reload", "label=7", "reset", "resume"],
            "e1": ["pause=keep"],
        },
    ),
    "an engine that dies after the swap: the others go on with the new version, it is named": (
        {("e1", "label"), ("e1", "resume")},
        HalfUpdated,
        ["e1"],
        {
            "g0": ["pause", "version=7", "resume"],
            "e0": ["pause=keep", "reload", "label=7", "reset", "resume"],
        },
    ),
    "an engine whose cache is not cleared stays paused": (
        {("e0", "reset")},
        HalfUpdated,
        ["e0"],
        {"g0": ["pause", "version=7", "resume"], "e0": ["pause=keep", "reload", "label=7"]},
    ),
    "a gateway that dies after the swap: the others go on, it is named, and stays on hold": (
        {("g0", "version")},
        HalfUpdated,
        ["g0"],
        {
            "g0": ["pause"],
            "g1": ["pause", "version=7", "resume"],
            "e0": ["pause=keep", "reload", "label=7", "reset", "resume"],
        },
    ),
    "a gateway that cannot be let go is named": (
        {("g1", "resume")},
        HalfUpdated,
        ["g1"],
        {"g0": ["pause", "version=7", "resume"], "g1": ["pause", "version=7"]},
    ),
}


@pytest.mark.parametrize(("fails", "error", "missed", "told"), GOES_WRONG.values(), ids=GOES_WRONG)
async def test_a_failure_in_the_middle(
    fails: set[tuple[str, str]], error: type[Exception], missed: list[str], told: dict[str, list[str]]
) -> None:
    log = Log(*fails)
    with pytest.raises(error) as caught:
        await update(log)
    assert sorted(getattr(caught.value, "missed", [])) == missed
    assert {who: log.of(who) for who in told} == told
    assert log.lines.count("t swap") == (0 if any(what == "pause" for _, what in fails) else 1)


@pytest.mark.parametrize("away", [False, True], ids=["and says so", "and may be, as it did not answer"])
async def test_a_gateway_that_an_update_before_left_on_hold_stays_so_until_one_goes_through(
    *, away: bool
) -> None:
    """What weights are in the engines, and under which version it would sample, nobody knows."""
    log = Log(*([("g0", "status")] if away else []))
    log.held = set() if away else {"g0"}
    with pytest.raises(ZeroDivisionError):
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            raise ZeroDivisionError
    assert (log.of("g0"), log.of("g1")) == (["pause"], ["pause", "resume"])
    log.lines.clear()
    await update(log)
    assert log.of("g0") == log.of("g1") == ["pause", "version=7", "resume"]


@pytest.mark.parametrize("what", ["status", "pause"])
async def test_a_gateway_that_hangs_holds_the_others_no_longer_than_they_bear(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_looks, "PREPARE_S", 0.05)
    log = Log()
    log.hangs = {("g1", "status"), ("g1", "pause")} if what == "status" else {("g1", "pause")}
    with pytest.raises(ExceptionGroup, match="pause: g1"):
        await update(log)
    assert log.of("g0") == ["pause", "resume"]
    assert "t swap" not in log.lines


@pytest.mark.parametrize("who", ["e1", "g1"])
async def test_who_cannot_be_let_go_is_named_in_what_the_block_raised(who: str) -> None:
    log = Log((who, "resume"))
    with pytest.raises(ZeroDivisionError) as caught:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            raise ZeroDivisionError
    assert caught.value.__notes__ == [f"weight update 7: {who} does not go on: {who} is away"]


async def test_a_swap_that_raises_leaves_the_version_and_lets_all_go_on() -> None:
    log = Log()
    with pytest.raises(ZeroDivisionError):
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            raise ZeroDivisionError
    assert log.of("g0") == ["pause", "resume"]
    assert log.of("e0") == ["pause=keep", "resume"]


async def test_an_engine_that_may_have_loaded_stays_paused_though_it_refuses_to_load_again() -> None:
    log = Log(("e1", "reload"))

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            with pytest.raises(ExceptionGroup, match="e1: may have it, and stays paused"):
                await found.reload("/weights")
            log.fails = {("e1", "refuses reload")}
            with pytest.raises(ExceptionGroup, match="e1: may have it, and stays paused"):
                await found.reload("/weights")
            raise RuntimeError("given up")

    with pytest.raises(RuntimeError, match="given up"):
        await train()
    assert log.of("e1") == ["pause=keep"]


@pytest.mark.parametrize("failed", ["reload", "label", "reset"])
@pytest.mark.parametrize("next_fails", [("g1", "pause"), ("e0", "pause"), ("e1", "refuses reload")])
async def test_an_engine_that_is_in_doubt_stays_paused_until_an_update_reaches_it(
    failed: str, next_fails: tuple[str, str]
) -> None:
    """It has new weights under an old label, or may have; what fails before the swap proves nothing."""
    log, in_doubt = Log(("e1", failed)), set[str]()
    with pytest.raises((ExceptionGroup, HalfUpdated)):
        await update(log, in_doubt=in_doubt)
    assert in_doubt == {"e1"}
    log.lines.clear()
    log.fails = {next_fails}
    with pytest.raises(ExceptionGroup):
        await update(log, in_doubt=in_doubt)
    assert "resume" not in log.of("e1")
    assert (log.of("e0")[-1], in_doubt) == ("resume", {"e1"})
    log.fails = set()
    await update(log, in_doubt=in_doubt)
    assert (log.of("e1")[-4:], in_doubt) == (["reload", "label=7", "reset", "resume"], set())


PAUSED: dict[str, tuple[set[str], set[tuple[str, str]], set[tuple[str, str]], bool]] = {
    "one that was paused": ({"e1"}, set(), set(), False),
    "one that was not": (set(), set(), set(), True),
    "one that does not say in time": (set(), set(), {("e1", "is_paused")}, False),
    "one that is too old to say": (set(), {("e1", "refuses is_paused")}, set(), True),
}


@pytest.mark.parametrize(("paused", "fails", "hangs", "goes_on"), PAUSED.values(), ids=PAUSED)
async def test_what_an_engine_says_of_the_update_before_counts_where_nobody_remembers(
    monkeypatch: pytest.MonkeyPatch,
    *,
    paused: set[str],
    fails: set[tuple[str, str]],
    hangs: set[tuple[str, str]],
    goes_on: bool,
) -> None:
    """Its trainer died, and was started anew."""
    monkeypatch.setattr(update_looks, "PREPARE_S", 0.05)
    log = Log(*fails)
    log.engines = {name: Says(log, name) for name in log.engines}
    log.paused, log.hangs = set(paused), hangs
    with pytest.raises(ZeroDivisionError):
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            raise ZeroDivisionError
    assert log.of("e0") == ["pause=keep", "resume"]
    assert ("resume" in log.of("e1")) is goes_on
    log.lines.clear()
    log.hangs = set()
    await update(log)
    assert log.of("e1")[-1] == "resume"


async def test_an_engine_that_did_not_say_whether_it_is_paused_is_asked_again_by_the_next_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was away for a moment, and nobody had paused it: a swap that raises then lets it go on, too."""
    monkeypatch.setattr(update_looks, "PREPARE_S", 0.05)
    log, in_doubt = Log(("e1", "pause")), set[str]()
    log.engines = {name: Says(log, name) for name in log.engines}
    log.hangs = {("e1", "is_paused")}
    with pytest.raises(ExceptionGroup):
        await update(log, in_doubt=in_doubt)
    assert in_doubt == set()
    log.fails, log.hangs = set(), set()
    with pytest.raises(ZeroDivisionError):
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines, in_doubt=in_doubt):
            raise ZeroDivisionError
    assert log.of("e1") == ["pause=keep", "resume"]


async def test_an_update_that_goes_on_without_an_engine_in_doubt_names_it() -> None:
    log = Log()

    async def train() -> None:
        async with weight_update.weight_update(
            log.gateways, 7, engines=log.engines, in_doubt={"e1"}
        ) as found:
            found.loaded.add("e0")  # a swap of its own

    with pytest.raises(HalfUpdated, match="e1: ") as caught:
        await train()
    assert list(caught.value.missed) == ["e1"]
    assert (log.of("e0")[-1], log.of("e1")) == ("resume", ["pause=keep"])


async def test_a_trainer_that_is_cancelled_while_an_engine_refuses_is_cancelled() -> None:
    log = Log(("e1", "refuses reload"))
    log.may_load.clear()

    async def step() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            with suppress(ExceptionGroup):  # a trainer that goes on with the others
                await found.reload("/weights")

    task = asyncio.create_task(step())
    await log.loading.wait()
    task.cancel()
    log.may_load.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.of("g0") == ["pause", "resume"], "the version is not told: not all of them have it"


async def test_a_trainer_that_is_cancelled_in_the_swap_leaves_nobody_on_hold() -> None:
    log, swapping = Log(), asyncio.Event()

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            swapping.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(train())
    await swapping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.of("g1") == ["pause", "resume"]
    assert log.of("e1") == ["pause=keep", "resume"]


async def test_an_engine_that_may_have_loaded_is_named_by_an_update_that_goes_on_without_it() -> None:
    log = Log(("e1", "reload"))

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            with pytest.raises(ExceptionGroup, match="e1: may have it, and stays paused"):
                await found.reload("/weights")

    with pytest.raises(HalfUpdated) as caught:
        await train()
    assert list(caught.value.missed) == ["e1"]
    assert log.of("g0") == ["pause", "version=7", "resume"]
    assert log.of("e1") == ["pause=keep"]


@pytest.mark.parametrize("waits", [True, False], ids=["who waits for it", "who does not"])
async def test_weights_are_loaded_to_the_end_and_labelled_when_the_trainer_is_cancelled(
    *, waits: bool
) -> None:
    """An engine loads on without whoever asked, and would go on under the old version."""
    log = Log()
    log.may_load.clear()

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            if not waits:  # as a thread that is interrupted, while the loop of its client goes on
                background.append(asyncio.ensure_future(found.reload("/weights")))
            await (found.reload("/weights") if waits else asyncio.Event().wait())

    background: list[asyncio.Future[None]] = []
    task = asyncio.ensure_future(train())
    await log.loading.wait()
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert log.of("e0") == ["pause=keep"]
    log.may_load.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.gather(*background)
    assert log.of("e0") == log.of("e1") == ["pause=keep", "reload", "label=7", "reset", "resume"]
    assert log.of("g0") == ["pause", "resume"]


async def test_wait_waits_until_no_generation_runs() -> None:
    log = Log()
    log.generations = 3
    waiting = asyncio.ensure_future(update(log, mode="wait", drain_s=60.0))
    while log.of("g1") != ["pause"]:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert not log.of("e0")
    log.generations = 0
    await waiting
    assert log.of("e0")[0] == "pause=wait"


async def test_generations_that_do_not_end_are_an_error_before_the_swap() -> None:
    log = Log()
    log.generations = 1
    with pytest.raises(Unavailable, match="generations still run after 0 s"):
        await update(log, mode="wait", drain_s=0.0)
    assert log.of("t") == []
    assert log.of("g0") == ["pause", "resume"]


OLD_LABELS: dict[str, tuple[int, bool, bool]] = {
    "engines of an earlier training, which this one does not label": (3, False, True),
    "engines without labels": (0, False, False),
    "engines that the swap itself labelled": (7, False, False),
    "engines that the update labels": (3, True, False),
}


@pytest.mark.parametrize(("label", "labels", "warned"), OLD_LABELS.values(), ids=OLD_LABELS)
async def test_a_version_that_no_token_will_carry_is_said(
    caplog: pytest.LogCaptureFixture, label: int, labels: bool, warned: bool
) -> None:
    log = Log()
    log.label = label
    if not labels:
        log.engines = {}
    await update(log, swap=labels)
    assert ("are labelled 3, so their tokens carry that, and not 7" in caplog.text) == warned


KNOWN: dict[str, tuple[int, int, bool]] = {
    "the next one": (6, 0, False),
    "the same, made again": (7, 7, False),
    "of an older checkpoint": (9, 0, True),
    "counted anew over engines that have a label": (0, 9, True),
}


@pytest.mark.parametrize(("told", "label", "warned"), KNOWN.values(), ids=KNOWN)
async def test_a_version_that_goes_back_is_taken_and_said(
    caplog: pytest.LogCaptureFixture, told: int, label: int, warned: bool
) -> None:
    log = Log()
    log.version, log.label = told, label
    await update(log)
    assert log.of("g0") == ["pause", "version=7", "resume"]
    assert ("weight update 7: gateways know version 9, which is higher" in caplog.text) == warned


@pytest.mark.parametrize("version", [-1, 2**31])
async def test_a_version_that_no_gateway_takes_is_refused_before_anybody_is_paused(version: int) -> None:
    log = Log()
    with pytest.raises(InvalidBody, match=r"version: .* is not in"):
        async with weight_update.weight_update(log.gateways, version):
            pytest.fail("swapped")
    assert log.lines == []


# -- on the real gateways ---------------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        yield found


async def test_a_gateway_that_is_killed_in_the_middle_is_on_hold_until_the_update_is_made_again(
    world: World,
) -> None:
    fleet = world.fleet()
    with pytest.raises(HalfUpdated) as caught:
        async with fleet.weight_update(1):
            await world.sites["g1"].stop()
    assert sorted(caught.value.missed) == ["g1"]
    assert await fleet.version() == 1, "the weights are the new ones"
    await world.sites["g1"].start()
    found = await fleet.progress()
    assert found.paused == ("g1",), "it was told nothing, and samples nothing"
    async with fleet.weight_update(1):
        pass
    assert (await fleet.progress()).paused == ()
    said = (await fleet.status()).values()
    assert {(one["policy_version"], one["labelled"]) for one in said} == {(1, False)}, (
        "no engine was labelled"
    )


async def test_a_trainer_that_dies_in_the_middle_leaves_agents_on_hold_for_the_next(world: World) -> None:
    for admin in world.admins.values():
        await admin.pause()
    await world.restart("g0")
    nxt = world.fleet()
    assert (await nxt.progress()).paused == ("g0", "g1")
    async with nxt.weight_update(await nxt.version() + 1):
        pass
    assert (await nxt.progress()).paused == ()


async def test_an_update_made_again_brings_back_an_engine_that_restarted(tmp_path: Path) -> None:
    async with server(["done"]) as engine:
        home = Home(tmp_path, MemoryDisk(), (engine,))
        async with (
            home.life() as life,
            connected({"g": "http://g"}, admin_key(), transport=life.asgi()) as fleet,
        ):
            async with fleet.weight_update(1, engines=[engine.url]):
                pass
            assert await life.versions("s1") == {1}
            engine.player.restart()
            assert await fleet.engines_without_weights() == ()
            assert (await life.turn("s2")).status_code == 503
            assert await fleet.engines_without_weights() == (engine.url,)
            async with fleet.weight_update(1, engines=[engine.url]) as update:
                await update.reload("/weights/1")
            assert await life.versions("s3") == {1}
            assert await fleet.engines_without_weights() == ()


async def test_a_version_that_only_some_engines_got_is_never_given_to_other_weights(tmp_path: Path) -> None:
    """Its tokens are told apart from those of the next update, whoever makes it."""
    async with server(["done"]) as engine, AsyncExitStack() as stack:
        home = Home(tmp_path, MemoryDisk(), (engine,))
        life = await stack.enter_async_context(home.life())

        async def trainer() -> AsyncFleet:
            made = connected({"g": "http://g"}, admin_key(), transport=life.asgi())
            return await stack.enter_async_context(made)

        fleet = await trainer()
        async with fleet.weight_update(1, engines=[engine.url]):
            pass

        async def half() -> None:
            async with fleet.weight_update(await fleet.version() + 1, engines=[engine.url]) as update:
                await update.reload("/weights/2")
                raise RuntimeError("another engine has no memory left")

        with pytest.raises(RuntimeError, match="another engine has no memory left"):
            await half()
        assert await life.versions("s1") == {2}
        assert (await life.status())["policy_version"] == 1
        assert await fleet.version() == 2
        assert await (await trainer()).version() == 2, "one that is started anew"
        await stack.aclose()
        life = await stack.enter_async_context(home.life())
        assert await (await trainer()).version() == 2, "and the gateway, too"


async def test_an_engine_that_is_started_anew_within_an_update_is_named_and_not_labelled(
    world: World,
) -> None:
    """It has the weights of its start, and would sample under the new version; the other goes on."""
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet, urls = world.fleet(), [one.url, two.url]
        async with fleet.weight_update(2, engines=urls) as found:
            await found.reload("/weights/2")

        async def half() -> None:
            async with fleet.weight_update(3, engines=urls) as found:
                await found.reload("/weights/3")
                players[1].restart()

        with pytest.raises(HalfUpdated, match="started anew during the update") as caught:
            await half()
        assert list(caught.value.missed) == [two.url]
        assert [player.label for player in players] == ["3", "default"]
        assert [player.paused for player in players] == [False, True]
        async with fleet.weight_update(3, engines=urls) as found:
            await found.reload("/weights/3")
        assert [player.label for player in players] == ["3", "3"]
        assert [player.paused for player in players] == [False, False]


async def test_an_engine_that_the_block_woke_goes_on_with_the_new_label(world: World) -> None:
    """vLLM's /wake_up ends the pause, too; its label says that it is the same process."""
    player = Player(lambda ids, number: [1])
    async with ScriptedServer(player) as one:
        fleet = world.fleet()
        for version in (2, 3):
            async with fleet.weight_update(version, engines=[one.url]) as found:
                await found.reload(f"/weights/{version}")
                player.resume()
        assert (player.label, player.paused) == ("3", False)


LOADS: dict[str, tuple[int, bool]] = {
    "one that refuses has its old weights, and goes on": (400, False),
    "one without the endpoint, too": (404, False),
    "one that failed has lost them, and stays paused": (500, True),
    "so it has behind a proxy": (502, True),
}


@pytest.mark.parametrize(("status", "paused"), LOADS.values(), ids=LOADS)
async def test_an_engine_that_does_not_load(world: World, *, status: int, paused: bool) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        two.load_status = status

        async def step() -> None:
            async with world.fleet().weight_update(3, engines=[one.url, two.url]) as found:
                await found.reload("/weights/3")

        with pytest.raises(ExceptionGroup) as caught:
            await step()
        assert ("stays paused" in str(caught.value)) is paused
        assert ("start it anew" in str(caught.value.exceptions[0])) is paused
        assert [player.paused for player in players] == [False, paused]
        assert [player.label for player in players] == ["3", "default"]


async def test_an_engine_that_answers_that_its_cache_is_not_cleared_stays_paused(world: World) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet, urls = world.fleet(), [one.url, two.url]

        async def step() -> None:
            async with fleet.weight_update(3, engines=urls) as found:
                await found.reload("/weights/3")

        two.clears = False
        with pytest.raises(HalfUpdated, match="the cache is not cleared"):
            await step()
        assert [player.paused for player in players] == [False, True]
        two.clears = True
        await step()
        assert [player.paused for player in players] == [False, False]


INDEX = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
FOLDERS: dict[str, tuple[dict[str, str], str]] = {
    "without weights": ({"config.json": "{}", "optimizer.txt": ""}, "has no weights in it"),
    "that is half written": (
        {"model.safetensors.index.json": INDEX, "model-1.safetensors": ""},
        r"lacks model-2\.safetensors",
    ),
    "whose index is cut": (
        {"model.safetensors.index.json": INDEX[:20], "model-1.safetensors": ""},
        r"index\.json: ",
    ),
    "that is whole": (
        {"model.safetensors.index.json": INDEX.replace("-2", "-1"), "model-1.safetensors": ""},
        "",
    ),
    "of one file": ({"model.safetensors": ""}, ""),
}


@pytest.mark.parametrize(("files", "words"), FOLDERS.values(), ids=FOLDERS)
async def test_a_folder(tmp_path: Path, files: dict[str, str], words: str) -> None:
    """What cannot be loaded costs an engine the weights that it has: nobody is asked to."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    log = Log()

    async def step() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            await found.reload(str(tmp_path))

    if not words:
        await step()
        return
    with pytest.raises(InvalidBody, match=words) as caught:
        await step()
    assert caught.value.field == "path"
    assert log.of("e0") == log.of("e1") == ["pause=keep", "resume"]


OLDER: dict[str, tuple[bool, bool]] = {
    "an update that another one overtook labels and lets go on nothing": (True, False),
    "an update that fails after another one began lets nothing go on": (False, False),
    "an update that another one overtook before it loaded asks no engine to": (True, True),
}


@pytest.mark.parametrize(("ends", "loads"), OLDER.values(), ids=OLDER)
async def test_of_two_updates_at_once_the_one_that_began_last_has_the_engines(
    *, ends: bool, loads: bool
) -> None:
    """A trainer that was thought dead, beside the one that was started for it."""
    log, between = Log(), list[str]()

    async def both() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as older:
            async with weight_update.weight_update(log.gateways, 8, engines=log.engines) as newer:
                log.lines.clear()
                if loads:
                    with pytest.raises(weight_update.Superseded, match="/weights/7 is not loaded"):
                        await older.reload("/weights/7")
                await newer.reload("/weights/8")
            between.extend(log.lines)
            if not ends:
                raise ZeroDivisionError

    with pytest.raises(weight_update.Superseded if ends else ZeroDivisionError) as caught:
        await both()
    said = "".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
    assert "two trainers update at once" in said
    assert "g0, g1" in said
    assert log.of("e0") == log.of("e1") == ["reload", "label=8", "reset", "resume"]
    assert log.of("g0") == log.of("g1") == ["version=8", "resume"]
    assert log.lines == between


async def test_an_older_trainers_update_is_refused_by_gateways_themselves(world: World) -> None:
    one, two = world.fleet_of("g0"), world.fleet_of("g0")

    async def both() -> None:
        async with one.weight_update(3), two.weight_update(4):
            pass

    with pytest.raises(weight_update.Superseded):
        await both()
    (client,) = one.clients.values()
    status = await client.status()
    assert (status["policy_version"], status["paused"]) == (4, False)
    older = "000000000001.older"
    for late in (client.pause(older), client.resume(older), client.policy_version(5, update=older)):
        with pytest.raises(Conflict, match="another weight update began"):
            await late
    assert (await client.status())["policy_version"] == 4
    await client.pause()  # by a person: whoever has an update under way may end that
    await client.resume(status["update"])
    assert (await client.status())["paused"] is False


RESTARTED: dict[str, tuple[bool, bool]] = {
    "while the newer one goes on": (False, False),
    "once it is through": (True, False),
    "and whose log was compacted": (True, True),
}


@pytest.mark.parametrize(("through", "compacted"), RESTARTED.values(), ids=RESTARTED)
async def test_the_older_of_two_updates_is_refused_by_a_gateway_that_was_started_anew_between_them(
    world: World, *, through: bool, compacted: bool
) -> None:
    """It would go on under the older one's version, with the other's weights."""
    one, two = world.fleet_of("g0"), world.fleet_of("g0")

    async def older(newer: AsyncExitStack) -> None:
        async with one.weight_update(3):
            await newer.enter_async_context(two.weight_update(4))
            if through:
                await newer.pop_all().aclose()
            if compacted:
                core = world.sites["g0"].core
                assert core is not None
                sessions = core.sessions
                await sessions.store.replace(
                    "", *sessions.process.snapshot(1.0), *sessions.book.snapshot(1.0)
                )
            await world.restart("g0")

    async with AsyncExitStack() as newer:
        with pytest.raises(weight_update.Superseded):
            await older(newer)
    (client,) = two.clients.values()
    status = await client.status()
    assert (status["policy_version"], status["paused"]) == (4, False)


async def test_an_update_that_is_overtaken_while_caches_are_cleared_lets_no_engine_go_on() -> None:
    log = Log()
    clearing, cleared = asyncio.Event(), asyncio.Event()

    class Slow(Told):
        async def reset_prefix_cache(self) -> None:
            clearing.set()
            await cleared.wait()

    log.engines["e0"] = Slow(log, "e0")
    older = asyncio.ensure_future(update(log))
    await clearing.wait()
    log.begun = "000000000002.newer"
    cleared.set()
    with pytest.raises(weight_update.Superseded):
        await older
    assert "resume" not in "".join(log.lines)


async def test_two_updates_that_begin_at_once_are_ordered_alike_by_all_gateways(world: World) -> None:
    one, two = world.fleet(), world.fleet()
    first, second = (
        {name: fleet.clients[name] for name in names}
        for fleet, names in ((one, ("g0", "g1")), (two, ("g1", "g0")))
    )
    known = [str((await client.status())["update"]) for client in first.values()]
    less, more = (weight_update.update_name(known, own) for own in ("a", "b"))
    await first["g0"].pause(less)
    await second["g1"].pause(more)
    await second["g0"].pause(more)
    with pytest.raises(Conflict, match="another weight update began"):
        await first["g1"].pause(less)
    assert {(await client.status())["update"] for client in second.values()} == {more}
    for client in second.values():
        await client.resume(more)


NAMES = {
    "the first": ([], "000000000001.x"),
    "behind the newest": (["000000000009.b", "000000000010.a", ""], "000000000011.x"),
    "beside what is no name": (["odd"], "000000000001.x"),
}


@pytest.mark.parametrize(("known", "name"), NAMES.values(), ids=NAMES)
def test_an_updates_name_is(known: list[str], name: str) -> None:
    assert weight_update.update_name(known, "x") == name


async def test_engines_are_paused_labelled_and_let_go_over_http(world: World) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet = world.fleet()
        async with fleet.weight_update(3, mode="abort", engines=[one.url, two.url]) as found:
            assert [player.paused for player in players] == [True, True]
            await found.reload("/weights/3")
        assert [player.paused for player in players] == [False, False]
        async with weight_update.controls([one.url, two.url]) as controls:
            said = [await control.weight_versions() for control in controls.values()]  # type: ignore[attr-defined]
        assert said == [["3"], ["3"]]
        players[1].pause("keep")  # as a trainer left it that died in its update
        with pytest.raises(ZeroDivisionError):
            async with fleet.weight_update(4, engines=[one.url, two.url]):
                raise ZeroDivisionError
        assert [player.paused for player in players] == [False, True]
        async with fleet.weight_update(3, engines=[one.url, two.url]) as found:
            await found.reload("/weights/3")
        assert [player.paused for player in players] == [False, False]
    assert {one["labelled"] for one in (await fleet.status()).values()} == {True}
    assert fleet.counters.weight_updates == 2
