"""Headers by which agents say who they are, from an agent that lies: nothing of anybody else changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.support.gateway import Agent, Running, gateway, user

NAMES = (
    "x-sandgate-role",
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    "x-openai-subagent",
    "x-codex-parent-thread-id",
    "thread-id",
    "x-parent-session-id",
    "x-session-id",
)
VALUES: dict[str, bytes] = {
    "no byte at all": b"",
    "bytes that are no ASCII": "é\u00ff🥝".encode(),
    "bytes that are no UTF-8": b"\xff\xfe\x80",
    "100 kB": b"a" * 100_000,
    "markup": b"<script>{{7*7}}</script>'\"",
    "a path": b"../../../etc/passwd",
}


async def post(agent: Agent, headers: Sequence[tuple[bytes, bytes]]) -> httpx.Response:
    key = agent.http.headers["authorization"].encode()
    return await agent.http.post(
        "v1/chat/completions", json=agent.body("hi"), headers=[(b"authorization", key), *headers]
    )


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_an_odd_value_is_a_short_name_or_a_400(value: bytes) -> None:
    async with gateway(["done"] * 20) as g:
        for name in NAMES:
            agent = await g.session()
            answer = await post(agent, [(name.encode(), value)])
            assert answer.status_code in (200, 400), answer.text
            for turn in await g.tree(agent):
                assert turn["role"] in ("main", "side", "subagent")
                assert max(map(len, (turn["role_why"], turn["thread"], turn["parent_thread"]))) <= 128
            if answer.status_code == 200:
                (row,) = await g.finalize(agent)
                assert row["main"] is True


@pytest.mark.parametrize("name", NAMES)
async def test_a_megabyte_of_a_header_ends_its_connection_and_no_other(name: str) -> None:
    async with gateway(["done"] * 4) as g:
        hostile, other = await g.session(), await g.session()
        try:
            answer = await post(hostile, [(name.encode(), b"a" * 1_000_000)])
            assert answer.status_code in (400, 431)
        except httpx.HTTPError:
            pass
        assert (await other.ask("hi"))["content"] == "done"
        assert await g.tree(hostile) == []


@pytest.mark.parametrize("said", [(b"main", b"side"), (b"side", b"main")], ids=["main, side", "side, main"])
async def test_two_values_are_one_of_them_or_a_400(said: tuple[bytes, bytes]) -> None:
    async with gateway(["done"]) as g:
        agent = await g.session()
        answer = await post(agent, [(b"x-sandgate-role", value) for value in said])
        assert answer.status_code in (200, 400)
        for turn in await g.tree(agent):
            assert turn["role"].encode() in said


async def rows_of(g: Running, agent: Agent, reward: float) -> list[dict[str, Any]]:
    rows = await g.finalize(agent, reward=reward)
    kept = ("prompt_ids", "response_ids", "logprobs", "loss_mask", "reward", "role", "main")
    return [{name: row[name] for name in kept if name in row} for row in rows]


async def conversation(agent: Agent, roles: Sequence[str]) -> list[Any]:
    """Four turns: a conversation, a branch of it, and another root."""
    first = await agent.post("go", headers=headers_of(roles[0]))
    said = first.json()["choices"][0]["message"]
    asked = [("go", said, user("on")), ("go", said, user("elsewhere")), ("something else",)]
    more = [
        await agent.post(*one, headers=headers_of(role)) for one, role in zip(asked, roles[1:], strict=True)
    ]
    return [one.json()["choices"][0]["message"]["content"] for one in (first, *more)]


def headers_of(role: str) -> dict[str, str]:
    return {"x-sandgate-role": role} if role else {}


LIES = [("side",) * 4, ("subagent",) * 4, ("side", "main", "side", "main"), ("main", "side", "subagent", "")]


@pytest.mark.parametrize("roles", LIES, ids=", ".join)
async def test_a_lie_about_roles_changes_no_token_no_reward_and_nobody_elses_rows(
    roles: Sequence[str],
) -> None:
    seen: list[Any] = []
    for said in (("",) * 4, roles):
        async with gateway(lambda ids, number: f"answer {number}") as g:
            liar = await g.session(session_id="liar", uid="q", sample_index=0, group_size=2)
            other = await g.session(session_id="other", uid="q", sample_index=1, group_size=2)
            answers = [await conversation(liar, said), await conversation(other, ("",) * 4)]
            told, others = await rows_of(g, liar, 0.5), await rows_of(g, other, 0.25)
        whole = sorted((*row["prompt_ids"], *row["response_ids"]) for row in told)
        trained = sum(sum(row["loss_mask"]) for row in told)
        seen.append((answers, whole, trained, [row["reward"] for row in told], others))
        assert sum(row["main"] for row in told) == 1
    assert seen[0] == seen[1]
