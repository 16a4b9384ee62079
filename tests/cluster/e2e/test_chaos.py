"""Things die in the middle of a job: it completes, nothing told is lost or doubled, nothing is left behind.

By default each blow falls once, all under one job. `make chaos TIMES=10` deals each ten times, eight mixed ones to a
job: what one broke is often not mended when the next one falls. Hands, moments and victims come from SEED, which every
round prints. KINDS="gateway node" deals only these.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.tokens.load import find_folder, read_checkpoint
from sandgate.operator.settings import Settings
from tests.cluster.e2e.chaos.agent import TURNS
from tests.cluster.e2e.chaos.blows import BLOWS, own_engine
from tests.cluster.e2e.chaos.books import Policy, Script, Truth, check
from tests.cluster.e2e.chaos.job import SAMPLES, TASKS, Round, round_of
from tests.cluster.e2e.world import SHOP, World, conditions, fresh_operators, gpu_node_for_gpus, vllm_engine
from tests.cluster.harness import volumes
from tests.e2e.truth import Parity
from tests.support.vllm import engine_python
from tests.support.waiting import until, until_now

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900, func_only=True)]

TIMES = int(os.environ.get("SANDGATE_CHAOS_TIMES", "1"))
"""Of each blow."""
KINDS = os.environ.get("SANDGATE_CHAOS_KINDS", "").split() or list(BLOWS)
HAND = int(os.environ.get("SANDGATE_CHAOS_HAND", "8"))
"""Blows in one job."""
SEED = int(os.environ.get("SANDGATE_CHAOS_SEED", "0")) or time.time_ns() % 1_000_000
ASKED = TASKS * SAMPLES * TURNS
"""Generations of a job in peace."""
BEGIN, END = 0.05, 0.7
"""The blow falls after this part of them was begun."""
BEGUN_S = 240.0
GONE_S = 90.0
COMMITTED_S = 60.0
BY_ITSELF = {("configmaps.", "kube-root-ca.crt"), ("serviceaccounts.", "default")}
INFRA = "infra"


def hands() -> list[list[str]]:
    """All blows, dealt to jobs."""
    deck = KINDS * TIMES
    random.Random(f"{SEED} deck").shuffle(deck)
    return [deck[at : at + HAND] for at in range(0, len(deck), HAND)]


@pytest.mark.parametrize("number", range(len(hands())))
async def test_a_job_lives_through_all_kinds_of_death(world: World, number: int, tmp_path: Path) -> None:
    chance, hand = random.Random(f"{SEED} {number}"), hands()[number]
    print(f"\nSEED {SEED} {number} {hand}")
    due = sorted(ASKED * chance.uniform(BEGIN, END) for _ in hand)
    await asyncio.to_thread(fresh_operators, world)
    with round_of(world, tmp_path / "book") as here:
        before = await asyncio.to_thread(here.objects)
        await asyncio.to_thread(here.begin)
        moments = [partial(begun, here, count) for count in due]
        blows = [partial(BLOWS[kind], here, chance) for kind in hand]
        told = await strike(here, list(zip(moments, blows, strict=True)))
        vocab = read_checkpoint(find_folder(SHOP / "model")).vocab
        said = await asyncio.to_thread(judge, here, Script(here.asked(), vocab.decode))
        print(f"{told}; {len(here.asked())} generations; {said}")
        await asyncio.to_thread(left_over, here, before)


@pytest.mark.vllm
@pytest.mark.endurance
@pytest.mark.parametrize(
    "number", range(math.ceil(TIMES / 5))
)  # most deaths of engines are the scripted ones'
async def test_a_job_lives_through_the_death_of_its_vllm(world: World, number: int, tmp_path: Path) -> None:
    """The engine is gone for as long as a real one takes to start."""
    chance = random.Random(f"{SEED} vllm {number}")
    print(f"\nSEED {SEED} vllm {number}")
    with round_of(world, tmp_path / "book") as here, gpu_node_for_gpus(world.cluster):
        before = await asyncio.to_thread(here.objects)
        await asyncio.to_thread(here.begin, vllm_engine())
        told = await strike(here, [(lambda: bool(here.groups), lambda: own_engine(here, chance))])
        model = SHOP / "model"
        vocab = read_checkpoint(find_folder(model)).vocab
        with Parity(engine_python(), model) as parity:
            said = await asyncio.to_thread(judge, here, Policy(parity, vocab.decode, temperature=1.0))
        print(f"{told}; {said}")
        await asyncio.to_thread(left_over, here, before)


def begun(here: Round, count: float) -> bool:
    """So many generations."""
    return len(here.asked()) >= count


async def strike(here: Round, blows: Sequence[tuple[Callable[[], bool], Callable[[], str]]]) -> str:
    """A trainer that takes all groups, and in the middle each blow at its moment. Gives what they did, and how long
    all took."""
    started = time.monotonic()
    told: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(here.train())

        for moment, blow in blows:

            async def now(moment: Callable[[], bool] = moment) -> bool:
                return moment()

            await until(now, what="the job is in its middle", within_s=BEGUN_S)
            told.append(await asyncio.to_thread(blow))
    return f"{' + '.join(told)}; {time.monotonic() - started:.0f} s"


def judge(here: Round, truth: Truth) -> str:
    """The job is Complete, and the three books agree."""
    job = here.done()
    sessions = committed(here)
    assert sorted(here.groups) == [f"task-{number}" for number in range(TASKS)]
    turns = check(here.rows, {(uid, sample) for uid in here.groups for sample in range(SAMPLES)}, truth)
    assert (job["status"]["failed"], job["status"]["ended"]) == (0, TASKS * SAMPLES)
    assert conditions(job)["Failed"] == "False"
    assert job["status"]["retries"] == len(sessions) - TASKS * SAMPLES
    retried = Counter(one["status"]["failureReason"] for one in sessions if failed(one))
    return f"{turns} turns, {len(sessions)} attempts, failed of them {dict(retried)}"


def failed(session: dict[str, Any]) -> bool:
    return bool(session["status"].get("failureReason"))


def committed(here: Round) -> list[dict[str, Any]]:
    """All attempts, once every sample has one that a trainer acknowledged. What failed says so, and has no reward."""
    found: list[dict[str, Any]] = []

    def all_there() -> bool:
        found[:] = here.world.list("agentsessions", here.namespace)
        good = [
            one for one in found if conditions(one).get("TrajectoryCommitted") == "True" and not failed(one)
        ]
        return len(good) == TASKS * SAMPLES

    until_now(all_there, what="every sample has a committed session", within_s=COMMITTED_S)
    for one in found:
        status = one["status"]
        if failed(one):
            assert status["failureClass"] == INFRA, json.dumps(status)
            assert "reward" not in status, json.dumps(status)
        else:
            assert status["reward"] == 1.0, json.dumps(status)
            assert status["turns"] == TURNS, json.dumps(status)
    return found


def left_over(here: Round, before: set[tuple[str, str, str]]) -> None:
    """No pod and no key outlives its session, but for a few ended pods of failed ones, and nothing at all its job."""
    cluster = here.world.cluster
    last: list[str] = []

    def sandboxes_gone() -> bool:
        pods = here.world.list("pods", here.namespace, "sandgate.dev/role in (agent,verifier)")
        secrets = here.world.list("secrets", here.namespace, "sandgate.dev/job")
        over = [one for one in pods if one["status"]["phase"] in ("Succeeded", "Failed")]
        if len(over) <= Settings().failed_pods:
            pods = [one for one in pods if one not in over]
        last[:] = [one["metadata"]["name"] for one in (*pods, *secrets)]
        return not [name for name in last if name not in ("chaos-signing", "chaos-trainer")]

    until_now(sandboxes_gone, what=f"sandboxes and keys are gone: {last}", within_s=GONE_S)
    here.delete()
    ours = {"configmaps.", "deployments.apps", "replicasets.apps", "pods."}

    def all_gone() -> bool:
        more = {
            one
            for one in here.objects() - before
            if (one[0], one[2]) not in BY_ITSELF
            and not (
                one[0] in ours
                and one[2].startswith(("chaos-engine-", "chaos-engine", "programs", "shop-tokenizer"))
            )
        }
        last[:] = sorted(map(str, more))
        return not more

    try:
        until_now(all_gone, what="nothing of the job is left", within_s=GONE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None
    claims = [one for one in cluster.rest().get(volumes.PATH)["items"] if "claimRef" in one["spec"]]
    held = [one for one in claims if one["spec"]["claimRef"]["namespace"] == here.namespace]
    assert {one["status"]["phase"] for one in held} <= {"Released"}
    volumes.reclaim(cluster.rest())
