"""EnginePool: replicas of one engine over HTTP: retries, resumes after weight updates and lost hosts, aborts.

What is of one engine's API only is its `Dialect`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Self

from sandgate.contract.errors import EngineFailed, EngineUnavailable, ModelNotServed, Overloaded
from sandgate.gateway.engine import health, load
from sandgate.gateway.engine.api import (
    Delta,
    EngineFacts,
    EngineStatus,
    GenerationResult,
    Prompt,
    ServedAdapter,
)
from sandgate.gateway.engine.dialect import Dialect
from sandgate.gateway.engine.generation import CAPPED, Generation
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.engine.logprobs import Kind
from sandgate.gateway.engine.logprobs_check import LogprobsCheck
from sandgate.gateway.engine.responses import ErrorInAnswer, Unlabelled
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.silence import Silence
from sandgate.gateway.engine.sse import Events
from sandgate.gateway.engine.transport import Lost, Streamed, Transport
from sandgate.gateway.engine.tries import Tries
from sandgate.gateway.engine.way import PausedNow, Reader, Shut, Way, meaning
from sandgate.gateway.engine.weights import ReplicaWeights, without

ABORT_S = 2.0
"""Seconds that a cancelled caller waits for the engine to take the abort; the closed connection ends the generation,
too."""

log = logging.getLogger("sandgate.gateway.engine")

OnDelta = Callable[[Delta], None]


class EnginePool:
    """An `Engine` over one or more servers of one kind. Make it with `connect`.

    A stop string that begins before a cut and ends after it is not seen by the engine, which knows only its own piece.
    """

    dialect: ClassVar[Dialect]

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str = "",
        logprobs_mode: str = "unknown",
        timeout_s: float = 1800.0,
        vocab_size: int = 0,
        api_key: str = "",
        version_now: Callable[[], int] | None = None,
        labels: Labels | None = None,
        gather_s: float = 0.0,
        adapter_now: Callable[[], ServedAdapter | None] | None = None,
    ) -> None:
        """`vocab_size`: ids at or above it are refused; 0 = unknown. `version_now`: gives the policy version last set,
        for tokens that are sampled after a cut by an engine that reports none; default: the prompt's.
        `labels`: what is known of the engines' labels already. `gather_s`: what a stream brings within so many
        seconds is read together. `adapter_now`: gives the LoRA adapter that is the policy; None: the engines' own
        weights are."""
        self.table = ReplicaTable.of(_plain(urls))
        self.facts = EngineFacts(logprobs_mode=logprobs_mode)
        self._known: dict[str, EngineFacts] = {}
        self._changing = asyncio.Lock()
        self._model, self._timeout_s, self._vocab_size = model, timeout_s, vocab_size
        self._gather_s = gather_s
        self._by_adapter: Counter[str] = Counter()
        """Attempts in flight."""
        self._http = Transport(api_key=api_key)
        self.labels = labels or Labels()
        self._weights = ReplicaWeights(
            self._http, self.dialect, self.table, self.labels, version_now, adapter_now, self._way
        )
        self.hold: Callable[[], Awaitable[None]] = _goes_on
        self._logprobs = LogprobsCheck(logprobs_mode, self.table, self._measure, self.dialect.against)
        for url in self.table.members():
            self._logprobs.expect(url)
        self._silence = Silence()
        self._ways: dict[str, Way] = {}
        self._unserved: dict[str, str] = {}
        """Replicas without the model -> why. They may get it, as an adapter that is loaded."""
        self._capped: set[str] = set()
        """Replicas of which the log says that they have a limit of their own."""
        self._running: set[asyncio.Task[object]] = set()
        self._cut: set[asyncio.Task[object]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._closed = False
        self._empty = asyncio.Event()
        """Set when nothing is running; awaited only while closing."""

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        *,
        model: str = "",
        logprobs_mode: str = "unknown",
        timeout_s: float = 1800.0,
        vocab_size: int = 0,
        api_key: str = "",
        version_now: Callable[[], int] | None = None,
        labels: Labels | None = None,
        gather_s: float = 0.0,
        adapter_now: Callable[[], ServedAdapter | None] | None = None,
        probe_s: float = health.PROBE_S,
        patient: bool = False,
        peers: int = 1,
        index: int = 0,
    ) -> Self:
        """Makes an engine: asks every replica what it is, and watches it from now on. A replica that does not answer
        yet is down until it does; if none answers, or there is none, `facts` stay unknown until one comes up.
        Raises EngineFailed for a server of another kind, one without `model`, or one that reports logprobs of another
        mode than `logprobs_mode`. Not if `patient`: then that replica is not used, and its status says why.
        `peers`, `index`: gateways that share these replicas, and which of them this is."""
        engine = cls(
            urls,
            model=model,
            logprobs_mode=logprobs_mode,
            timeout_s=timeout_s,
            vocab_size=vocab_size,
            api_key=api_key,
            version_now=version_now,
            labels=labels,
            gather_s=gather_s,
            adapter_now=adapter_now,
        )
        engine.table.peers, engine.table.index = peers, index
        try:
            learn = engine._learn_quietly if patient else engine._learn
            await asyncio.gather(*(learn(url) for url in engine.table.members()))
            await engine._logprobs.settle()
            if (wrong := engine._logprobs.wrong | engine._unserved) and not patient:
                url, why = next(iter(wrong.items()))
                raise EngineFailed(f"{url}: {why}")
            if engine._weights.demanded:  # as the last one asked may have shown
                await engine.version_told()
        except BaseException:
            await engine.aclose()
            raise
        engine._watches = [
            asyncio.create_task(
                health.watch(engine.table, engine._probe, every_s=probe_s, on_up=engine._learn_quietly)
            ),
            asyncio.create_task(
                load.watch(engine._http, engine.table, engine.dialect.gauges, every_s=load.every_s(peers))
            ),
        ]
        return engine

    async def _learn(self, url: str) -> None:
        try:
            replica = await self.dialect.probe(
                self._http, url, model=self._model, logprobs_mode=self.facts.logprobs_mode
            )
        except EngineUnavailable as error:
            self.table.down(url, str(error))
            return
        self._ways[url] = replica.way
        for note in replica.notes:
            log.warning("engine %s: %s", url, note)
        if replica.unserved:
            self._unserved[url] = replica.unserved
            self.table.down(url, replica.unserved)
            return
        self._unserved.pop(url, None)
        self._known[url] = replica.facts
        self._logprobs.start(url)
        self._choose_facts()
        await self._weights.read([url], fresh=True)
        self.table.probed(url, None)

    async def _measure(self, url: str) -> Kind:
        return await self.dialect.measure(self._http, url, self._way(url), model=self._model)

    def _way(self, url: str) -> Way:
        return self._ways.get(url, self.dialect.unasked)

    def _choose_facts(self) -> None:
        """Takes the facts of the replica with the smallest window, which every replica takes. While no replica of the
        set has answered, the old facts stay, because records of what was sampled carry them."""
        candidates = [self._known[url] for url in self.table.members() if url in self._known]
        if candidates:
            self.facts = min(candidates, key=lambda facts: facts.window or sys.maxsize)

    async def _learn_quietly(self, url: str) -> None:
        try:
            await self._learn(url)
        except EngineFailed as error:
            self.table.down(url, str(error))

    async def _probe(self, url: str) -> health.Probe:
        """Probes a replica's health, and reads its label before it counts as up where labels carry versions."""
        up = any(replica.url == url and replica.healthy for replica in self.table.replicas.values())
        result = await self.dialect.check(self._http, url)
        self._silence.heard(url, silent=result.silent)
        if result.dead:
            self._logprobs.forget(url)
        if result.failure is None and url in self._unserved:
            result = health.Probe(await self._still_unserved(url))
        if result.failure is None:
            self._logprobs.again(url)
        doubted = url in self.table.replicas and bool(self.table.replicas[url].doubt)
        told_by = self._weights.adapter() is not None or self.labels.known
        if result.failure is None and (told_by or doubted):
            await self._weights.read([url], fresh=not up)
        return result

    async def _still_unserved(self, url: str) -> str | None:
        try:
            replica = await self.dialect.probe(
                self._http, url, model=self._model, logprobs_mode=self.facts.logprobs_mode
            )
        except (EngineUnavailable, EngineFailed) as error:
            return str(error)
        return replica.unserved or None

    async def version_told(self) -> None:
        """See `Labelled.version_told`."""
        await self._weights.read(self.table.members())

    async def set_urls(self, urls: Sequence[str], here: Collection[str] = ()) -> None:
        """Replaces the replicas. `here`: those on this gateway's machine. New ones are asked what they are before the
        old ones leave, so that turns find an engine all the while. Generations on a replica that leaves end
        there. Returns when the new set is in force."""
        wanted = _plain(urls)
        async with self._changing:
            self.table.here = frozenset(_plain([*here]))
            fresh = [url for url in wanted if self.table.join(url)]
            for url in fresh:
                self._logprobs.expect(url)
            await asyncio.gather(*(self._learn_quietly(url) for url in fresh))
            for url in set(self.table.members()) - set(wanted):
                self.table.leave(url)
            for url in self._known.keys() - self.table.replicas.keys():
                self._logprobs.forget(url)
            self._silence.keep(self.table.replicas)
            self._capped &= self.table.replicas.keys()
            self._weights.keep(self.table.replicas)
            for by_url in (self._known, self._ways, self._unserved):
                for url in by_url.keys() - self.table.replicas.keys():
                    by_url.pop(url)
            self._choose_facts()
        log.info("engines: %s", ", ".join(wanted) or "none")

    def ended(self, session: str) -> None:
        """See `KeepsSessions.ended`."""
        self.table.ended(session)

    def status(self) -> list[EngineStatus]:
        """One entry per replica of the set, in the order in which they joined."""
        return self.table.status()

    async def aclose(self) -> None:
        """Aborts running generations, stops watching, closes connections. Idempotent."""
        self._closed = True
        self._cut |= self._running
        for task in (*self._running, *self._watches):
            task.cancel()
        if self._watches:
            await asyncio.wait(self._watches)
        if self._running:
            self._empty.clear()
            await self._empty.wait()
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._logprobs.aclose()
        await self._http.aclose()

    # -- one generation -----------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, on_delta: OnDelta | None = None) -> GenerationResult:
        """See `Engine.generate`. Raises EngineFailed after `timeout_s`."""
        if self._closed:
            raise EngineUnavailable("this gateway has closed its engines")
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._to_the_end(prompt, on_delta)
        except TimeoutError:
            raise EngineFailed(f"the engine did not finish within {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            # Was it `aclose` that cancelled, and not (also) whoever owns the task?
            if task not in self._cut or task.uncancel() > 0:
                raise
            raise EngineUnavailable("this gateway is closing its engines") from None
        finally:
            self._running.discard(task)
            self._cut.discard(task)
            if not self._running:
                self._empty.set()

    async def _to_the_end(self, prompt: Prompt, on_delta: OnDelta | None) -> GenerationResult:
        made = Generation(
            prompt,
            told=prompt.version,
            streams=on_delta is not None,
            over_sampled=self.dialect.over_sampled,
        )
        tries, going = Tries(), False
        while True:
            if not going:
                await self.hold()
            going = False
            url = await self._reserve(made, tries)
            made.weights = self._own(url, made)
            self._by_adapter[made.adapter] += 1
            try:
                await self._attempt(url, made, tries, on_delta)
            except Lost as error:
                await self._lost(url, made, tries, error)
            except ModelNotServed as error:
                self._lacks_adapter(url, made, tries, error)
                self._broken_off(made, error)
            except Unlabelled as error:
                self._weights.forget(url)
                self._weights.doubt(url, str(error))
                made.forget(error)
                tries.refused(url, EngineUnavailable(f"engine {url}: {error}", retry_after=health.PROBE_S))
                continue
            except (Overloaded, EngineUnavailable) as error:
                tries.refused(url, error)
                self._broken_off(made, error)
            except Shut as error:
                self._ways[url] = error.instead
                continue
            except PausedNow:
                await tries.wait_out_pause()
                continue
            finally:
                self.table.release(url)
                self._by_adapter -= Counter((made.adapter,))  # none of what is left at 0
            self._weights.heed(url, made.newest, made.label)
            going = self._take_up(url, made)
            if made.finish is not None:
                return made.sample(url, self._known.get(url, self.facts).build)

    async def _reserve(self, made: Generation, tries: Tries) -> str:
        """The replica that takes the next piece, counted as in flight since the last moment that was waited for."""
        prompt = made.prompt
        while True:
            self._aim(made)  # a pause that was waited out may have brought new weights
            url = self.table.reserve(prompt.affinity, tries.out, session=prompt.session or prompt.affinity)
            if url is not None:
                return url
            # a turn waits for the measurement as it would in the same queue
            if not await self._logprobs.next_of(self.table.unmeasured(tries.out)):
                raise tries.verdict(self.table)
            await self.hold()

    def _take_up(self, url: str, made: Generation) -> bool:
        """What the engine ended too early, for reasons of its own, goes on. True: at once, as if it had not ended; the
        rest waits for a weight update that holds the gateway."""
        if made.finish == "abort":
            made.cut("the engine aborted it", told=self._weights.told_for(made.prompt))
            return False
        if self._way(url).caps and made.is_short(self._known.get(url, self.facts).window):
            if url not in self._capped:
                self._capped.add(url)
                log.warning(
                    "engine %s: answers end early, and go on in requests of their own: %s", url, CAPPED
                )
            made.capped(told=self._weights.told_for(made.prompt))
            return True
        return False

    def _aim(self, made: Generation) -> None:
        """What samples the next piece, and of which version that is: as of now, both at once."""
        told, adapter = self._weights.told_for(made.prompt), ""
        if (served := self._weights.adapter()) is not None:
            told, adapter = served.version, served.name
        made.ask(told, numbered=not adapter and self.labels.demanded(told), adapter=adapter)

    def _lacks_adapter(self, url: str, made: Generation, tries: Tries, error: ModelNotServed) -> None:
        """The replica does not have the adapter that it was asked for: nothing was sampled. Raises `error` where the
        model itself is not served."""
        served = self._weights.adapter()
        if not made.adapter:
            raise error
        if served is None or served.name != made.adapter:
            return  # another was told meanwhile, and this one was unloaded: it is asked again, for that one
        self._weights.doubt(url, without(served))
        tries.refused(url, EngineUnavailable(f"engine {url}: {without(served)}", retry_after=health.PROBE_S))

    async def _lost(self, url: str, made: Generation, tries: Tries, error: Lost) -> None:
        """The connection broke. Tokens that had arrived are kept; the rest is asked for next, maybe elsewhere."""
        if tries.lost(url, error):
            self.table.down(url, str(error))
            if error.refused:
                self._logprobs.forget(url)
        elif self.labels.known or made.adapter:  # it may be up again already, with the weights of its start
            await self._weights.read([url], fresh=True)
        if made.ids and made.finish in (None, "abort"):
            made.cut(str(error), told=self._weights.told_for(made.prompt))

    def _broken_off(self, made: Generation, error: Exception) -> None:
        """An engine refused, maybe in the middle of a stream: what it had sampled by then stands."""
        if made.begun:
            made.cut(str(error), told=self._weights.told_for(made.prompt))

    @property
    def serves_adapters(self) -> bool:
        """See `ServesAdapters.serves_adapters`."""
        return self.dialect.serves_adapters

    def adapters_in_use(self) -> frozenset[str]:
        """See `ServesAdapters.adapters_in_use`."""
        return frozenset(name for name, count in self._by_adapter.items() if name and count)

    def _own(self, url: str, made: Generation) -> int | None:
        """The version of a replica's own label; None if what was told counts."""
        return None if made.adapter else self._weights.version(url)

    async def _attempt(self, url: str, made: Generation, tries: Tries, on_delta: OnDelta | None) -> None:
        """Asks one replica for the rest of a generation. Returns when the answer is complete. If the call is cancelled
        or fails on our side, the engine is asked to abort."""
        way, prompt = self._way(url), made.prompt
        if made.adapter:
            prompt = replace(prompt, model=made.adapter)
        ids, max_tokens = made.asks()
        request_id = tries.name(prompt.request_id)
        request = way.request(
            prompt,
            ids,
            request_id=request_id,
            max_tokens=max_tokens,
            piece=made.resumed,
            stream=on_delta is not None,
            salt=f"v{made.told}",
            vocab_size=self._vocab_size,
        )
        read = way.reader(prompt, ids, vocab_size=self._vocab_size)
        working = True
        """The engine may be sampling."""
        try:
            async with (
                self._silence.broken_for(url),
                self._http.post(url + request.path, request.body, request_id=request_id) as answer,
            ):
                working = answer.status == 200
                if not working:
                    raise way.refused(
                        answer.status, await answer.body(), answer.retry_after, prompt_tokens=len(ids)
                    )
                try:
                    if on_delta is None:
                        await self._whole(answer, read, made)
                    else:
                        await self._stream(url, answer, read, made, on_delta)
                except ErrorInAnswer as said:
                    raise meaning(said, way, begun=made.begun, prompt_tokens=len(ids)) from None
        except Lost:
            raise
        except BaseException:
            if working:
                await self._stop(url, request_id)
            raise

    async def _whole(self, answer: Streamed, read: Reader, made: Generation) -> None:
        step = read(await answer.body())
        if step.finish is None:
            raise EngineFailed("the engine's answer has no choice with a finish_reason")
        made.take(step)

    async def _stream(
        self, url: str, answer: Streamed, read: Reader, made: Generation, on_delta: OnDelta
    ) -> None:
        events = Events()
        # Where the end of an answer brings no versions, when a token came is all that tells its own.
        gather_s = self._gather_s if self.labels.known or made.adapter else 0.0
        async for chunk in answer.chunks(gather_s):
            if not made.adapter:
                weights = self._weights.version(url)
                if weights is not None:
                    made.tell(weights)
                elif made.weights is None:
                    made.tell(self._weights.told_since(made.prompt))
            payloads = events.feed(chunk)
            if len(payloads) == 1:  # what a slow engine brings
                if (alone := made.take(read(payloads[0]))) is not None:
                    on_delta(alone)
                continue
            came: list[Delta] = []
            try:
                for step in read.together(payloads):
                    if (delta := made.take(step)) is not None:
                        came.append(delta)  # noqa: PERF401  (what came before an error must be there)
            finally:  # before an error is told: what came with it is sampled, and stays
                if came:
                    on_delta(Delta.joined(came))
        if made.finish is None:
            raise Lost("the stream ended before the generation did", refused=False)

    async def _stop(self, url: str, request_id: str) -> None:
        """Asks the engine to abort, within ABORT_S; goes on if the caller is cancelled again."""
        task = asyncio.create_task(self._abort(url, request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
        await asyncio.shield(task)

    async def _abort(self, url: str, request_id: str) -> None:
        request = self._way(url).abort(request_id)
        if request is None:
            return  # the closed connection ends it
        try:
            await self._http.ask(
                "POST",
                url + request.path,
                body=request.body,
                timeout_s=ABORT_S,
            )
        except Lost as error:
            log.info("engine %s did not take the abort of %s: %s", url, request_id, error)


async def _goes_on() -> None:
    """Where nobody holds turns."""


def _plain(urls: Sequence[str]) -> tuple[str, ...]:
    """The URLs, each once, without a slash at the end."""
    return tuple(dict.fromkeys(url.rstrip("/") for url in urls))
