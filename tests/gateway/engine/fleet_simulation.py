"""A fleet in virtual time: gateways with the real ReplicaTable, engines with queues and prefix caches, agents that take
turns and use tools. Everything comes from a seed, so that a bad routing is found again.

An engine samples up to SLOTS generations at once; further ones wait in its queue. A turn's prompt is its group's task
and all of its session's turns so far; what of it an engine has computed before is a prefix hit.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sandgate.gateway.engine.routing import ReplicaTable

SLOTS = 64
"""Generations at once in an engine; vLLM's default is 256, which these loads never reach."""
TASK_TOKENS, SAMPLED_TOKENS, TOOL_TOKENS = 2_000, 300, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One fleet and its work."""

    gateways: int
    engines: int
    sessions: int
    """At once."""
    group: int = 8
    turns: int = 10
    generate_s: float = 6.0
    """Mean; lengths of answers differ by an exponential law above a half of it."""
    tools_s: float = 6.0
    report_s: float = 2.0
    """Between two readings of an engine's load by one gateway; 0 = engines report none."""
    stagger_s: float = 30.0
    """The first groups start within this time."""
    nodes: int = 0
    """Machines that gateways and engines are spread over, one after the other; 0 = nobody knows."""
    lonely: int = 0
    """Of them, those without a gateway: the last ones."""


@dataclass(slots=True)
class _Engine:
    running: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    busy_s: float = 0.0
    """Integral of what is in flight."""
    idle_s: float = 0.0
    cached: dict[str, int] = field(default_factory=dict)
    """Session or group -> tokens of its history that were computed here."""
    since: float = 0.0

    @property
    def load(self) -> int:
        return self.running + len(self.waiting)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run measured, after its warm-up."""

    busiest: float
    """Mean in flight of the busiest engine, as a multiple of the mean of all."""
    idle: float
    """Share of engine time with nothing in flight, while there was work for every engine."""
    hits: float
    """Share of prompt tokens that the engine had computed before."""
    loads: dict[str, float]
    """Engine -> mean in flight."""
    here: float
    """Share of turns on their gateway's machine."""


class Fleet:
    """The simulation."""

    def __init__(
        self, shape: Shape, seed: int, table: Callable[[Shape, int, tuple[str, ...]], ReplicaTable]
    ) -> None:
        self.shape, self.chance = shape, random.Random(seed)
        self.now, self._ids = 0.0, itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.engines = {f"http://engine-{number:03}": _Engine() for number in range(shape.engines)}
        urls = tuple(self.engines)
        self.tables = [table(shape, index, urls) for index in range(shape.gateways)]
        for index, one in enumerate(self.tables):
            one.here = frozenset(url for at, url in enumerate(urls) if self._beside(index, at))
        self.computed = self.prompted = self.turns = self.near = 0
        self.begun = 0.0
        self._groups = itertools.count()
        for _ in range(shape.sessions // shape.group):
            self.at(self.chance.uniform(0, shape.stagger_s), self._group)
        if shape.report_s:
            for table_ in self.tables:
                self.at(self.chance.uniform(0, shape.report_s), partial(self._report, table_))

    def at(self, after: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + after, next(self._ids), what))

    def _beside(self, gateway: int, engine: int) -> bool:
        nodes = self.shape.nodes
        return bool(nodes) and gateway % (nodes - self.shape.lonely) == engine % nodes

    # -- work --------------------------------------------------------------------------------------------------------

    def _group(self) -> None:
        """A group's sessions start together at one gateway; when all have ended, the next group starts."""
        name = f"g{next(self._groups)}"
        table = self.tables[int(name[1:]) % len(self.tables)]
        left = [self.shape.group]

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                self._group()

        for sample in range(self.shape.group):
            turns = max(1, round(self.chance.gauss(self.shape.turns, self.shape.turns / 4)))
            self._turn(table, name, f"{name}-{sample}", 0, turns, ended)

    def _turn(
        self, table: ReplicaTable, group: str, session: str, turn: int, turns: int, ended: Callable[[], None]
    ) -> None:
        url = table.reserve(group, session=session)
        if url is None:  # all are down: the agent asks again
            self.at(1.0, lambda: self._turn(table, group, session, turn, turns, ended))
            return
        engine = self.engines[url]
        self.turns, self.near = self.turns + 1, self.near + (url in table.here)
        tokens = TASK_TOKENS + turn * (SAMPLED_TOKENS + TOOL_TOKENS)
        known = max(engine.cached.get(session, 0), min(TASK_TOKENS, engine.cached.get(group, 0)))
        self.prompted += tokens
        self.computed += max(0, tokens - known)

        def done() -> None:
            if url in self.engines:
                self._count(engine)
                engine.running -= 1
                if engine.waiting:
                    engine.waiting.popleft()()
            table.release(url)
            if turn + 1 == turns:
                table.ended(session)
                ended()
                return
            self.at(
                self.chance.expovariate(1 / self.shape.tools_s),
                lambda: self._turn(table, group, session, turn + 1, turns, ended),
            )

        def start() -> None:
            engine.running += 1
            engine.cached[group] = TASK_TOKENS
            engine.cached[session] = tokens + SAMPLED_TOKENS
            half = self.shape.generate_s / 2
            self.at(half + self.chance.expovariate(1 / half), done)

        self._count(engine)
        if engine.running < SLOTS:
            start()
        else:
            engine.waiting.append(start)

    def _report(self, table: ReplicaTable) -> None:
        for url, engine in self.engines.items():
            table.reported(url, engine.load)
        self.at(self.shape.report_s, lambda: self._report(table))

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _count(self, engine: _Engine) -> None:
        passed = self.now - max(engine.since, self.begun)
        if passed > 0:
            engine.busy_s += passed * engine.load
            engine.idle_s += passed * (engine.load == 0)
        engine.since = self.now

    def _start_measuring(self) -> None:
        self.begun = self.now
        self.computed = self.prompted = self.turns = self.near = 0
        for engine in self.engines.values():
            engine.busy_s = engine.idle_s = 0.0
            engine.since = self.now

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def measure(self, seconds: float) -> Outcome:
        """What happens in the next `seconds`."""
        self._start_measuring()
        self.run(self.now + seconds)
        for engine in self.engines.values():
            self._count(engine)
        loads = {url: engine.busy_s / seconds for url, engine in self.engines.items()}
        mean = sum(loads.values()) / len(loads)
        return Outcome(
            busiest=max(loads.values()) / mean,
            idle=sum(engine.idle_s for engine in self.engines.values()) / seconds / len(loads),
            hits=1 - self.computed / max(1, self.prompted),
            loads=loads,
            here=self.near / max(1, self.turns),
        )

    # -- changes of the set ------------------------------------------------------------------------------------------

    def add(self, url: str) -> None:
        """An engine comes up, and every gateway learns of it."""
        self.engines[url] = _Engine(since=self.now)
        for table in self.tables:
            table.join(url)
            table.probed(url, None)

    def lose(self, url: str) -> None:
        """An engine dies; what it was sampling is lost with it, and ends at once for its agents."""
        for table in self.tables:
            table.down(url, "gone")
        self.engines.pop(url)
