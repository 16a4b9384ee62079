"""What every engine keeps: the scripted one, the same behind vLLM's and SGLang's wires, and vLLM itself."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable, PromptTooLong, TokenizerMismatch
from sandgate.gateway.engine.api import Delta, GenerationResult, Labelled, VersionSpan
from sandgate.gateway.journal.top_logprobs import unpacked
from tests.gateway.engine.subjects import (
    ENDLESS,
    TRIES,
    VOCABULARY,
    WINDOW,
    Subject,
    in_process,
    over_http,
    real,
    sglang,
)
from tests.support.waiting import until

SUBJECTS: dict[str, Callable[[], AbstractAsyncContextManager[Subject]]] = {
    "scripted": in_process,
    "scripted over http": over_http,
    "completions over http": lambda: over_http(server={"generate_open": False}),
    "0.33's completions over http": lambda: over_http(
        server={"generate_open": False, "completion_versions": True}
    ),
    "0.31 over http": lambda: over_http(server={"old_logprobs": True, "versions": False}, chunk=3),
    "sglang": sglang,
    "sglang with new tokens only": lambda: sglang(server={"incremental": True}, chunk=3),
    "sglang without versions": lambda: sglang(server={"versions": False, "old_paths": True}),
}

REPORTING = (
    "scripted", "scripted over http", "0.33's completions over http", "vllm", "sglang", "sglang with new tokens only",
)  # fmt: skip
"""Those that report the version of each token."""


@pytest.fixture(params=[*SUBJECTS, pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(400)])])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "vllm":
        async with real(request.getfixturevalue("vllm")) as one:
            yield one
    else:
        async with SUBJECTS[request.param]() as one:
            yield one


def whole(sample: GenerationResult) -> None:
    """The laws of a Sample."""
    assert len(sample.ids) == len(sample.logprobs)
    assert all(logprob <= 1e-6 for logprob in sample.logprobs)
    edges = [0, *(span.end for span in sample.versions)]
    assert [span.start for span in sample.versions] == edges[:-1]
    assert edges[-1] == len(sample.ids)


class Listener:
    """Collects deltas; knows when the `at`th token arrived."""

    def __init__(self, at: int = 1) -> None:
        self.deltas: list[Delta] = []
        self._heard = asyncio.Event()
        self._at = at

    def __call__(self, delta: Delta) -> None:
        assert len(delta.ids) == len(delta.logprobs) > 0
        self.deltas.append(delta)
        if self.count >= self._at:
            self._heard.set()

    async def hears(self, task: asyncio.Task[GenerationResult]) -> bool:
        """Until so many tokens arrived; fails if the generation ends before. Whether it still runs."""
        waiting = asyncio.create_task(self._heard.wait())
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert self._heard.is_set(), f"ended after {self.count} tokens: {task}"
        return not task.done()

    @property
    def count(self) -> int:
        return sum(len(delta.ids) for delta in self.deltas)

    def joined(self) -> tuple[array[int], array[float]]:
        ids, logprobs = array("i"), array("f")
        for delta in self.deltas:
            ids.extend(delta.ids)
            logprobs.extend(delta.logprobs)
        return ids, logprobs


async def _underway(
    subject: Subject, at: int, **more: Any
) -> tuple[asyncio.Task[GenerationResult], Listener]:
    """A generation that still runs when its `at`th token was heard. A real engine may be done before we hear of it, as
    all tokens come at once on a busy machine: then it is tried again, a few times."""
    for _ in range(TRIES if subject.player is None else 1):
        listener = Listener(at)
        task = asyncio.create_task(subject.engine.generate(subject.endless(**more), listener))
        if await listener.hears(task):
            return task, listener
        await task
    raise AssertionError("ended before anything could happen in its middle")


async def test_ids_logprobs_and_versions_are_aligned(subject: Subject) -> None:
    sample = await subject.engine.generate(subject.prompt(version=4))
    whole(sample)
    assert 1 <= len(sample.ids) <= 20
    assert sample.versions == (VersionSpan(4, 0, len(sample.ids)),), (
        "a label without a number: the told version"
    )
    assert sample.resumed == 0


async def test_a_stream_is_the_sample_and_json_is_the_same(subject: Subject) -> None:
    listener = Listener()
    streamed = await subject.engine.generate(subject.prompt(), listener)
    at_once = await subject.engine.generate(subject.prompt())
    whole(streamed)
    assert listener.joined() == (streamed.ids, streamed.logprobs)
    assert streamed.ids == at_once.ids
    assert streamed.logprobs == pytest.approx(at_once.logprobs, abs=1e-5)
    assert (streamed.finish, streamed.stop_reason, streamed.versions) == (
        at_once.finish, at_once.stop_reason, at_once.versions,
    )  # fmt: skip


async def test_length_is_exact(subject: Subject) -> None:
    sample = await subject.engine.generate(subject.endless(max_tokens=7))
    whole(sample)
    assert (sample.finish, len(sample.ids)) == ("length", 7)


async def test_a_stop_id_ends_it_and_is_kept(subject: Subject) -> None:
    free = await subject.engine.generate(subject.endless(max_tokens=9))
    stop = free.ids[-1]
    sample = await subject.engine.generate(subject.endless(max_tokens=9, stop_ids=(stop,)))
    whole(sample)
    assert sample.ids == free.ids[: free.ids.index(stop) + 1]
    assert (sample.finish, sample.stop_reason) == ("stop", stop)


async def test_a_stop_string_ends_it_and_its_tokens_are_kept(subject: Subject) -> None:
    free = await subject.engine.generate(subject.endless(max_tokens=9))
    stop = next(text for token in free.ids if (text := subject.decode([token])).strip())
    sampling = msgspec.structs.replace(subject.repeating, stop=(stop,))
    sample = await subject.engine.generate(subject.endless(max_tokens=9, sampling=sampling))
    whole(sample)
    assert sample.ids == free.ids[: len(sample.ids)]
    assert (sample.finish, sample.stop_reason) == ("stop", stop)
    assert stop in subject.decode(sample.ids)
    assert stop not in subject.decode(sample.ids[:-1])


async def test_alternatives_are_as_many_as_asked_most_likely_first(subject: Subject) -> None:
    sample = await subject.engine.generate(subject.prompt(top_logprobs=3, max_tokens=4))
    whole(sample)
    tops = [unpacked(top) for top in sample.top]
    assert [len(top) for top in tops] == [3] * len(sample.ids)
    for top in tops:
        assert list(top) == sorted(top, key=lambda pair: -pair[1])
    none = await subject.engine.generate(subject.prompt(max_tokens=4))
    assert none.top == ()


async def test_cancelling_frees_the_engine(subject: Subject) -> None:
    task, _ = await _underway(subject, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(_idle(subject), what="the engine runs nothing", within_s=30)
    assert [each.in_flight for each in subject.engine.status()] == [0]


async def test_cancelling_frees_the_engine_without_a_stream(subject: Subject) -> None:
    if subject.player is not None:
        subject.player.token_s = 0.01  # as slow as a model
    task = await subject.busy(lambda: subject.engine.generate(subject.endless()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(_idle(subject), what="the engine runs nothing", within_s=30)


def _idle(subject: Subject) -> Callable[[], Awaitable[bool]]:
    async def idle() -> bool:
        return await subject.running() == 0

    return idle


async def test_a_listener_that_fails_frees_the_engine(subject: Subject) -> None:
    def broken(_: Delta) -> None:
        raise RuntimeError("the caller's own mistake")

    with pytest.raises(RuntimeError, match="own mistake"):
        await subject.engine.generate(subject.endless(), broken)
    await until(_idle(subject), what="the engine runs nothing", within_s=30)


async def test_a_prompt_over_the_window_is_refused_with_the_window(subject: Subject) -> None:
    long = array("i", [5]) * (WINDOW + 10)
    with pytest.raises(PromptTooLong) as caught:
        await subject.engine.generate(subject.prompt(ids=long))
    assert (caught.value.tokens, caught.value.limit) == (WINDOW + 10, WINDOW)


@pytest.mark.parametrize("streamed", [True, False])
async def test_ids_that_do_not_exist_are_another_tokenizers(subject: Subject, streamed: bool) -> None:
    """vLLM says so of a stream behind its 200."""
    foreign = subject.prompt(ids=array("i", [5, VOCABULARY + 9]))
    with pytest.raises(TokenizerMismatch, match="out of vocabulary"):
        await subject.engine.generate(foreign, (lambda _: None) if streamed else None)


async def _swap(subject: Subject, mode: str) -> tuple[GenerationResult, Listener]:
    """A generation with a weight update from version 7 to 8 in its middle. A real engine may be done before the pause
    arrives, however early it was sent: then it is tried again, a few times."""
    sample, listener = await _swapped(subject, mode)
    for _ in range(TRIES if subject.player is None else 0):
        if sample.resumed if mode == "abort" else len(sample.versions) > 1:
            break
        sample, listener = await _swapped(subject, mode)
    return sample, listener


async def _swapped(subject: Subject, mode: str) -> tuple[GenerationResult, Listener]:
    await subject.label("step-7")
    task, listener = await _underway(subject, 5, version=7)
    await subject.pause(mode)
    await subject.label("step-8")
    await subject.resume()
    return await task, listener


def _reports_versions(subject: Subject, request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["subject"] in REPORTING


async def test_tokens_from_before_the_first_update_are_of_the_initial_version(
    subject: Subject, request: pytest.FixtureRequest
) -> None:
    """They were sampled under "default", by a request that was sent before any version was told."""
    assert isinstance(subject.engine, Labelled)
    sample = await _first_update(subject)
    for _ in range(TRIES if subject.player is None else 0):  # a real engine may be done before the pause
        if len(sample.versions) > 1:
            break
        sample = await _first_update(subject)
    whole(sample)
    reports = _reports_versions(subject, request)
    assert [span.version for span in sample.versions] == ([0, 1] if reports else [0])
    assert subject.engine.labels.known is reports


async def _first_update(subject: Subject) -> GenerationResult:
    await subject.label("default")
    task, _ = await _underway(subject, 5, version=0)
    await subject.pause("keep")
    await subject.label("step-1")
    await subject.resume()
    return await task


async def test_weights_that_lost_their_label_are_not_used_until_they_have_one(subject: Subject) -> None:
    """As after a restart of the engine: the weights that it was started with, and the label of these."""
    await subject.label("step-7")
    await _looked(subject)
    assert (await subject.engine.generate(subject.prompt(version=7))).versions[0].version == 7
    await subject.label("default")
    await _looked(subject)
    (seen,) = subject.engine.status()
    assert (seen.healthy, seen.unlabelled) == (False, True)
    assert "labelled 'default', which is no version, but version 7 was told" in seen.detail
    for listener in (None, Listener()):
        with pytest.raises(EngineUnavailable, match="labelled 'default'"):
            await subject.engine.generate(subject.prompt(version=7), listener)
    assert await subject.running() == 0
    await subject.label("step-6")  # an older checkpoint, by its name: the truth
    await _looked(subject)
    sample = await subject.engine.generate(subject.prompt(version=7))
    assert sample.versions[0].version == 6, "also where answers report none"


async def _looked(subject: Subject) -> None:
    assert isinstance(subject.engine, Labelled)
    await subject.engine.version_told()


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_an_answer_of_weights_that_lost_their_label_is_never_the_told_version(
    subject: Subject, stream: bool, request: pytest.FixtureRequest
) -> None:
    """Nobody looked at the label in between; the answer itself says it, if the engine says it at all."""
    await subject.label("step-7")
    first = await subject.engine.generate(subject.prompt(version=7))
    assert first.versions == (VersionSpan(7, 0, len(first.ids)),)
    await subject.label("default")
    listener = Listener() if stream else None
    if not _reports_versions(subject, request):  # why labels are looked at before an engine is used, too
        assert (await subject.engine.generate(subject.prompt(version=7), listener)).versions == first.versions
        return
    with pytest.raises((EngineFailed, EngineUnavailable), match="labelled 'default'"):
        await subject.engine.generate(subject.prompt(version=7), listener)
    assert [(one.healthy, one.unlabelled) for one in subject.engine.status()] == [(False, True)]


@pytest.mark.parametrize("told", [0, 5])
async def test_labels_that_nobody_sets_mean_the_told_version(subject: Subject, told: int) -> None:
    await _looked(subject)
    sample = await subject.engine.generate(subject.prompt(version=told))
    assert sample.versions == (VersionSpan(told, 0, len(sample.ids)),)
    await _looked(subject)
    assert subject.engine.status()[0].healthy


@pytest.mark.parametrize("mode", ["abort", "keep"])
async def test_a_weight_update_in_the_middle_is_seen_token_by_token(
    subject: Subject, mode: str, request: pytest.FixtureRequest
) -> None:
    sample, listener = await _swap(subject, mode)
    whole(sample)
    assert (len(sample.ids), sample.finish) == (ENDLESS, "length")
    assert listener.joined() == (sample.ids, sample.logprobs)
    assert sample.resumed == (1 if mode == "abort" else 0)
    if _reports_versions(subject, request):
        assert [span.version for span in sample.versions] == [7, 8]
        assert 5 <= sample.versions[0].end < ENDLESS
    else:
        assert sample.versions == (VersionSpan(7, 0, ENDLESS),)
