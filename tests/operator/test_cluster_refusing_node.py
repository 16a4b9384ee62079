"""A node that takes no pods for a while (a device plugin, a kubelet that starts again) costs no sample and no job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.labels import AGENT, ROLE, SESSION, VERIFIER
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_cluster import so

REFUSALS = 5
"""More than `group.retry.infra` allows."""


@dataclass
class Refusing(World):
    """Its node refuses pods of each sample so often, to which the scheduler sends them all: its agents', or its
    verifiers'."""

    refused: Counter[str] = field(default_factory=Counter)
    role: str = AGENT
    runs_first: bool = False
    """One pod is taken before that."""

    async def _run(self, body: Any) -> None:
        name, labels = str(body["metadata"]["name"]), body["metadata"]["labels"]
        sample = str(labels[SESSION]).rsplit("-", 1)[0]
        if labels[ROLE] != self.role:
            await super()._run(body)
            return
        if self.runs_first or self.refused[sample] >= REFUSALS:
            self.runs_first = False
            await super()._run(body)
            return
        self.refused[sample] += 1
        words = "Pod was rejected: Allocate failed due to no healthy devices present"
        rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": words}
        self.kube.pod_status(name, NAMESPACE, rejected)


@pytest.mark.parametrize("proved", [False, True], ids=["before anything ran", "while the job runs"])
async def test_a_node_that_refuses_pods_for_a_while(
    proved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with world(tmp_path, kind=Refusing) as up:
        assert isinstance(up, Refusing)
        up.runs_first = proved
        up.operator_up()
        await up.kube.create(manifest("a one", "b two", groupSize=2))
        await so(
            lambda: up.condition("Complete")[0] == "True" or up.condition("Failed")[0] == "True", "it is over"
        )
        assert_whole(up)
        assert sum(up.refused.values()) == REFUSALS * (3 if proved else 4)


async def test_a_node_that_refuses_verifiers_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    reward = {"source": "verifier", "verifier": {"container": {"image": "v:1"}, "seconds": 50}}
    async with world(tmp_path, kind=Refusing) as up:
        assert isinstance(up, Refusing)
        up.role = VERIFIER
        up.operator_up()
        await up.kube.create(manifest("a one", "b two", groupSize=2, reward=reward))
        await so(
            lambda: up.condition("Complete")[0] == "True" or up.condition("Failed")[0] == "True", "it is over"
        )
        assert_whole(up)
        assert sum(up.refused.values()) == REFUSALS * 4


def assert_whole(up: World) -> None:
    assert up.condition("Failed")[0] != "True", up.condition("Failed")
    told = up.job()["status"]
    assert (told["ended"], told.get("failed", 0)) == (4, 0)
