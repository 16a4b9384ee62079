"""What engines saw of a fleet's turns, judged: how evenly they were used, and which prefixes they found again. (pure)

Nothing here is a gateway's word: whose turn it was stands in its prompt, when it came and went is the engine's clock.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.scripted.prefix_cache import PrefixCache
from tests.gateway.engine.fleet_simulation import Outcome

NAME = re.compile(r"group (\d+),.* sample (\d+)\b", re.DOTALL)
"""In the text of a prompt."""


@dataclass(slots=True)
class Seen:
    """One request at an engine, as the engine saw it."""

    engine: str
    ids: Ids
    came: float
    ahead: int
    """In flight there when it came."""
    gone: float | None = None
    """When it ended, whole or not; None = not yet."""
    sampled: Ids = field(default_factory=lambda: array("i"))
    whole: bool = False
    group: int = -1
    sample: int = -1

    def name(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Reads whose it is. Raises AssertionError where that is nobody."""
        found = NAME.search(decode(self.ids))
        assert found, "a prompt that no agent of this fleet sent"
        self.group, self.sample = int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class Span:
    """Of time, in seconds of the engines' clock."""

    start: float
    end: float

    def part(self, start: float, end: float) -> float:
        """Seconds of it from `start` to `end`."""
        return max(0.0, min(end, self.end) - max(start, self.start))


def loads(seen: Iterable[Seen], engines: Iterable[str], span: Span) -> dict[str, float]:
    """Engine -> mean in flight, waiting ones too."""
    total = dict.fromkeys(engines, 0.0)
    for one in seen:
        if one.engine in total:
            total[one.engine] += span.part(one.came, span.end if one.gone is None else one.gone)
    return {url: seconds / (span.end - span.start) for url, seconds in total.items()}


def idle(seen: Iterable[Seen], engines: Sequence[str], span: Span) -> float:
    """Share of these engines' time with nothing in flight."""
    times: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in seen:
        times[one.engine].append((one.came, span.end if one.gone is None else one.gone))
    busy = 0.0
    for url in engines:
        upto = span.start
        for start, end in sorted(times[url]):
            busy += span.part(max(start, upto), end)
            upto = max(upto, end)
    return 1 - busy / (span.end - span.start) / len(engines)


def hits(seen: Iterable[Seen], where: Callable[[Seen], str], blocks: int, span: Span) -> float:
    """Share of the prompts' tokens in `span` that each engine had computed before, if turns went `where` it says. What
    came before `span` fills the caches."""
    events: list[tuple[float, int, Seen]] = []
    for number, one in enumerate(seen):
        events.append((one.came, number, one))
        if one.gone is not None:
            events.append((one.gone, number, one))
    caches: defaultdict[str, PrefixCache] = defaultdict(lambda: PrefixCache(blocks))
    asked: set[int] = set()
    found = prompted = 0
    for at, number, one in sorted(events, key=lambda event: event[:2]):
        cache = caches[where(one)]
        if number in asked:
            cache.add(one.ids + one.sampled)
            continue
        asked.add(number)
        known = cache.ask(one.ids)
        if span.start <= at < span.end:
            found, prompted = found + known, prompted + len(one.ids)
    return found / max(1, prompted)


def moved(seen: Iterable[Seen]) -> float:
    """See `Judged.moved`."""
    last: dict[tuple[int, int], str] = {}
    later = away = 0
    for one in seen:
        before = last.get((one.group, one.sample))
        later, away = later + (before is not None), away + (before not in (None, one.engine))
        last[one.group, one.sample] = one.engine
    return away / max(1, later)


@dataclass(frozen=True, slots=True)
class Judged(Outcome):
    """An outcome of the simulation's, and what only a whole fleet has."""

    turns: int
    waited: float
    """Share of turns that found all slots of their engine taken."""
    moved: float
    """Share of later turns that were not on the engine of their session's turn before."""
    by_session: float
    """Hits if each session stayed on an engine of a hash; `by_group`: if each group did, whatever its load."""
    by_group: float


def judged(
    seen: Sequence[Seen],
    nodes: Mapping[str, str],
    span: Span,
    *,
    slots: int,
    blocks: int,
    node_of: Callable[[int], str],
) -> Judged:
    """All of it, for the engines of `nodes` (URL -> node). `node_of`: a group's gateway's."""
    urls = list(nodes)
    each = loads(seen, urls, span)
    within = [one for one in seen if span.start <= one.came < span.end]
    here = sum(nodes.get(one.engine) == node_of(one.group) for one in within)
    return Judged(
        busiest=max(each.values()) * len(each) / sum(each.values()),
        idle=idle(seen, urls, span),
        hits=hits(seen, lambda one: one.engine, blocks, span),
        loads=each,
        here=here / max(1, len(within)),
        turns=len(within),
        waited=sum(one.ahead >= slots for one in within) / max(1, len(within)),
        moved=moved(within),
        by_session=hits(seen, lambda one: urls[hash((one.group, one.sample)) % len(urls)], blocks, span),
        by_group=hits(seen, lambda one: urls[one.group % len(urls)], blocks, span),
    )
