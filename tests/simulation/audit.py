"""What can only be asked of a live process: is nothing reserved, is nothing running, is memory what the disk says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sandgate.gateway.journal.records import RETIRED, TASKS, Opened, Record, TurnCommitted
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions

if TYPE_CHECKING:
    from tests.simulation.world import World

REST_S = 200.0
"""Longer than any linger, stall or patience."""
SERVANTS = ("write-behind", "retire", "watch", "check", "probe", "label_of", "load_of")
"""Tasks that live as long as their process."""


def still_there(world: World) -> None:
    """What was ever durable is on the disk, in order, unless the gateway itself had it deleted."""
    ever: dict[str, list[Record]] = defaultdict(list)
    here: dict[str, list[Record]] = defaultdict(list)
    for session, record in world.history.ever:
        ever[session].append(record)
    for session, record in world.disk.sound_records():
        here[session].append(record)
    for session, records in ever.items():
        if session not in world.history.retired and here[session] != records:
            world.wrong(f"{len(records)} records of {session!r} were durable, {len(here[session])} are there")
    for gone in sorted(here.keys() & world.history.retired - {"", TASKS}):
        world.wrong(f"{gone} was retired and is there again")
    for gone in sorted(world.history.retired - {"", TASKS}):
        if f"{RETIRED}{gone}" not in here:
            world.wrong(f"{gone} was retired and left no line")


def nothing_ahead(world: World, core: GatewayService) -> None:
    """At any moment: what is visible is durable already. (Notes of delivery and intents may be ahead.)"""
    ever: dict[str, list[Record]] = defaultdict(list)
    for owner, record in world.history.ever:
        ever[owner].append(record)
    for name, session in core.sessions.live.items():
        durable = ever[name]
        turns = {record.turn for record in durable if isinstance(record, TurnCommitted)}
        for turn in session.tree.turns:
            if turn.id not in turns:
                world.wrong(f"{name}: turn {turn.id} is visible and not durable")
        said: tuple[Record | None, ...] = (*session.rewards, session.completed, session.sealed)
        for seen in said:
            if seen is not None and seen not in durable:
                world.wrong(f"{name}: {type(seen).__name__} is visible and not durable")
        if not any(isinstance(record, Opened) for record in durable):
            world.wrong(f"{name} is visible and not durable")


async def at_rest(world: World) -> None:
    """Nobody asks for anything any more."""
    await asyncio.sleep(REST_S)
    core, store = world.core, world.store
    assert core is not None
    assert store is not None
    if core.turns.load.in_flight:
        world.wrong(f"load.in_flight is {core.turns.load.in_flight} at rest")
    if core.turns.registry.calls:
        world.wrong(f"calls are left at rest: {len(core.turns.registry.calls)}")
    for session in core.sessions.live.values():
        if session.in_flight:
            world.wrong(f"{session.session_id}: in_flight is {session.in_flight} at rest")
        if session.closing:
            world.wrong(f"{session.session_id}: still closing at rest")
    if core.sessions.opening or core.sessions.book.holds or core.sessions.book.acking:
        world.wrong("openings, leases or acks are under way at rest")
    if world.fleet.running:
        world.wrong(f"{len(world.fleet.running)} generations run at rest")
    for task in world.loop.tasks[world.life]:
        name = getattr(task.get_coro(), "__name__", "")
        if not any(servant in f"{task.get_name()} {name}" for servant in SERVANTS):
            world.wrong(f"an orphan task at rest: {task!r}")
    store.flush()
    again = Sessions(store, core.sessions.now)
    again.replay()
    _same(world, core.sessions, again)
    world.history.end = world.loop.time()
    still_there(world)


def _same(world: World, live: Sessions, again: Sessions) -> None:
    """What lives is the fold of what is durable."""
    if live.live.keys() != again.live.keys():
        world.wrong(f"sessions live {sorted(live.live)}, on disk {sorted(again.live)}")
        return
    for name, session in live.live.items():
        mine, theirs = _of(session), _of(again.live[name])
        for field, value in mine.items():
            if value != theirs[field]:
                world.wrong(f"{name}.{field} is {value!r}, and by replay {theirs[field]!r}")
    if live.process != again.process:
        world.wrong(f"{live.process}, by replay {again.process}")
    if live.open_count != again.open_count:
        world.wrong(f"open_count {live.open_count}, by replay {again.open_count}")
    if live.tasks != again.tasks:
        world.wrong(f"task queue {live.tasks}, by replay {again.tasks}")
    book, other = live.book, again.book
    for field in ("members", "leases", "whole", "partial"):
        if getattr(book, field) != getattr(other, field):
            world.wrong(
                f"lease book: {field} is {getattr(book, field)!r}, by replay {getattr(other, field)!r}"
            )


def _of(session: Session) -> dict[str, Any]:
    out = {
        name: getattr(session, name)
        for name in ("spec", "opened_at", "phase", "rewards", "completed", "sealed", "turns", "tokens",
                     "sampled", "spelt", "forks", "roles", "evicted", "answers", "delivered", "intents")
    }  # fmt: skip
    out["tree"] = [
        (turn.id, turn.parent, turn.context, turn.ids, turn.logprobs) for turn in session.tree.turns
    ]
    return out
