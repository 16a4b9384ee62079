"""A few sessions that write all they can do not fill the journal of all: they are refused, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from sandgate.contract.errors import LimitReached
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal.disks import small_disk
from tests.gateway.journal.samples import turn
from tests.support.gateway import Agent, Running, Wire, eventually, gated, gateway, within

SIZE = 2 << 20
WORDS = 100
"""Sampled in a turn: some 60 kB with 20 alternatives of each, and 2 kB without."""
SMALL = 3
"""Turns that an honest session has here."""


def said(ids: Any, number: int) -> str:
    return "word " * WORDS


async def greedy_turn(agent: Agent, text: str = "?") -> str:
    """The reason of its refusal; nothing if it was answered."""
    answer = await agent.post(text, logprobs=True, top_logprobs=20)
    assert answer.status_code in (200, 400, 503), answer.text
    return "" if answer.status_code == 200 else str(answer.headers["x-sandgate-reason"])


async def filled_by(agents: list[Agent]) -> None:
    """Each writes all it can, in turns."""
    going, number = list(agents), 0
    while going:
        for agent in list(going):
            number += 1
            if reason := await greedy_turn(agent, str(number)):
                assert reason == "LimitReached"
                going.remove(agent)


async def honest(agent: Agent) -> None:
    for number in range(SMALL):
        assert (await agent.post(f"{number}?")).status_code == 200


async def limit_of(g: Running, agent: Agent) -> str | None:
    found: str | None = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["limit_reached"]
    return found


async def test_who_fills_it_is_refused_and_the_others_go_on() -> None:
    """Those that began before, and those that begin now; on the way it is never full."""
    disk = MemoryDisk(size=SIZE)
    async with gateway(said, store=MemoryStore(disk)) as g:
        early = await g.session()
        await honest(early)
        greedy = [await g.session() for _ in range(3)]
        await filled_by(greedy)
        assert g.store.space.tight
        assert [await limit_of(g, agent) for agent in (*greedy, early)] == ["journalShare"] * 3 + [None]
        await honest(early)
        await honest(await g.session())
        answer = await greedy[0].post("?")
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (400, "LimitReached")
        assert (await greedy[0].http.post("complete", json={"reward": 1.0})).status_code == 200
        rows = await g.finalize(greedy[0])
        assert len(rows) >= 1, "what it wrote before is kept"


async def test_who_was_refused_and_goes_on_when_there_is_room_has_got_over_it() -> None:
    async with gateway(said, store=MemoryStore(MemoryDisk(size=SIZE))) as g:
        agent, *others = [await g.session() for _ in range(3)]
        await filled_by([*others, agent])
        assert await limit_of(g, agent) == "journalShare"
        for other in others:
            await g.admin.post(f"/v1/sessions/{other.id}/abort", json={})
        await g.core.sessions.retire(-1.0)
        assert await greedy_turn(agent, "and now?") == ""
        assert await limit_of(g, agent) is None


async def test_a_limit_of_the_sessions_own_stays_the_reason_of_its_end() -> None:
    """It is the policy's, and trained; the share's is masked: nobody may choose that by one more call."""
    async with gateway(said, store=MemoryStore(MemoryDisk(size=SIZE))) as g:
        agent, *others = [await g.session(limits={"turns": 8}), await g.session(), await g.session()]
        reasons = [await greedy_turn(agent, str(number)) for number in range(9)]
        assert (reasons, await limit_of(g, agent)) == ([""] * 8 + ["LimitReached"], "turns")
        await filled_by(others)
        assert g.store.space.tight
        assert await greedy_turn(agent, "once more") == "LimitReached"
        assert await limit_of(g, agent) == "turns"


async def test_what_sessions_left_that_have_ended_counts() -> None:
    """One after the other: none of them is there any more when the volume becomes tight."""
    store, limits = MemoryStore(MemoryDisk(size=SIZE)), {"journal_bytes": SIZE // 4}
    async with gateway(said, store=store, session_limits=limits) as g:
        ends = list[str | None]()
        for _ in range(6):
            agent = await g.session()
            while not await greedy_turn(agent):
                pass
            ends.append(await limit_of(g, agent))
            await g.finalize(agent)
        assert ends[:3] == ["journalBytes"] * 3
        assert set(ends[3:]) == {"journalShare"}
        await honest(await g.session())


async def test_a_restart_finds_who_it_was() -> None:
    disk = MemoryDisk(size=SIZE)
    async with gateway(said, store=(store := MemoryStore(disk))) as g:
        greedy, other = await g.session(), await g.session()
        await filled_by([greedy])
        await store.aclose()
    async with gateway(said, store=MemoryStore(disk)) as g:
        greedy, other = g.agent(greedy.handle), g.agent(other.handle)
        assert await greedy_turn(greedy) == "LimitReached"
        await honest(other)


async def test_a_volume_that_is_full_of_what_no_trainer_took_holds_as_ever() -> None:
    """Sessions of any ordinary size: nobody is to blame, so nobody is refused for it."""
    async with gateway(said, store=MemoryStore(MemoryDisk(size=SIZE // 4))) as g:
        while not g.store.space.tight:
            agent = await g.session()
            await honest(agent)
            await g.finalize(agent)
        agent, answer = await g.session(), None
        while answer is None or answer.status_code == 200:
            answer = await agent.post("once more?")
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "JournalUnavailable")
        assert await limit_of(g, agent) is None
        assert g.core.sessions.get(agent.id).engine_errors > 0


async def test_turns_that_began_while_there_was_room_are_refused_when_they_would_take_it() -> None:
    """Else as many as a session may have in flight would fill the volume at once."""
    reply, gate = gated("word " * WORDS, at=WORDS - 1)
    disk = MemoryDisk(size=SIZE)

    def script(ids: Any, number: int) -> Any:
        return reply if number == 0 else "word " * WORDS

    async with gateway(script, store=MemoryStore(disk)) as g:
        greedy = await g.session()
        waits = asyncio.ensure_future(greedy.post("slow", logprobs=True, top_logprobs=20))
        await within(gate.reached)
        await filled_by([greedy])
        before = g.store.space.free
        gate.open.set()
        assert (await waits).headers["x-sandgate-reason"] == "LimitReached"
        assert before - g.store.space.free < 1_000
        assert g.core.sessions.get(greedy.id).engine_errors == 0


async def test_a_stream_that_is_cut_leaves_no_more_than_one_that_is_not() -> None:
    reply, gate = gated("one " * WORDS, at=WORDS - 1)

    def script(ids: Any, number: int) -> Any:
        return reply if number == 0 else "word " * WORDS

    store = MemoryStore(MemoryDisk(size=SIZE))
    async with gateway(script, store=store, limits={"linger_s": 0.0}) as g:
        greedy = await g.session()
        wire = await Wire.chat(greedy, greedy.body("slow", stream=True, logprobs=True, top_logprobs=20))
        await within(gate.reached)
        await wire.until(b"one")
        await filled_by([greedy])
        before = g.store.space.free
        await wire.cut()
        await eventually(lambda: not g.core.turns.registry.calls, "the call is over")
        assert before - g.store.space.free < 1_000
        assert g.core.sessions.get(greedy.id).cut == 0


async def test_what_is_retired_gives_its_space_back() -> None:
    async with gateway(said, store=MemoryStore(MemoryDisk(size=SIZE))) as g:
        greedy = await g.session()
        await filled_by([greedy])
        await g.admin.post(f"/v1/sessions/{greedy.id}/abort", json={})
        assert g.core.sessions.large
        assert await g.core.sessions.retire(-1.0) == 1
        assert not g.core.sessions.large
        again = await g.session()
        assert await greedy_turn(again) == ""


async def test_on_a_real_disk(tmp_path: Path) -> None:
    """SQLite's own log and free pages are on it, too."""
    with small_disk(tmp_path / "disk", "24m") as disk:
        async with (
            await SqliteStore.open(disk / "j", room=32 << 20) as store,
            gateway(said, store=store) as g,
        ):
            early, sessions = await g.session(), g.core.sessions
            for _ in range(4):
                greedy = sessions.get((await g.session()).id)
                with contextlib.suppress(LimitReached):
                    while True:
                        record = turn(str(greedy.turns), tokens=20_000)
                        sessions.refuse_over_share(greedy, record)
                        await sessions.record(greedy, record)
                assert greedy.limit_reached == "journalShare"
            await honest(early)
            await honest(await g.session())
            assert store.status().healthy
