"""AReaL's own client and workflow (PyPI `areal` 1.0.4), unmodified, against a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sandgate.trainer import testing
from tests.support.vllm import MODEL, Vllm
from tests.trainer.areal.env import Areal

CHECKS = Path(__file__).parent / "check_areal.py"


@pytest.fixture(scope="module")
def told(areal: Areal) -> dict[str, Any]:
    """Check -> what AReaL got; under `trees`, session id -> what the gateway has of it."""
    return asyncio.run(tell(areal))


async def tell(areal: Areal, *names: str, **settings: Any) -> dict[str, Any]:
    """`names`: of checks, none: all of them; `settings`: of the gateway."""
    async with testing.gateway(lambda ids, number: f"answer {number}", settings=settings) as running:
        await running.client.policy_version(3)
        code, out, errors = await areal.arun(
            CHECKS, *names, ORIGIN=running.origin, ADMIN_KEY=running.admin_key
        )
        assert code == 0, errors[-3000:]
        found: dict[str, Any] = {}
        for line in re.findall(r"^CHECK (.*)$", out, re.MULTILINE):
            found |= json.loads(line)
        sessions = [one async for one in running.client.sessions()]
        found["committed"] = {one["session_id"]: one["committed"] for one in sessions}
        found["trees"] = {one["session_id"]: await running.client.tree(one["session_id"]) for one in sessions}
        return found


def paths(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Interaction id -> its turns, root first, as the gateway tells them."""
    out = {}
    for tree in told["trees"].values():
        known = {turn["turn"]: turn for turn in tree["turns"]}
        for turn in tree["turns"]:
            path = [turn]
            while path[0]["parent"] is not None:
                path.insert(0, known[path[0]["parent"]])
            out[f"chatcmpl-{turn['turn']}"] = path
    return out


def row(path: list[dict[str, Any]], *, whole: bool) -> dict[str, list[Any]]:
    """What AReaL must have got of it."""
    out: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "logprobs": [], "versions": []}
    for turn in path:
        trained = whole or turn is path[-1]
        context, sampled = (span["ids"] for span in turn["spans"])
        out["input_ids"] += context + sampled
        out["loss_mask"] += [0] * len(context) + [int(trained)] * len(sampled)
        out["logprobs"] += [0.0] * len(context) + (turn["logprobs"] if trained else [0.0] * len(sampled))
        spans = [version for version, start, end in turn["versions"] for _ in range(start, end)]
        out["versions"] += [-1] * len(context) + (spans if trained else [-1] * len(sampled))
    return out


EXPECTED = {
    "inline": [0.5, 1.0],
    "by_id": [0.25, 0.5],
    "concat": [1.0],
    "subproc": [0.75],
    "group": [1.0] * 8,
}
"""Check -> rewards in order of creation."""


def compare(told: dict[str, Any], check: str) -> None:
    known = paths(told)
    assert [one["reward"] for one in told[check]] == EXPECTED[check]
    for one in told[check]:
        assert {name: one[name] for name in ("input_ids", "loss_mask", "logprobs", "versions")} == row(
            known[one["id"]], whole=check == "concat"
        )
        assert one["rewards"] == one["reward"]
        assert all(one["attention_mask"])
        assert set(one["versions"]) == {-1, 3}
        assert any(one["logprobs"])


@pytest.mark.parametrize("check", EXPECTED)
def test_its_workflow_gets_the_engines_tokens(told: dict[str, Any], check: str) -> None:
    compare(told, check)


@pytest.mark.vllm
async def test_its_workflow_gets_the_tokens_of_a_real_vllm(areal: Areal, vllm: Vllm) -> None:
    told = await tell(
        areal,
        "inline",
        "group",
        "subproc",
        engine={"urls": [vllm.url]},
        model={"name": "shop", "tokenizer": str(MODEL)},
        sampling={"max_tokens": 16},
    )
    for check in ("inline", "group", "subproc"):
        compare(told, check)


def test_each_of_a_group_is_a_session_of_its_own(told: dict[str, Any]) -> None:
    owners = [
        {f"chatcmpl-{turn['turn']}" for turn in tree["turns"]} & {one["id"] for one in told["group"]}
        for tree in told["trees"].values()
    ]
    assert sorted(len(owner) for owner in owners if owner) == [2, 2, 2, 2]


def test_an_int_is_no_reward_and_a_failed_agents_session_is_ended_all_the_same(told: dict[str, Any]) -> None:
    assert told["failures"] == [
        "ValueError: Invalid reward type: <class 'int'>",
        "RuntimeError: the agent failed",
    ]
    states = sorted(tree["state"] for tree in told["trees"].values())
    assert states == ["complete"] * 2 + ["finalized"] * 9
    exported = {name: tree["state"] == "finalized" for name, tree in told["trees"].items()}
    assert told["committed"] == exported


def test_its_client_waits_for_capacity_and_swallows_a_reward_for_nothing(told: dict[str, Any]) -> None:
    said = told["client"]
    assert said["refused"] == 429
    assert said["granted"] in ({"capacity": 1}, {"capacity": 0}), (
        "who waits may have it before the answer is made"
    )
    (one,) = said["found"]
    assert one["reward"] == -1.5
