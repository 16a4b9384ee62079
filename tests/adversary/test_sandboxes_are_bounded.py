"""No sandbox takes its node's memory or disk: what its author does not limit, the installation does."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.operator.manifests.pod_hardening import limit
from sandgate.operator.manifests.sandbox_pods import PodDefaults
from sandgate.operator.settings import Settings
from tests.operator.sandbox_pods import POD, agent, verifier

DEFAULTS = Settings().sandbox_resources
MEMORY, DISK = DEFAULTS["limits"]["memory"], DEFAULTS["limits"]["ephemeral-storage"]
LEAST = {"memory": "128Mi", "ephemeral-storage": "64Mi"}

CONTAINERS: dict[str, tuple[Any, dict[str, str], dict[str, str]]] = {
    "one that says nothing": (None, {"memory": MEMORY, "ephemeral-storage": DISK}, {"cpu": "100m", **LEAST}),
    "one that asks for a processor": (
        {"requests": {"cpu": "2"}},
        {"memory": MEMORY, "ephemeral-storage": DISK},
        {"cpu": "2", **LEAST},
    ),
    "one that asks for little memory": (
        {"requests": {"memory": "1Gi"}},
        {"memory": MEMORY, "ephemeral-storage": DISK},
        {"memory": "1Gi", "ephemeral-storage": "64Mi"},
    ),
    "one that asks for more than the default's limit": (
        {"requests": {"memory": "64Gi"}},
        {"memory": "64Gi", "ephemeral-storage": DISK},
        {"memory": "64Gi", "ephemeral-storage": "64Mi"},
    ),
    "one that asks in a way that we do not understand": (
        {"requests": {"memory": "2e9"}},
        {"memory": "2e9", "ephemeral-storage": DISK},
        {"memory": "2e9", "ephemeral-storage": "64Mi"},
    ),
    "one that has limits of its own, larger ones too": (
        {"limits": {"memory": "96Gi", "ephemeral-storage": "1Ti"}},
        {"memory": "96Gi", "ephemeral-storage": "1Ti"},
        {},
    ),
}


@pytest.mark.parametrize(("said", "limits", "requests"), CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_has_limits(said: Any, limits: dict[str, str], requests: dict[str, str]) -> None:
    container = {"name": "agent", **({} if said is None else {"resources": said})}
    limit(container, DEFAULTS)
    assert container["resources"].get("limits") == limits
    assert container["resources"].get("requests", {}) == requests


@pytest.mark.parametrize("make", [agent, verifier], ids=["agent", "verifier"])
def test_every_container_of_a_sandboxs_pod_has_limits(make: Any) -> None:
    beside = {"name": "tool", "image": "tool:1", "resources": {"requests": {"cpu": "1"}}}
    changes = [
        (f"{POD}.containers", [{"name": "agent", "image": "agent:1"}, beside]),
        (f"{POD}.initContainers", [{"name": "first", "image": "first:1"}]),
    ]
    pod = make(*changes, look=PodDefaults.of(Settings()))
    containers = [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]
    assert len(containers) == (4 if make is agent else 2)
    for container in containers:
        assert "memory" in container["resources"]["limits"], container["name"]
        assert "ephemeral-storage" in container["resources"]["limits"], container["name"]


def test_what_the_manifest_says_is_not_changed_behind_its_back() -> None:
    said: dict[str, Any] = {"requests": {"cpu": "2"}}
    limit({"name": "agent", "resources": said}, DEFAULTS)
    assert said == {"requests": {"cpu": "2"}}
