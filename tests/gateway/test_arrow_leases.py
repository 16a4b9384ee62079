"""A lease as Arrow IPC holds the rows that it holds as JSON, by the trainer's own schema and reader."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.lease import ARROW
from sandgate.contract.trajectory import Trajectory, from_json
from sandgate.gateway.delivery import arrow
from sandgate.gateway.web import leases
from sandgate.gateway.web.leases import JSON, wanted
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.export import schema as trainers
from sandgate.trainer.export.arrow import from_ipc, to_table
from tests.support.gateway import Running, admin_key, gateway


def row(**more: Any) -> Trajectory:
    said: dict[str, Any] = {
        "job": "j", "uid": "q", "session_id": "s", "trajectory_id": 0, "sample_index": 0, "attempt": 0,
        "prompt_ids": array("i", [1, 2]), "response_ids": array("i", [3, 4, 5]),
        "response_logprobs": array("f", [-0.5, 0.0, -1e-7]), "loss_mask": array("b", [1, 0, 1]),
        "versions": array("i", [7, -1, 2**31 - 1]), "turn_ids": ("a", "b"), "turn_ends": (1, 3),
    }  # fmt: skip
    return Trajectory(**said | more)


def test_the_schema_is_the_trainers() -> None:
    assert arrow.SCHEMA.equals(trainers.schema(), check_metadata=True)


JSONS = st.dictionaries(
    st.text(max_size=3), st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), max_size=3
)
ROWS = st.builds(
    lambda prompt, sampled, info, reward, job: row(
        prompt_ids=array("i", prompt),
        response_ids=array("i", [token for token, _ in sampled]),
        response_logprobs=array("f", [logprob for _, logprob in sampled]),
        loss_mask=array("b", [1] * len(sampled)),
        versions=array("i", [0] * len(sampled)),
        turn_ids=("t",),
        turn_ends=(len(sampled),),
        reward_info=info,
        metadata=info,
        reward=reward,
        turn_rewards=() if reward is None else (reward,),
        job=job,
        failure_class=job or None,
    ),
    st.lists(st.integers(0, 2**31 - 1), max_size=5),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-1e4, 0, width=32)), max_size=5),
    JSONS,
    st.none() | st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)


@given(st.lists(ROWS, max_size=4), st.integers(1, 8))
def test_what_is_written_is_what_the_trainer_reads(rows: list[Trajectory], batch_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "BATCH_TOKENS", batch_tokens)
        raw = arrow.to_ipc(iter(rows))
    assert list(from_ipc(raw)) == rows
    assert pa.ipc.open_stream(raw).read_all().equals(to_table(rows))


def test_half_a_character_in_an_agents_words_travels_as_an_escape() -> None:
    mine = row(reward_info={"said": "\ud83d"})
    assert list(from_ipc(arrow.to_ipc([mine]))) == [mine]


def test_what_arrow_cannot_carry_is_named() -> None:
    bad: dict[str, Any] = {"reward_info": {"r": math.nan}, "attempt": 2**31, "metadata": {"a": object()}}
    for field, value in bad.items():
        with pytest.raises(InvalidBody) as caught:
            arrow.to_ipc([row(**{field: value})])
        assert caught.value.field == field


BOTH, ONE = [JSON, ARROW], [JSON]
ACCEPTS: dict[str, tuple[str, list[str], str | None]] = {
    "anything is JSON": ("*/*", BOTH, JSON),
    "nothing in particular is JSON": ("application/*", BOTH, JSON),
    "Arrow, where it is to be had": (ARROW, BOTH, ARROW),
    "no Arrow, where it is not": (ARROW, ONE, None),
    "the trainer's own": (f"{ARROW}, application/json;q=0.9", BOTH, ARROW),
    "the trainer's own, without Arrow": (f"{ARROW}, application/json;q=0.9", ONE, JSON),
    "JSON liked more": (f"{ARROW};q=0.1, {JSON}", BOTH, JSON),
    "Arrow refused": (f"*/*, {ARROW};q=0", BOTH, JSON),
    "JSON refused": (f"{JSON};q=0, */*", BOTH, ARROW),
    "capitals and spaces": (" Application/JSON ; Q=1", BOTH, JSON),
    "a quality that is no number": (f"{JSON};q=much", BOTH, None),
    "a type that is neither": ("text/html", BOTH, None),
}


@pytest.mark.parametrize(("accept", "forms", "want"), ACCEPTS.values(), ids=ACCEPTS)
def test_accept(accept: str, forms: list[str], want: str | None) -> None:
    assert wanted(accept, forms) == want


# -- over HTTP ------------------------------------------------------------------------------------------------------


async def group(g: Running) -> None:
    """Two samples: one that forked, and one that failed by itself."""
    forked = await g.session(session_id="s0", uid="q", group_size=2, metadata={"ключ": [1, None]})
    await forked.ask("hi")
    await forked.ask("hi", {"role": "assistant", "content": "said otherwise"}, "go on")
    await g.finalize(forked, reward=0.5, reward_info={"why": "half"}, discount=0.9)
    failed = await g.session(session_id="s1", uid="q", group_size=2, sample_index=1)
    await failed.ask("ho", n=2)
    await g.finalize(
        failed, outcome={"failure_class": "policy", "failure_reason": "TurnLimit", "complete": False}
    )


async def leased(g: Running, accept: str) -> Any:
    answer = await g.admin.post("/v1/leases", json={}, headers={"accept": accept})
    lease = answer.headers.get("x-sandgate-lease") or answer.json()["lease_id"]
    await g.admin.post(f"/v1/leases/{lease}/nack")
    return answer


async def test_arrow_and_json_hold_the_same_rows() -> None:
    async with gateway(lambda ids, number: f"answer {number}") as g:
        await group(g)
        as_arrow, as_json = await leased(g, ARROW), await leased(g, "application/json")
        assert as_arrow.headers["content-type"] == ARROW
        assert float(as_arrow.headers["x-sandgate-lease-until"]) > 0
        rows = [from_json(one) for one in as_json.json()["trajectories"]]
        assert len(rows) > 2
        found = list(from_ipc(as_arrow.content))
        assert found == [replace(one, created_at=round(one.created_at * 1e6) / 1e6) for one in rows]


async def test_the_trainers_client_leases_by_arrow() -> None:
    async with gateway(lambda ids, number: f"answer {number}") as g:
        await group(g)
        async with AsyncRolloutClient(g.origin, admin_key()) as trainer:
            lease = await trainer.lease(max_groups=1)
            assert lease is not None
            assert lease.sessions == ("s0", "s1")
            await trainer.ack(lease)
            assert await trainer.lease(max_groups=1) is None


async def test_without_the_extra_it_is_406_and_nothing_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "has_arrow", lambda: False)
    async with gateway(lambda ids, number: f"answer {number}") as g:
        await group(g)
        refused = await g.admin.post("/v1/leases", json={}, headers={"accept": ARROW})
        assert refused.status_code == 406
        assert "gateway-arrow" in refused.json()["error"]["message"]
        answer = await g.admin.post(
            "/v1/leases", json={}, headers={"accept": f"{ARROW}, application/json;q=0.9"}
        )
        assert answer.json()["sessions"] == ["s0", "s1"], "nothing was lost to the refusal"
