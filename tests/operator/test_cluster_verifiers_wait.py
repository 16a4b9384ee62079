"""A verifier whose pod cannot start yet: its job says so in the words of who knows, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden
from sandgate.contract.labels import ROLE, VERIFIER
from sandgate.operator.cluster import pod_events
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so
from tests.operator.test_wrong_jobs import forbidden, said, told, unscheduled, waits

PULLS = 'Pulling image "v:1"'
NO_ROOM = "0/3 nodes are available: 3 Insufficient memory."
UNPULLED = 'Back-off pulling image "v:1": not found'


@dataclass(frozen=True)
class Held:
    """What holds it up, and how the world says it."""

    words: str
    """The job's."""
    status: dict[str, Any] | None = None
    event: tuple[str, str] | None = None
    refuses: Forbidden | None = None


HELD: dict[str, Held] = {
    "no node has room": Held(f"verifier: Unschedulable: {NO_ROOM}", unscheduled(NO_ROOM)),
    "its image is not there": Held(
        f"verifier: ImagePullBackOff: {UNPULLED}", waits("ImagePullBackOff", UNPULLED, "verifier")
    ),
    "its image is on its way": Held(
        f"verifier: Pulling: {PULLS}", waits("ContainerCreating", name="verifier"), ("Pulling", PULLS)
    ),
    "a volume cannot be mounted": Held(
        "verifier: FailedMount: no such Secret",
        waits("ContainerCreating", name="verifier"),
        ("FailedMount", "no such Secret"),
    ),
    "a full quota": Held(
        'verifier: 403: pods "shop-t0-0-0" is forbidden: exceeded quota: team',
        refuses=forbidden("exceeded quota: team"),
    ),
}


@dataclass
class Waits(World):
    """Verifiers' pods wait as `held` says, until there is `room`."""

    held: Held = field(default_factory=lambda: Held(""))
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def _run(self, body: Any) -> None:
        name = body["metadata"]["name"]
        if body["metadata"]["labels"][ROLE] == VERIFIER and not self.room.is_set():
            if self.held.status is not None:
                self.kube.pod_status(name, NAMESPACE, self.held.status)
            if self.held.event is not None:
                await self.kube.create(told(body, self.held.event))
            await self.room.wait()
        await super()._run(body)


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Waits]:
    hurry(monkeypatch)
    monkeypatch.setattr(pod_events, "LOOK_S", 0.05)
    monkeypatch.setattr(pod_events, "AFTER_S", 0.0)
    async with world(tmp_path, kind=Waits) as made:
        assert isinstance(made, Waits)
        yield made


@pytest.mark.parametrize("operators", [1, 2])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
async def test_a_job_whose_verifier_waits_says_why_until_it_starts(
    up: Waits, held: Held, operators: int
) -> None:
    """So does the next operator."""
    up.held, create = held, up.kube.create

    async def asked(body: Any) -> Any:
        judges = body["kind"] == "Pod" and body["metadata"]["labels"][ROLE] == VERIFIER
        if judges and held.refuses is not None and not up.room.is_set():
            raise held.refuses
        return await create(body)

    up.kube.create = asked  # type: ignore[method-assign]
    up.operator_up()
    reward = {"source": "verifier", "verifier": {"container": {"image": "v:1"}, "seconds": 50}}
    await up.kube.create(manifest("a 1", reward=reward))
    wanted = ("PodsWait", held.words)
    await so(lambda: said(up) == wanted, f"it says {wanted}", up=up)
    if operators > 1:
        await up.operator_down()
        up.job()["status"]["conditions"] = []
        up.operator_up()
        await so(lambda: said(up) == wanted, "the next operator says so, too", up=up)
    up.room.set()
    await is_so(up, "Complete")
    assert held.words not in str(up.job()["status"])
    (session,) = up.sessions().values()
    assert session["status"]["reward"] == 1.0
