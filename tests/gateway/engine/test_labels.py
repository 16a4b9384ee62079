"""Engines that restart after a weight update have the weights of their start: what they sample is of no version.

A restart of a scripted engine is `Player.restart`, or another server on the same port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine import facts
from sandgate.gateway.engine.api import Delta, VersionSpan
from sandgate.gateway.engine.labels import VERSION_MAX, Labels, SeenLabels, beyond, number_of
from sandgate.gateway.engine.scripted.engine import Gate, Player, Reply
from sandgate.gateway.engine.scripted.script import Fault
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VllmEngine
from tests.gateway.engine.test_replicas import nowhere, prompt
from tests.support.gateway import within
from tests.support.waiting import until

IDS = [11, 12, 13, 14]

# known, label, told -> may it be used
USED: dict[str, tuple[bool, str | int, int, bool]] = {
    "labels that nobody sets say nothing": (False, "default", 7, True),
    "a number is the truth": (True, "step-7", 7, True),
    "an older number is the truth, too": (True, "step-3", 7, True),
    "a newer number, as well": (True, 8, 7, True),
    "without a number its weights are those of the start": (True, "default", 7, False),
    "so they are with an empty label": (True, "", 7, False),
    "which is right before any version was told": (True, "default", 0, True),
}


@pytest.mark.parametrize(("known", "label", "told", "used"), USED.values(), ids=USED)
def test_who_may_be_used(known: bool, label: str | int, told: int, used: bool) -> None:
    against = Labels(known).against(label, told)
    assert (against == "") is used
    if not used:
        assert f"labelled {label!r}" in against
        assert f"version {told} was told" in against
        assert "make the weight update again" in against


NUMBERS: dict[str, tuple[str | int, int | None]] = {
    "the largest version": ("step-2147483647", 2**31 - 1),
    "one more": ("step-2147483648", None),
    "a time stamp": ("1764451234567", None),
    "of 5,000 digits": ("9" * 5000, None),
    "of many zeros": ("0" * 20 + "7", 7),
    "zero": ("step-0", 0),
    "none": ("default", None),
}


@pytest.mark.parametrize(("label", "number"), NUMBERS.values(), ids=NUMBERS)
def test_the_number_of_a_label(label: str, number: int | None) -> None:
    assert number_of(label) == number
    why = beyond(label)
    assert bool(why) is (number is None and label != "default")
    if why:
        assert Labels(known=True).against(label, 7) == why, "and where labels carry versions it is not used"
        assert "is over 2147483647" in why
        assert len(why) < 300


@pytest.mark.parametrize("label", ["1764451234567", "9" * 5000], ids=["a time stamp", "of 5,000 digits"])
async def test_an_engine_whose_label_is_no_version_is_used_as_last_told(
    label: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet([IDS], label=label, probe_s=0.01) as some:
        sample, _ = await some.ask()
        assert sample.versions == (VersionSpan(7, 0, 4),)
        assert (some.engine.labels.known, some.engine.labels.newest) == (False, 0)
        await some.ask()
    said = [one.getMessage() for one in caplog.records if "is over 2147483647" in one.getMessage()]
    assert len(said) == 1, "once"


def test_the_newest_label_is_remembered() -> None:
    labels = Labels()
    for label in ("default", "step-9", "step-8", 3, "default"):
        labels.heed(label)
    assert labels.newest == 9


@pytest.mark.parametrize(
    ("label", "known"), [("default", False), ("", False), ("v2-base", False), ("step-0", True)]
)
def test_a_number_on_any_engine_says_that_labels_carry_versions(label: str, known: bool) -> None:
    labels = Labels()
    labels.heed(label)
    assert labels.known is known
    labels.heed("default")
    assert labels.known is known, "and nothing seen takes it back"


# labels seen, each with what was told then; what is told now -> the version of what is sampled now
SEEN: dict[str, tuple[list[tuple[str | int, int]], int, int | None]] = {
    "none": ([], 7, None),
    "the told one": ([("step-7", 7)], 7, 7),
    "an older one: it missed an update": ([("step-6", 7)], 7, 6),
    "a newer one: an update that failed half-way, or was told to others": ([("step-8", 7)], 7, 8),
    "another was told since: the older of the two": ([("step-7", 7)], 8, 7),
    "and so it is after a way back": ([("step-7", 7)], 5, 5),
    "the last one counts": ([("step-7", 7), (8, 8)], 8, 8),
    "one that was lost": ([("step-7", 7), ("default", 7)], 7, None),
    "one that is no version: answers are refused for it": ([(f"step-{VERSION_MAX + 1}", 7)], 7, None),
}


@pytest.mark.parametrize(("labels", "told", "version"), SEEN.values(), ids=SEEN)
def test_what_a_replica_samples_by_its_label(
    labels: list[tuple[str | int, int]], told: int, version: int | None
) -> None:
    seen = SeenLabels()
    for label, then in labels:
        seen.heed("e", label, then)
    assert seen.version("e", told) == version
    assert seen.version("another", told) is None
    seen.keep(("another",))
    assert seen.version("e", told) is None


@dataclass
class Told:
    """What the trainer last told."""

    version: int = 7


class Heard:
    """What a stream told."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.two = asyncio.Event()
        """Two tokens came."""

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if sum(len(each.ids) for each in self.deltas) >= 2:
            self.two.set()


@dataclass
class Fleet:
    """Replicas behind vLLM's wire, all labelled `told` at first, under a trainer who told that version."""

    engine: VllmEngine
    servers: list[ScriptedServer]
    told: Told

    async def ask(self, *, stream: bool = False, **more: Any) -> tuple[Any, list[Delta]]:
        deltas: list[Delta] = []
        asked = prompt(version=self.told.version, **more)
        return await self.engine.generate(asked, deltas.append if stream else None), deltas

    async def let_go(self) -> list[int]:
        """The versions of the first tokens of a stream that nobody reads to its end."""
        heard = Heard()
        asked = asyncio.create_task(self.engine.generate(prompt(version=self.told.version), heard))
        await within(heard.two)
        asked.cancel()
        await asyncio.wait([asked])
        return sorted({delta.version for delta in heard.deltas})

    def healthy(self) -> list[bool]:
        return [each.healthy for each in self.engine.status()]

    def has_seen(self, version: int) -> Callable[[], Awaitable[bool]]:
        async def seen() -> bool:
            return self.engine.labels.newest == version

        return seen

    async def is_healthy(self, *want: bool) -> bool:
        return self.healthy() == list(want)

    @property
    def asked(self) -> list[int]:
        return [server.player.counts["generations"] for server in self.servers]


@asynccontextmanager
async def fleet(
    *scripts: Any,
    label: str = "step-7",
    probe_s: float = 60.0,
    server: dict[str, Any] | None = None,
    version: int = 7,
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(ScriptedServer(Player(script), **(server or {})))
            for script in scripts
        ]
        for one in servers:
            one.player.label = label
        urls = [one.url for one in servers]
        told = Told(version)
        engine = await VllmEngine.connect(urls, version_now=lambda: told.version, probe_s=probe_s)
        stack.push_async_callback(engine.aclose)
        yield Fleet(engine, servers, told)


async def test_a_generation_goes_to_a_replica_that_kept_its_label() -> None:
    async with fleet([IDS], [IDS]) as some:
        some.servers[0].player.restart()
        sample, _ = await some.ask()
        assert (sample.engine, sample.versions) == (some.servers[1].url, (VersionSpan(7, 0, 4),))
        assert some.asked == [1, 1], "the first one answered, and was not believed"
        assert some.healthy() == [False, True]
        await some.ask()
        assert some.asked == [1, 2], "and is not asked again"


async def test_a_replica_that_dies_in_the_middle_and_comes_back_bare_does_not_end_what_it_began() -> None:
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate, gate_at=2)], lambda ids, _: IDS[len(ids) - 3 :]) as some:
        task = asyncio.create_task(some.ask(stream=True))
        await gate.reached.wait()
        some.servers[0].player.restart()
        sample, deltas = await task
    assert sample.ids.tolist() == [token for delta in deltas for token in delta.ids] == IDS
    assert (sample.engine, sample.versions) == (some.servers[1].url, (VersionSpan(7, 0, 4),))


async def test_a_stream_whose_tokens_were_told_fails_for_they_are_of_no_version() -> None:
    async with fleet([IDS], [IDS]) as some:
        some.servers[0].player.restart()
        with pytest.raises(EngineFailed, match="tokens 0:4 were sampled by weights labelled 'default'"):
            await some.ask(stream=True)
        sample, _ = await some.ask(stream=True)
        assert sample.engine == some.servers[1].url


async def test_a_restarted_replica_is_not_used_from_its_first_moment_until_it_is_labelled() -> None:
    async with fleet([IDS], [IDS], probe_s=0.02) as some:
        port = some.servers[0]._port
        await some.servers[0].__aexit__(None, None, None)
        await until(lambda: some.is_healthy(False, True), what="it is seen to be down")
        seen: list[bool] = []
        player = Player([IDS])
        async with ScriptedServer(player, port=port):
            await until(lambda: _says(some, "labelled 'default'"), what="it is seen to be up, and bare")
            seen += some.healthy()
            for group in "abc":
                assert (await some.ask(affinity=group))[0].engine == some.servers[1].url
            player.label = "step-8"
            await until(
                lambda: some.is_healthy(True, True), what="its label is seen, without a word of the trainer"
            )
            sample, _ = await some.ask(affinity="d")
            assert sample.versions == (VersionSpan(8, 0, 4),)
        assert (seen, player.counts["generations"]) == ([False, True], 1)


async def _says(some: Fleet, what: str) -> bool:
    return what in some.engine.status()[0].detail


async def test_a_replica_that_joins_bare_is_not_used_until_the_next_weight_update() -> None:
    async with fleet([IDS]) as some, ScriptedServer(Player([IDS])) as fresh:
        await some.engine.set_urls([some.servers[0].url, fresh.url])
        assert some.healthy() == [True, False]
        some.servers[0].player.label = fresh.player.label = "step-8"
        some.told.version = 8
        await some.engine.version_told()
        assert some.healthy() == [True, True]


async def test_one_number_is_enough_to_doubt_the_others_as_soon_as_a_version_is_told() -> None:
    """The trainer labels both; one restarts before the gateway is told, which has never seen a label before."""
    async with fleet([IDS], [IDS], label="default") as some:
        some.told.version = 0
        assert (await some.ask())[0].versions == (VersionSpan(0, 0, 4),)
        some.servers[1].player.label = "1"
        await some.engine.version_told()
        assert some.healthy() == [True, True], "no version was told: bare weights are of the initial one"
        some.told.version = 1
        await some.engine.version_told()
        assert some.healthy() == [False, True]


async def test_engines_whose_labels_nobody_sets_go_on_after_a_restart() -> None:
    async with fleet([IDS], label="default", probe_s=0.02) as some:
        assert (await some.ask())[0].versions == (VersionSpan(7, 0, 4),)
        port = some.servers[0]._port
        await some.servers[0].__aexit__(None, None, None)
        await until(lambda: some.is_healthy(False), what="it is seen to be down")
        async with ScriptedServer(Player([IDS]), port=port):
            await until(lambda: some.is_healthy(True), what="it is back")
            assert (await some.ask())[0].versions == (VersionSpan(7, 0, 4),)


async def test_where_labels_cannot_be_looked_at_answers_decide() -> None:
    async with fleet([IDS], [IDS], server={"dev_mode": False}) as some:
        known = [some.engine.labels.known]
        await some.ask()
        assert [*known, some.engine.labels.known] == [False, True], "an answer said a number"
        some.servers[0].player.restart()
        assert (await some.ask())[0].engine == some.servers[1].url
        assert some.healthy() == [False, True]
        some.servers[0].player.label = "step-9"
        await some.engine.version_told()
        assert some.healthy() == [True, True], "it has another chance"


async def test_an_engine_too_busy_to_say_its_label_keeps_its_standing_and_a_new_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(http: Transport, url: str) -> str | None:
        raise EngineUnavailable(f"{url}: no answer within 5 s")

    async with fleet([IDS], [IDS]) as some, ScriptedServer(Player([IDS])) as fresh:
        some.servers[1].player.restart()
        await some.engine.version_told()
        monkeypatch.setattr(facts, "label_of", silent)
        await some.engine.version_told()
        await some.engine.set_urls([*(one.url for one in some.servers), fresh.url])
        assert some.healthy() == [True, False, False]
        assert "not known yet" in some.engine.status()[2].detail


LABELS: dict[str, tuple[dict[str, Any], str | None]] = {
    "as it was set": ({}, "step-7"),
    "not told without dev mode": ({"dev_mode": False}, None),
}


@pytest.mark.parametrize(("server", "label"), LABELS.values(), ids=LABELS)
async def test_the_label_of_a_replica(server: dict[str, Any], label: str | None) -> None:
    player = Player([IDS])
    player.label = "step-7"
    http = Transport()
    async with ScriptedServer(player, **server) as serving:
        assert await facts.label_of(http, serving.url) == label
    with pytest.raises(EngineUnavailable, match="/weight_info"):
        await facts.label_of(http, nowhere())
    await http.aclose()


async def test_frozen_by_an_update_and_then_bare_a_generation_is_of_no_version() -> None:
    """`keep`: it went on with new weights, then without a label: no restart leaves a connection, but a mistake may."""
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate, gate_at=2)]) as some:
        task = asyncio.create_task(some.ask())
        await gate.reached.wait()
        some.servers[0].player.label = "default"
        gate.open.set()
        with pytest.raises(EngineUnavailable, match="tokens 2:4 were sampled by weights labelled 'default'"):
            await task


# label, told -> version of tokens of a stream that nobody reads to its end
UNREAD: dict[str, tuple[str, int, int]] = {
    "of the told label": ("step-7", 7, 7),
    "of an engine that missed an update": ("step-3", 7, 3),
    "of an engine that has what nobody told this gateway": ("step-4", 0, 4),
    "of an update that failed behind its label": ("step-8", 7, 8),
    "of an engine whose label nobody sets": ("default", 7, 7),
}


@pytest.mark.parametrize(("label", "told", "version"), UNREAD.values(), ids=UNREAD)
async def test_tokens_of_a_stream_without_an_end_are_of_their_engines_label(
    label: str, told: int, version: int
) -> None:
    async with fleet([Reply(IDS, gate=Gate(), gate_at=2)], label=label, version=told) as some:
        assert await some.let_go() == [version]


async def test_a_label_that_only_an_answer_showed_counts_for_streams_behind_it() -> None:
    """Without dev mode nothing else shows it; and none of them may be read to its end."""
    held = Reply(IDS, gate=Gate(), gate_at=2)
    async with fleet([IDS, held], label="step-3", server={"dev_mode": False}) as some:
        await some.ask()
        assert await some.let_go() == [3]


# label, told, whether labels are read -> versions of tokens 2:4, the first two are of step-7
MEANWHILE: dict[str, tuple[str, int, bool, int]] = {
    "an update that was told": ("step-8", 8, True, 8),
    "one that this engine missed": ("step-7", 8, True, 7),
    "one that this gateway was not told": ("step-9", 7, True, 9),
    "one that was told, and its label not looked at yet": ("step-8", 8, False, 7),
    "a label that was lost says nothing of what runs": ("default", 8, True, 7),
}


@pytest.mark.parametrize(("label", "told", "read", "version"), MEANWHILE.values(), ids=MEANWHILE)
async def test_in_the_middle_of_a_stream(label: str, told: int, read: bool, version: int) -> None:
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate, gate_at=2)], server={"versions": False}) as some:
        heard = Heard()
        task = asyncio.create_task(some.engine.generate(prompt(version=7), heard))
        await within(heard.two)
        some.servers[0].player.label, some.told.version = label, told
        if read:
            await some.engine.version_told()
        gate.open.set()
        sample = await task
    later = (VersionSpan(7, 0, 4),) if version == 7 else (VersionSpan(7, 0, 2), VersionSpan(version, 2, 4))
    assert sample.versions == later


async def test_what_came_before_a_connection_broke_is_of_the_label_of_its_engine() -> None:
    breaks = [Reply(IDS, fault=Fault("reset", after=2)), Reply(IDS, fault=Fault("reset"))]
    async with fleet(breaks, [IDS[2:]]) as some:
        some.servers[0].player.label = "step-3"
        some.servers[0].player._remember = lambda run: None  # type: ignore[method-assign]  # its process is gone
        await some.engine.version_told()
        sample, deltas = await some.ask(stream=True)
    assert sample.versions == (VersionSpan(3, 0, 2), VersionSpan(7, 2, 4))
    assert deltas[0].version == 3


async def test_an_engine_that_restarted_before_anything_was_told_has_the_version_of_its_start() -> None:
    """Its answer says that it has no number, whatever it was last seen with."""
    async with fleet([IDS, IDS], label="step-3", version=0) as some:
        some.servers[0].player.restart()
        sample, _ = await some.ask()
        assert sample.versions == (VersionSpan(0, 0, 4),)
        _, deltas = await some.ask(stream=True)
        assert {delta.version for delta in deltas} == {0}


async def test_a_gateway_that_was_told_nothing_looks_at_labels_all_the_same() -> None:
    """Beside a training, as an evaluation's."""
    held = Reply(IDS, gate=Gate(), gate_at=2)
    async with fleet([held], label="step-3", probe_s=0.02, version=0) as some:
        some.servers[0].player.label = "step-4"
        await until(some.has_seen(4), what="its label is looked at")
        assert await some.let_go() == [4]
