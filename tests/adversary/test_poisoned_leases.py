"""A session whose record cannot be made rows is left out by name; everybody else's rows are given."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.lease import ARROW
from sandgate.contract.trajectory import Trajectory, from_json
from sandgate.gateway.config import OutputConfig
from sandgate.gateway.journal.records import Completed, Record, Rewarded, Sealed
from sandgate.gateway.web.leases import JSON
from sandgate.trainer.export.arrow import from_ipc, read_parquet
from tests.support.gateway import Agent, Running, gateway
from tests.support.waiting import until

DEEP: Any = 1
for _ in range(500):
    DEEP = [DEEP]
"""A journal takes it, and so do readers of JSON; orjson does not."""


def _rewarded(**said: Any) -> Callable[[list[str]], list[Record]]:
    return lambda turns: [Rewarded(at=1.0, turn=turns[-1], **{"reward": 1.0, **said})]


POISONS: dict[str, Callable[[list[str]], list[Record]]] = {
    "a number that is none in reward_info": _rewarded(info={"x": math.nan}),
    "infinity in what /complete said": lambda turns: [Completed(at=1.0, info={"x": [math.inf]})],
    "a reward that is none": _rewarded(reward=math.nan),
    "rewards that add up beyond float64": lambda turns: [
        Rewarded(at=1.0, turn=turn, reward=1.7e308) for turn in turns
    ],
    "a seal with a discount that cannot be": lambda turns: [Sealed(at=1.0, discount=7.0)],
}
"""What stood in journals before the doors refused it: the records behind a session's turns."""


async def _ended(g: Running, uid: str, *, poison: Callable[[list[str]], list[Record]] | None = None) -> str:
    agent: Agent = await g.session(session_id=f"{uid}-0", uid=uid, group_size=2)
    history: list[Any] = []
    for number in range(3):
        history += [{"role": "user", "content": f"{uid} {number}"}]
        history += [await agent.ask(*history)]
    session = g.core.sessions.get(agent.id)
    if poison is not None:
        await g.core.sessions.record(session, *poison([turn.id for turn in session.tree.turns]))
    mate = await g.session(session_id=f"{uid}-1", uid=uid, sample_index=1, group_size=2)
    await mate.ask(f"{uid} mate")
    for one in (agent, mate):
        answer = await g.admin.post(f"/v1/sessions/{one.id}/finalize", json={"trajectories": False})
        assert answer.status_code == 200, answer.text
    return agent.id


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("form", [ARROW, JSON])
async def test_a_poisoned_session_is_named_and_the_others_rows_are_given(
    form: str, poison: Callable[[list[str]], list[Record]]
) -> None:
    async with gateway(lambda ids, number: "hello") as g:
        await _ended(g, "a")
        bad = await _ended(g, "b", poison=poison)
        await _ended(g, "c")
        answer = await g.admin.post("/v1/leases", json={"max_groups": 9}, headers={"accept": form})
        assert answer.status_code == 200, answer.text
        if form == JSON:
            said = answer.json()
            rows = [from_json(one) for one in said["trajectories"]]
            assert bad in said["sessions"], "its group is leased, and told to be without it"
            assert list(said["failed"]) == [bad]
            assert 0 < len(said["failed"][bad]) < 500
        else:
            rows = list(from_ipc(answer.content))
            assert answer.headers["x-sandgate-lease-failed"] == bad
        assert sorted({row.session_id for row in rows}) == ["a-0", "a-1", "b-1", "c-0", "c-1"]
        status = (await g.admin.get("/v1/status")).json()
        assert list(status["left_out"]) == [bad]
        assert b"sandgate_sessions_left_out_total 1.0" in (await g.admin.get("/metrics")).content
        own = await g.admin.post(f"/v1/sessions/{bad}/finalize")
        assert own.status_code == 409, "only who asks for its rows is refused"
        assert bad in own.json()["error"]["message"]


async def test_what_only_one_writer_cannot_write_is_given_in_both_forms() -> None:
    async with gateway(lambda ids, number: "hello") as g:
        info = {"x": DEEP}
        await _ended(g, "a", poison=_rewarded(info=info))
        for form in (JSON, ARROW):
            body = {"max_groups": 9, "ttl_s": 0.001}
            answer = await g.admin.post("/v1/leases", json=body, headers={"accept": form})
            assert answer.status_code == 200, answer.text
            rows = (
                [from_json(one) for one in answer.json()["trajectories"]]
                if form == JSON
                else list(from_ipc(answer.content))
            )
            assert [row.reward_info for row in rows if row.session_id == "a-0"] == [info]
            lease = answer.json()["lease_id"] if form == JSON else answer.headers["x-sandgate-lease"]
            await g.admin.post(f"/v1/leases/{lease}/nack")


async def test_files_are_written_without_it(tmp_path: Path) -> None:
    async with gateway(lambda ids, number: "hello", output=OutputConfig(parquet=str(tmp_path))) as g:
        bad = await _ended(g, "b", poison=POISONS["a number that is none in reward_info"])
        await _ended(g, "c")

        def written() -> list[Trajectory]:
            return [row for path in tmp_path.glob("*.parquet") for row in read_parquet(path)]

        async def all_is() -> bool:
            said = (await g.admin.get("/v1/status")).json()
            return bool(said["output"]["groups"] == 2)

        await until(all_is, what="two files")
        rows = await asyncio.to_thread(written)
        assert sorted(row.session_id for row in rows) == ["b-1", "c-0", "c-1"]
        assert list((await g.admin.get("/v1/status")).json()["left_out"]) == [bad]
