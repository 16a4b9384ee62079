"""Gateways and engines that an update before left on hold or paused, or whose weights nobody knows."""

from __future__ import annotations

import pytest

from sandgate.trainer.client import update_looks, weight_update
from sandgate.trainer.client.weight_update import HalfUpdated
from tests.trainer.updated import Log, Says, update


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
