"""What a scripted engine plays: replies, gates that hold it at a token, faults, versions, pauses and aborts."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import log
from typing import Literal

import orjson

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine import wire
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.engine.responses import SENTINEL, Step
from sandgate.gateway.engine.scripted.prefix_cache import PrefixCache
from sandgate.gateway.journal.top_logprobs import Top

INITIAL_LABEL = "default"
"""Of vLLM's weights, until somebody sets another."""

SHOWN_MAX = 100
"""Requests with pictures remembered, for a test to look at."""

ABORTED_MAX = 1_000
"""Aborted generations remembered, so that the rest is played when the caller resumes."""


def logprob_of(token: int, place: int) -> float:
    """The logprob of `token` at `place` (tokens before it, prompt included): in [-4, -1/64], exact in float32."""
    return -((token * 31 + place * 17) % 256 + 1) / 64


class Gate:
    """Holds a generation: `reached` is set when it arrives, it goes on when `open` is."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


FaultKind = Literal["status", "reset", "abort", "sentinel", "misaligned", "positive", "foreign_id"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Goes wrong once `after` tokens of the reply were sampled.

    status: refused; behind the first token of a stream that is an event, as its status was told before. reset: the
    connection breaks; abort: as by a weight update; sentinel: logprob -9999; misaligned: a logprob is missing;
    positive: a logprob of +0.5; foreign_id: an id outside of the vocabulary.
    """

    kind: FaultKind
    after: int = 0
    status: int = 500
    message: str = "scripted fault"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One generation. `finish` is what the engine says when all ids are sampled; fewer are if `max_tokens`, a stop id,
    the end-of-sequence id or a stop string comes first."""

    ids: Sequence[int] | str
    finish: Finish = "stop"
    stop_reason: str | int | None = None
    fault: Fault | None = None
    gate: Gate | None = None
    gate_at: int = 0
    """Tokens sampled before the gate holds; 0 = before the first."""


Line = Reply | str | Sequence[int]
Script = Sequence[Line] | Callable[[Ids, int], Line]


class ScriptedRefusal(Exception):
    """An HTTP status instead of an answer."""

    def __init__(self, status: int, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.body = orjson.dumps({"error": {"message": message, "type": "Scripted", "code": status}})

    @property
    def comes_late(self) -> bool:
        """Whether a stream has begun when vLLM finds it out: it looks at the window before, at all else of a request
        behind its 200."""
        return self.status == 400 and wire.TOO_LONG.search(str(self)) is None


class Broken(Exception):
    """The connection breaks here."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, whichever endpoint it came to."""

    request_id: str
    ids: Ids
    max_tokens: int
    stop_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    top: int = 0
    pictures: Sequence[bytes] = ()
    """PNGs that it was given."""
    adapter: str = ""
    """By which it is to be sampled."""
    allowed: Sequence[int] = ()
    """The only ids that may be sampled, by a measurement; empty: any."""


@dataclass(slots=True)
class _Run:
    """One generation being played."""

    ask: Ask
    ids: list[int]
    reply: Reply
    done: int = 0
    """Tokens of `ids` that are sampled, earlier pieces included."""
    start: int = 0
    """Where this piece starts."""
    labels: list[tuple[str | int, int, int]] = field(default_factory=list)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    """It has a slot; until then it waits in the queue."""
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    """The engine restarted: the connection breaks."""

    def note(self, label: str, count: int) -> None:
        """`count` more tokens of this piece by `label`."""
        at = self.done - self.start
        if self.labels and self.labels[-1][0] == label:
            self.labels[-1] = (label, self.labels[-1][1], at + count)
        else:
            self.labels.append((label, at, at + count))
        self.done += count


class Player:
    """The engine behind both faces. Public state may be changed at any time; it counts from the next token on."""

    def __init__(
        self,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        eos_ids: Sequence[int] = (),
        chunk: int = 1,
        max_model_len: int = 32_768,
        vocab_size: int = 0,
        token_s: float = 0.0,
        slots: int = 0,
        cache_blocks: int = 0,
    ) -> None:
        """`slots`: generations at once, further ones wait; 0 = no limit. `cache_blocks`: of the prefix cache that is
        counted as if there were one; 0 = none."""
        self._script, self._encode, self._decode = script, encode, decode
        self.eos_ids, self.chunk = tuple(eos_ids), chunk
        self.max_model_len, self.vocab_size, self.token_s = max_model_len, vocab_size, token_s
        self.slots, self.prefixes = slots, PrefixCache(cache_blocks)
        self.label = INITIAL_LABEL
        """Weight version that next tokens are sampled by."""
        self.adapters: dict[str, str] = {}
        """LoRA adapters that are loaded: name -> folder."""
        self.sampled_by: deque[str] = deque(maxlen=SHOWN_MAX)
        """Adapters of the latest requests; empty: the model itself."""
        self.logprobs_mode = "processed_logprobs"
        """What a measurement of it finds; the logprobs of its script stay as they are."""
        self.max_logprobs = 20
        """Alternatives that it gives at most, as vLLM's flag of this name; more are refused."""
        self.max_new_tokens = 0
        """Tokens that /v1/completions samples at most, as vLLM's generation config has it; 0: as many as asked for."""
        self.counts: Counter[str] = Counter()
        """generations, aborted, resumed, refused."""
        self.shown: deque[tuple[bytes, ...]] = deque(maxlen=SHOWN_MAX)
        """Pictures (PNG) of the latest requests that had some."""
        self.refuse_paused = False
        """While paused in abort or wait mode a new request is refused with 503 (vLLM 0.33); else it waits (0.32)."""
        self._runs: dict[str, _Run] = {}
        self._taken = 0
        """Slots."""
        self._queue: deque[_Run] = deque()
        self._cut: OrderedDict[bytes, tuple[Reply, list[int], int]] = OrderedDict()
        self._go = asyncio.Event()
        self._go.set()
        self._pause_mode = ""

    # -- control ------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Generations in the making."""
        return len(self._runs) - len(self._queue)

    @property
    def waiting(self) -> int:
        """Generations that wait for a slot."""
        return len(self._queue)

    @property
    def paused(self) -> bool:
        """No token is sampled now."""
        return not self._go.is_set()

    def pause(self, mode: str = "abort") -> None:
        """abort: what runs ends with finish `abort`; keep and wait: it freezes, and goes on after `resume`."""
        self._go.clear()
        self._pause_mode = mode
        if mode == "abort":
            self.abort_all()

    def resume(self) -> None:
        """Go on."""
        self._go.set()

    async def resumed(self) -> None:
        """Until it is not paused."""
        await self._go.wait()

    def abort(self, request_id: str) -> bool:
        """True if it was running."""
        run = self._runs.get(request_id)
        if run is not None:
            run.aborted.set()
        return run is not None

    def names(self) -> list[str]:
        """Request ids of what runs now."""
        return list(self._runs)

    def abort_all(self) -> None:
        """Abort what runs now."""
        for run in self._runs.values():
            run.aborted.set()

    def restart(self) -> None:
        """As a process that dies and comes up again: connections break, and the weights are those of the start."""
        self.label = INITIAL_LABEL
        self.adapters.clear()
        for run in self._runs.values():
            run.lost = True
        self.prefixes.clear()
        self.abort_all()
        self.resume()

    # -- playing ------------------------------------------------------------------------------------------------

    async def play(self, ask: Ask) -> AsyncGenerator[Step, None]:
        """Steps of one generation; the last one carries `finish` and the labels. Raises Refused, Broken."""
        self._refuse(ask)
        run = self._plan(ask)
        fault = run.reply.fault
        if fault is not None and fault.kind == "status" and not fault.after:
            self.counts["refused"] += 1
            raise ScriptedRefusal(fault.status, fault.message, fault.retry_after)
        self._runs[ask.request_id] = run
        try:
            await self._admitted(run)
            if run.admitted.is_set():
                self.prefixes.ask(ask.ids)
            async for step in self._steps(run):
                yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.counts["aborted"] += 1
            raise
        finally:
            del self._runs[ask.request_id]
            if run.admitted.is_set():
                self.prefixes.add(ask.ids + array("i", run.ids[run.start : run.done]))
                self._pass_on()

    async def _admitted(self, run: _Run) -> None:
        """Waits for a slot; an abort ends that, too."""
        if not self.slots or self._taken < self.slots:
            self._taken += 1
            run.admitted.set()
            return
        self._queue.append(run)
        try:
            await _either(run.admitted, run.aborted)
        finally:
            if not run.admitted.is_set():
                self._queue.remove(run)

    def _pass_on(self) -> None:
        """A slot is free: for the generation that waits longest."""
        if self._queue:
            self._queue.popleft().admitted.set()
        else:
            self._taken -= 1

    async def measured(self, ask: Ask) -> Step:
        """The answer to a gateway that measures the logprobs' mode (see engine.logprobs): beside the script, and not
        counted. Raises Refused."""
        self._refuse(ask)
        await self._go.wait()
        self._refuse(ask)
        token = next(iter(ask.allowed), ask.ids[-1])
        top = _filtered(self.logprobs_mode, token, max(1, ask.top))
        logprob = top[0][1]
        if not ask.top and not ask.allowed and self.logprobs_mode == "processed_logprobs":
            logprob = -log(2)  # greedily, where nothing is filtered out
        labels = ((self.label, 0, 1),)
        tops = (top,) if ask.top else ()
        return Step(array("i", [token]), array("f", [logprob]), tops, "length", labels=labels)

    def _refuse(self, ask: Ask) -> None:
        if len(ask.ids) >= self.max_model_len:
            self.counts["refused"] += 1
            raise ScriptedRefusal(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{len(ask.ids)} input tokens, which exceeds this limit even without any output tokens.",
            )
        if self.vocab_size and max(ask.ids) >= self.vocab_size:
            self.counts["refused"] += 1
            raise ScriptedRefusal(400, f"Token id {max(ask.ids)} is out of vocabulary")
        if ask.top > self.max_logprobs:
            self.counts["refused"] += 1
            raise ScriptedRefusal(
                400,
                f"Requested sample logprobs of {ask.top}, which is greater than max allowed: {self.max_logprobs}",
            )
        if self.paused and self._pause_mode in ("abort", "wait") and self.refuse_paused:
            raise ScriptedRefusal(503, "Generation is paused")

    def _plan(self, ask: Ask) -> _Run:
        """The rest of an aborted reply if this is its prompt and what was sampled; else the script's next reply."""
        number = self.counts["generations"]
        self.counts["generations"] += 1
        key = _key(ask, ask.ids)
        self.sampled_by.append(ask.adapter)
        if ask.pictures:
            self.shown.append(tuple(ask.pictures))
        if key in self._cut:
            self.counts["resumed"] += 1
            reply, ids, done = self._cut.pop(key)
            return _Run(ask, ids, Reply(ids, reply.finish, reply.stop_reason), done, done)
        number -= self.counts["resumed"]
        if callable(self._script):
            line = self._script(ask.ids, number)
        else:
            line = self._script[min(number, len(self._script) - 1)]
        reply = line if isinstance(line, Reply) else Reply(line)
        return _Run(ask, self._ids(reply.ids), reply)

    def _ids(self, told: Sequence[int] | str) -> list[int]:
        if not isinstance(told, str):
            return list(told)
        if self._encode is None:
            raise ScriptedRefusal(500, "the script has text, but the scripted engine was given no `encode`")
        return [*self._encode(told), *self.eos_ids[:1]]

    async def _steps(self, run: _Run) -> AsyncGenerator[Step, None]:
        fault = run.reply.fault
        while True:
            await self._wait(run)
            finish, reason = self._ended(run)
            if run.lost:
                self._remember(run)
                raise Broken("the engine restarted")
            if run.aborted.is_set():
                self._remember(run)
                finish, reason = "abort", None
            if finish is not None:
                yield Step(finish=finish, stop_reason=reason, labels=tuple(run.labels))
                return
            if fault is not None and run.done >= fault.after:
                self._break(run, fault)
                if fault.kind == "abort":
                    run.aborted.set()
                    continue
            step = self._sample(run, self._count(run))
            if fault is not None and run.done > fault.after:
                _spoil(step, fault)
            finish, reason = self._ended(run)
            if finish is not None:
                step.finish, step.stop_reason, step.labels = finish, reason, tuple(run.labels)
            yield step
            if finish is not None:
                return

    def _break(self, run: _Run, fault: Fault) -> None:
        if fault.kind not in ("reset", "status"):
            return
        if run.done > run.start:  # else the caller cannot tell it from a new request
            self._remember(run)
        if fault.kind == "reset":
            raise Broken(fault.message)
        raise ScriptedRefusal(fault.status, fault.message)

    async def _wait(self, run: _Run) -> None:
        """Time for others, then gates and pauses; an abort ends every wait."""
        await asyncio.sleep(self.token_s * self.chunk)
        gate = run.reply.gate
        if gate is not None and run.done == run.reply.gate_at:
            gate.reached.set()
            await _either(gate.open, run.aborted)
        await _either(self._go, run.aborted)

    def _count(self, run: _Run) -> int:
        """Tokens of the next step: a chunk, but not past a gate, a fault or the limit."""
        marks = [len(run.ids), run.start + run.ask.max_tokens]
        if run.reply.gate is not None:
            marks.append(run.reply.gate_at)
        if run.reply.fault is not None:
            marks.append(run.reply.fault.after)
        return min(self.chunk, *(mark - run.done for mark in marks if mark > run.done))

    def _sample(self, run: _Run, count: int) -> Step:
        ids: list[int] = []
        for token in run.ids[run.done : run.done + count]:
            ids.append(token)
            if token in self.eos_ids or token in run.ask.stop_ids or self._stop_string(run, ids) is not None:
                break
        place = len(run.ask.ids) - run.start + run.done
        logprobs = [logprob_of(token, place + at) for at, token in enumerate(ids)]
        top = tuple(_top(token, logprobs[at], run.ask.top) for at, token in enumerate(ids))
        run.note(self.label, len(ids))
        return Step(ids=array("i", ids), logprobs=array("f", logprobs), top=top if run.ask.top else ())

    def _stop_string(self, run: _Run, fresh: Sequence[int] = ()) -> str | None:
        if not run.ask.stop or self._decode is None:
            return None
        text = self._decode([*run.ids[run.start : run.done], *fresh])
        return next((stop for stop in run.ask.stop if stop in text), None)

    def _ended(self, run: _Run) -> tuple[Finish | None, str | int | None]:
        if run.done > run.start:
            last = run.ids[run.done - 1]
            if last in self.eos_ids:
                return "stop", None
            if last in run.ask.stop_ids:
                return "stop", last
            if (stop := self._stop_string(run)) is not None:
                return "stop", stop
        if run.done == len(run.ids):
            return run.reply.finish, run.reply.stop_reason
        if run.done - run.start >= run.ask.max_tokens:
            return "length", None
        return None, None

    def _remember(self, run: _Run) -> None:
        self.counts["aborted"] += 1
        key = _key(run.ask, run.ask.ids + array("i", run.ids[run.start : run.done]))
        self._cut[key] = (run.reply, run.ids, run.done)
        if len(self._cut) > ABORTED_MAX:
            self._cut.popitem(last=False)


def _key(ask: Ask, ids: Ids) -> bytes:
    """Of a prompt: the same ids with other pictures are another one."""
    return ids.tobytes() + b"".join(blake2b(png, digest_size=16).digest() for png in ask.pictures)


def _spoil(step: Step, fault: Fault) -> None:
    if fault.kind == "sentinel":
        step.logprobs[-1] = SENTINEL
    elif fault.kind == "positive":
        step.logprobs[-1] = 0.5
    elif fault.kind == "foreign_id":
        step.ids[-1] = -7
    elif fault.kind == "misaligned":
        step.logprobs.pop()


def _top(token: int, logprob: float, count: int) -> Top:
    """`token` and the ids after it, each one nat less likely than the one before."""
    return tuple((token + at, logprob - at) for at in range(count))


def _filtered(mode: str, token: int, count: int) -> Top:
    """Of a position sampled with top_k 1: `count` tokens of which the first has half the probability."""
    raw = [-(1 + at) * log(2) for at in range(count)]
    if mode == "processed_logprobs":
        raw = [0.0] + [SENTINEL] * (count - 1)
    elif mode != "raw_logprobs":
        raw = [p + 5.0 for p in raw]
    return tuple((token + at, p) for at, p in enumerate(raw))


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    """Until one of them is set."""
    if one.is_set() or other.is_set():
        return
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
