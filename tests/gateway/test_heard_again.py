"""What a summary says of the calls that an agent made when its gateway was away."""

from __future__ import annotations

from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import Running, bearer, gateway


async def test_after_a_restart_it_is_told_whether_an_agent_asked_again() -> None:
    """One whose call died with the old life may wait for its answer in vain."""

    async def heard(g: Running, session: str) -> tuple[bool, bool]:
        seen = (await g.admin.get(f"/v1/sessions/{session}")).json()
        return seen["restarted_at"] is not None, seen["asked_again_at"] is not None

    disk = MemoryDisk()
    async with gateway(lambda ids, number: f"a{number}", store=MemoryStore(disk)) as g:
        old = await g.session(session_id="old")
        await old.ask("hi")
        assert await heard(g, "old") == (False, False)
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(["b"], store=MemoryStore(disk)) as g:
        assert await heard(g, "old") == (True, False)
        key = bearer(old.handle["api_key"])
        await g.admin.post("/sessions/old/v1/chat/completions", json=old.body("go on"), headers=key)
        assert await heard(g, "old") == (True, True)
        await g.session(session_id="new")
        assert await heard(g, "new") == (False, False)
