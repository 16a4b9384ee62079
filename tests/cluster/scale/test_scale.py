"""What a session costs the API server, and what is left of it: an operator, its gateways and a few hundred pods.

Pods are played by kwok: agents do not run, and a session without a turn ends well by its agent's exit. Everything that
the operator writes is the same for one that talked; only those longer than SHOW_S say that they run, with one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.harness.api import Api
from tests.cluster.harness.control import Control
from tests.cluster.scale.figures import Figures, figures
from tests.cluster.scale.hosts import why_no_hosts
from tests.cluster.scale.plane import plane, why_no_plane
from tests.cluster.scale.world import GROUP, OPERATOR, Json, Shape, World, world
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

SHAPE = Shape("many", sessions=160, parallelism=80, gateways=2)
HISTORY = 100
"""AgentSessions kept for people to look at."""
WRITES_MAX = 6.0
RUN_S, GONE_S = 150.0, 60.0


@dataclass(frozen=True)
class Ran:
    """A job from its beginning to its deletion."""

    figures: Figures
    job: Json
    sessions: list[Json]
    """At the end."""
    left: dict[str, list[str]]
    """At the end, by kind."""
    after: dict[str, list[str]]
    """The same after the job was deleted."""


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    if why := why_no_plane() or why_no_hosts():
        pytest.skip(why)
    with plane() as (api, control):
        yield asyncio.run(whole_life(api, control))


async def whole_life(api: Api, control: Control) -> Ran:
    async with world(api, control, {"history": HISTORY}) as here:
        mark = api.audit_mark()
        async with here.job_of(SHAPE):
            await here.run(SHAPE, RUN_S)

            async def trimmed() -> bool:
                return len(here.sessions()) <= HISTORY

            await until(trimmed, what="old AgentSessions go", within_s=GONE_S)
            counted, job = figures(api.audit_since(mark), OPERATOR), here.job(SHAPE.name)
            sessions, left = here.sessions(), here.left()
        after = await cleared(here)
        return Ran(counted, job, sessions, left, after)


async def cleared(here: World) -> dict[str, list[str]]:
    """What is left when nothing goes any more."""
    left = here.left()

    async def empty() -> bool:
        nonlocal left
        left = here.left()
        return not left

    try:
        await until(empty, what="nothing is left", within_s=GONE_S)
    except AssertionError:
        return left
    return {}


def test_a_session_is_at_most_six_writes(ran: Ran) -> None:
    assert ran.figures.sessions == SHAPE.sessions
    assert ran.figures.writes_per_session <= WRITES_MAX, ran.figures.writes


def test_nothing_is_written_twice_or_refused(ran: Ran) -> None:
    """One AgentSession, one pod and up to three statuses each, one where the end and its commit are told together; keys
    once for a group whose sessions open together."""
    writes, groups = ran.figures.writes, SHAPE.sessions // GROUP
    assert writes["create agentsessions"] == writes["create pods"] == SHAPE.sessions
    assert SHAPE.sessions <= writes["patch agentsessions/status"] <= 3 * SHAPE.sessions
    assert writes["create secrets"] == groups + 2, "and the job's own, once more when its engine is let go"
    assert writes["delete secrets"] == groups
    assert writes["deletecollection pods"] <= SHAPE.sessions // 4, "pods go in batches"
    assert {what for what in writes if what.startswith(("delete", "update"))} == {
        "delete secrets", "deletecollection pods", "deletecollection agentsessions", "update leases",
    }  # fmt: skip


def test_all_ended_well_and_are_committed(ran: Ran) -> None:
    status = ran.job["status"]
    assert (status["ended"], status["committed"], status["failed"], status["retries"]) == (
        SHAPE.sessions, SHAPE.sessions, 0, 0,
    )  # fmt: skip
    for one in ran.sessions:
        said = {c["type"]: (c["status"], c["reason"]) for c in one["status"]["conditions"]}
        assert said["Finished"] == ("True", "Completed")
        assert said["TrajectoryCommitted"][0] == "True"
        assert one["status"]["reward"] == 1.0


def test_history_is_all_that_stays_of_sessions(ran: Ran) -> None:
    assert len(ran.left["AgentSession"]) == HISTORY
    assert sorted(ran.left["Secret"]) == ["many-signing", "many-trainer"]
    assert sorted(ran.left["Pod"]) == ["many-gateway-0", "many-gateway-1"]


def test_a_deleted_job_leaves_nothing(ran: Ran) -> None:
    assert ran.after == {}
