"""A weight update over gateways and engines, and every place where one of them may fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandgate.contract.errors import InvalidBody, Unavailable
from sandgate.trainer.client import update_looks, weight_update
from sandgate.trainer.client.weight_update import HalfUpdated
from tests.trainer.made_checkpoint import packed, tensors, write
from tests.trainer.updated import Begun, Log, update


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


FOLDERS: dict[str, tuple[bool, str]] = {
    "that is whole": (True, ""),
    "that lacks a tensor which an engine has": (
        False,
        r"start, which an engine has its weights from, it lacks b of 2 tensors",
    ),
}


@pytest.mark.parametrize(("whole", "words"), FOLDERS.values(), ids=FOLDERS)
async def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool, words: str) -> None:
    """What cannot be loaded, or is not all, costs an engine the weights that it has: nobody is asked to."""
    monkeypatch.setattr(weight_update, "LOOK_S", 0.05)
    model = tensors({"a": [2], "b": [3]})
    begun = write(tmp_path / "start", {"model.safetensors": packed(model)})
    some = model if whole else {"a": model["a"]}
    folder = write(tmp_path / "v7", {"model.safetensors": packed(some)})
    log = Log(("e1", "refuses model_folders"))
    log.engines = {f"e{at}": Begun(log, f"e{at}", str(begun)) for at in range(3)}
    log.hangs = {("e2", "model_folders")}

    async def step(*, partial: bool = False, check: bool = True) -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            await found.reload(str(folder), partial=partial, check=check)

    if words:
        with pytest.raises(InvalidBody, match=words) as caught:
            await step()
        assert caught.value.field == "path"
        assert all(log.of(name) == ["pause=keep", "resume"] for name in log.engines)
    await step(partial=not whole)
    assert all(log.of(name).count("reload") == 1 for name in log.engines)
    await step(check=False)
    assert all(log.of(name).count("reload") == 2 for name in log.engines)
