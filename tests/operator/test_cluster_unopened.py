"""An API server that does not take what a session needs: the job says so in its words, and goes on by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, InvalidBody, SandgateError, TooLarge
from sandgate.contract.status import JobCondition
from sandgate.operator.plan.actions import JobObserved, JobWant, SampleTally
from sandgate.operator.plan.conditions import find
from sandgate.operator.plan.status import job_status
from tests.operator.cluster_rig import World, hurry, manifest, world
from tests.operator.plans import group, seen, want
from tests.operator.test_cluster import is_so, so, told, where

KEYS, SESSION = "Secret", "AgentSession"

REFUSED: dict[str, tuple[str, SandgateError]] = {
    "a quota of Secrets": (
        KEYS,
        Forbidden('403: secrets "x" is forbidden: exceeded quota: team, limited: count/secrets=50'),
    ),
    "a quota of AgentSessions": (
        SESSION,
        Forbidden('403: agentsessions.sandgate.dev "x" is forbidden: exceeded quota: team'),
    ),
    "a webhook that denies Secrets": (KEYS, Forbidden('403: admission webhook "vault" denied the request')),
    "a webhook that denies AgentSessions": (SESSION, InvalidBody("422: no label cost-centre")),
    "a webhook that finds them too large": (SESSION, TooLarge("413: Request entity too large")),
}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


def refuse(up: World, wanted: str, error: SandgateError) -> list[SandgateError]:
    """What sessions need of that kind, as long as the list that is given back has it."""
    create, why = up.kube.create, [error]

    async def asked(body: Any) -> Any:
        of_session = wanted == SESSION or "-keys-" in body["metadata"]["name"]
        if why and body["kind"] == wanted and of_session:
            raise why[0]
        return await create(body)

    up.kube.create = asked  # type: ignore[method-assign]
    return why


@pytest.mark.parametrize(("kind", "error"), REFUSED.values(), ids=REFUSED)
async def test_a_job_whose_sessions_cannot_be_opened_says_why_until_they_can(
    up: World, kind: str, error: SandgateError
) -> None:
    why = refuse(up, kind, error)
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", groupSize=2))
    await so(lambda: where(up) == ("PodsWait", 0), "it says that something is waited for", up=up)
    assert str(error) in str(up.job()["status"]["conditions"])
    await so(lambda: "PodsWait" in told(up), "in an Event, too")
    assert not up.kube.named("Pod")
    why.clear()
    await is_so(up, "Complete")
    assert str(error) not in str(up.job()["status"]["conditions"])


async def test_a_group_that_is_closed_waits_for_nothing(up: World) -> None:
    """One of its sessions was never opened."""
    why = refuse(up, SESSION, Forbidden('403: agentsessions "x" is forbidden: exceeded quota: team'))
    up.operator_up()
    await up.kube.create(manifest("a 1", activeDeadlineSeconds=2))
    await so(lambda: where(up)[0] == "PodsWait", "it says that something is waited for", up=up)
    await is_so(up, "Failed", reason="DeadlineExceeded")
    assert why
    assert up.condition("Progressing") == ("False", "Over")


FULL = replace(want(), unopened="full")
WORDS: dict[str, tuple[JobWant, JobObserved, tuple[str, str, str]]] = {
    "a job that waits says why": (FULL, seen(group("a", "s")), ("PodsWait", "full", "PodsWait")),
    "one of which others run, too": (FULL, seen(group("a", "r")), ("PodsWait", "full", "PodsWait")),
    "nothing is in the way": (want(), seen(group("a", "s")), ("Waiting", "", "Waiting")),
    "its pods' own words come first": (
        FULL, seen(group("a", "h")), ("PodsWait", "Unschedulable: 0/3 nodes", "PodsWait"),
    ),
    "a gateway that is away comes first": (
        FULL,
        seen(group("a", "s", gateway="shop-gateway-1")),
        ("Waiting", "1 group waits for what does not answer: shop-gateway-1", "Waiting"),
    ),
    "a spec that is refused comes first": (
        replace(FULL, refused="no"), seen(group("a", "s")), ("SpecRefused", "no", "SpecRefused"),
    ),
    "no engine is what matters most": (FULL, seen(group("a", "s"), engines=0), ("PodsWait", "full", "NoEngine")),
    "a job that is over waits for nothing": (
        FULL, seen(tally=SampleTally(ended=1), total=1), ("Over", "", "AllEnded"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "observed", "told"), WORDS.values(), ids=WORDS)
def test_words(wanted: JobWant, observed: JobObserved, told: tuple[str, str, str]) -> None:
    status = job_status(wanted, observed, 1.0)
    found = find(status, JobCondition.PROGRESSING)
    assert found is not None
    assert (found.reason, found.message, status.reason) == told
