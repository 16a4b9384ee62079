"""Session starts: which sessions begin next, and at which gateway, within the job's in-flight bounds. (pure)"""

from __future__ import annotations

from collections.abc import Iterator

from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import (
    GroupObserved,
    JobObserved,
    JobWant,
    OpenSession,
    Provided,
    Ref,
    SampleKey,
    SampleObserved,
    SampleState,
)
from sandgate.operator.plan.retries import FREE, retry_at, retryable
from sandgate.operator.plan.settling import cut_at
from sandgate.operator.plan.staleness import admitted

UNWELCOME_MAX = 8
"""Tasks of which sessions may be unwelcome at their gateways, before that is taken for the job's own trouble."""


def starts(want: JobWant, seen: JobObserved, now: float) -> Iterator[OpenSession]:
    """Retries and begun groups first, so that groups become whole; then new groups, each on one gateway."""
    if seen.draining or not seen.gateways:
        return
    if seen.engines == 0:  # agents give up on an engine that is not there
        return
    if want.taken or want.unprovided or seen.provided is Provided.NOTHING:  # its walls may be missing
        return
    behind = _behind(want)
    live = [
        sample
        for group in seen.groups.values()
        for index, sample in enumerate(group.samples)
        if sample.state is SampleState.LIVE and (group.uid, index) not in behind
    ]
    starting = sum(sample.starting for sample in live)
    burst = want.spec.start_burst or want.spec.parallelism
    slots = min(want.spec.parallelism - len(live), burst - starting)
    for action in _wanted(want, seen, now):
        if slots <= 0:
            return
        slots -= 1
        yield action


def _wanted(want: JobWant, seen: JobObserved, now: float) -> Iterator[OpenSession]:
    """Last what its gateway did not take: it must hold up nothing else."""
    behind, last = _behind(want), list[OpenSession]()
    for one in _opens(want, seen, now, behind):
        if (one.ref.uid, one.ref.sample) in behind:
            last.append(one)
        else:
            yield one
    yield from last


def _behind(want: JobWant) -> frozenset[SampleKey]:
    """Of more tasks than this, it is not the sessions that are unwelcome: no others are begun in their place."""
    return want.unwelcome if len({uid for uid, _ in want.unwelcome}) <= UNWELCOME_MAX else frozenset()


def _opens(
    want: JobWant, seen: JobObserved, now: float, behind: frozenset[SampleKey]
) -> Iterator[OpenSession]:
    for group in seen.groups.values():
        cut = cut_at(group, want.spec)
        if group.closed or group.gateway not in seen.gateways or (cut is not None and now >= cut):
            continue
        again = [index for index, sample in enumerate(group.samples) if _again(want.spec, sample, now)]
        tried = frozenset(again if _proved(seen, now) else _probes(group, again))
        for index, sample in enumerate(group.samples):
            if sample.state is SampleState.WAITING or index in tried:
                yield OpenSession(Ref(want.name, group.uid, index, sample.attempt + 1), group.gateway)
    load = dict(seen.gateways)
    size, allowed = want.spec.group_size, _allowed(want.spec, seen, now, behind)
    for number, uid in enumerate(seen.fresh):
        if number >= allowed:
            return
        gateway = min(load, key=lambda name: (load[name], name))
        load[gateway] += size
        for index in range(size):
            yield OpenSession(Ref(want.name, uid, index, 0), gateway)


def _again(spec: RolloutJobSpec, sample: SampleObserved, now: float) -> bool:
    return retryable(sample, spec) and now >= retry_at(sample)


def _proved(seen: JobObserved, now: float) -> bool:
    """An agent got past its start: so will others, as far as they are made of the same."""
    return seen.proved or (seen.proves_at is not None and now >= seen.proves_at)


def _probes(group: GroupObserved, again: list[int]) -> list[int]:
    """Of what is to be tried again before any agent got past its start: all may fail alike, so one, and once the others
    have ended. What we cut short ourselves has not failed."""
    cut = [index for index in again if group.samples[index].reason in FREE]
    if any(one.state is not SampleState.ENDED for one in group.samples):
        return cut
    return cut or again[:1]


def _allowed(spec: RolloutJobSpec, seen: JobObserved, now: float, behind: frozenset[SampleKey]) -> int:
    """New groups that may begin: as many as staleness admits. One, before any agent got past its start; a group whose
    gateway is away, or takes none of it, is not waited for. None, while the API server is behind with deletions: every
    object more makes it slower."""
    if seen.littered:
        return 0
    most = len(seen.fresh)
    if not _proved(seen, now):
        tried = any(one.gateway in seen.gateways and _is_taken(one, behind) for one in seen.groups.values())
        most = 0 if tried else 1
    fits = admitted(spec, seen)
    return most if fits is None else min(most, fits)


def _is_taken(group: GroupObserved, behind: frozenset[SampleKey]) -> bool:
    """Some of its sessions are, or may be."""
    return any((group.uid, index) not in behind for index in range(len(group.samples)))
