"""Which tests run side by side, where pytest-xdist has workers (a pytest plugin; without workers it does nothing).

Most of what takes long waits: for pods, for an engine, for a program that was killed. Two workers use two cores where
one used half. Tests that share what is dear, a cluster or an engine, are one group and stay on one worker; all else
goes by file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

KUBERNETES = "a Kubernetes"
ENGINE = "an engine"
TRAINERS = "trainers"

GROUPS: dict[str, tuple[str, ...]] = {
    KUBERNETES: (
        "tests/anycluster/",
        "tests/chart/test_on_cluster.py",
        "tests/cluster/e2e/",
        "tests/cluster/test_clean_end.py",
        "tests/cluster/test_harness.py",
        "tests/cluster/test_images.py",
        "tests/cluster/test_podstatus.py",
        "tests/cluster/test_power.py",
        "tests/cluster/test_process.py",
        "tests/cluster/test_sandbox.py",
        "tests/cluster/test_shared.py",
        "tests/images/",
    ),
    ENGINE: (
        "tests/agents/test_on_vllm.py",
        "tests/e2e/",
        "tests/gateway/engine/",
        "tests/gateway/test_turn_forms.py",
        "tests/gateway/tokens/test_forced.py",
        "tests/gateway/tokens/vllm_parity/",
        "tests/operator/test_local_vllm.py",
        "tests/trainer/test_checkpoints_vllm.py",
        "tests/trainer/test_doctor.py",
        "tests/truth/",
    ),
    TRAINERS: (
        "tests/gateway/media/test_real_vllm.py",
        "tests/gateway/media/test_vllm_processors.py",
        "tests/trainer/areal/",
        "tests/trainer/verl/",
        "tests/trainer/trl/",
        "tests/trainer/test_adapters.py",
        "tests/trainer/test_export_trl.py",
        "tests/trainer/test_trl.py",
        "tests/trainer/test_trl_served.py",
        "tests/trainer/test_verl.py",
    ),
}
"""What starts with one of these is of the group. The longest first: whoever is free takes the next."""

LONG: tuple[str, ...] = ("tests/adversary/", "tests/simulation/", "tests/cluster/scale/")
"""Files that take long by themselves: before the others, so that none is left over at the end."""


def group(nodeid: str) -> str:
    """By path: the files of a group, or one file."""
    path = nodeid.partition("::")[0]
    return next((name for name, paths in GROUPS.items() if path.startswith(paths)), path)


def turn(nodeid: str) -> int:
    """When the test's group is handed out."""
    name = group(nodeid)
    if name in GROUPS:
        return list(GROUPS).index(name)
    return len(GROUPS) + (not name.startswith(LONG))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist's are untyped
    """By group, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Ours, whatever --dist says."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


class ClusterEnds:
    """With the last test that needs it: idle, it takes a tenth of both cores and 9 GB, and half a run comes after."""

    def __init__(self) -> None:
        self.begun: list[tuple[pytest.FixtureDef[Any], Any]] = []

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
        if fixturedef.argname == "cluster":
            self.begun.append((fixturedef, request))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        if group(item.nodeid) == KUBERNETES and nextitem and group(nextitem.nodeid) != KUBERNETES:
            while self.begun:
                fixturedef, request = self.begun.pop()
                fixturedef.finish(request)  # and before it what was made of it


def in_turn(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts what a worker has collected, so that the longest groups begin first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid))
        config.pluginmanager.register(ClusterEnds(), "sandgate-cluster-ends")
