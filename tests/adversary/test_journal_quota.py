"""No session fills the disk of all: its records have so many bytes, and turns and tokens have limits by default."""

from __future__ import annotations

from pathlib import Path

from sandgate.contract.work import LimitsSpec
from sandgate.gateway.config import SessionLimits
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.journal.records import size
from tests.adversary.victim import chat, victim
from tests.support.gateway import gateway, user

QUOTA = 200_000


async def test_beyond_its_bytes_turns_are_refused_and_it_still_completes(tmp_path: Path) -> None:
    limits = {"journal_bytes": QUOTA, "turns": 0, "total_tokens": 0}
    async with victim(tmp_path, lambda ids, number: "word " * 900, session_limits=limits) as v:
        agent, other = await v.session(), await v.session()
        path = f"/v1{str(agent.base_url.path).rstrip('/')}"
        answer = await agent.post("v1/chat/completions", content=chat())
        statuses = [answer.status_code]
        for number in range(40):
            body = chat(logprobs=True, top_logprobs=20, messages=[user(f"{number}?")])
            answer = await agent.post("v1/chat/completions", content=body)
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                break
        assert statuses[-1] == 400, "it ends"
        assert answer.headers["x-sandgate-reason"] == "LimitReached"
        assert "journalBytes" in answer.json()["error"]["message"]
        turns = len(statuses) - 1
        assert (await v.admin.get(path)).json()["limit_reached"] == "journalBytes"
        assert (await other.post("v1/chat/completions", content=chat())).status_code == 200
        await v.process.kill()
        await v.process.start()
        answer = await agent.post("v1/chat/completions", content=chat())
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (400, "LimitReached")
        assert (await agent.post("complete", json={})).status_code == 200
        done = await v.admin.post(f"{path}/finalize", json={})
        assert (done.status_code, len(done.json()["trajectories"])) == (200, turns)


async def test_generations_that_fail_are_counted_too() -> None:
    """Each leaves a note that it was begun."""
    refused = Reply("", fault=Fault("status", status=400))
    async with gateway(lambda ids, number: refused, session_limits={"journal_bytes": 2_000}) as g:
        agent = await g.session()
        reasons = [(await agent.post(f"{number}?")).headers["x-sandgate-reason"] for number in range(40)]
        assert reasons[0] != "LimitReached"
        assert reasons[-1] == "LimitReached"
        assert (await agent.http.post("complete", json={})).status_code == 200, "what waited is written"
        live = g.core.sessions.get(agent.id).journalled
        assert live == sum(size(record) for _, _, record in g.store.scan(agent.id))


def test_every_session_has_limits_where_nobody_sets_them() -> None:
    gateways, jobs = SessionLimits(), LimitsSpec()
    assert min(gateways.turns, gateways.total_tokens, gateways.journal_bytes) > 0
    assert (jobs.turns, jobs.total_tokens) == (gateways.turns, gateways.total_tokens)
