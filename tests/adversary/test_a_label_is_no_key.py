"""Whoever makes pods in some namespace cannot knock at the gateways of others by putting a trainer's label on them."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.labels import AGENT, VERIFIER
from sandgate.operator.manifests.policies import engine_policies, gateway_policy
from sandgate.operator.settings import Settings
from tests.operator.manifest_jobs import MANAGED, job

NAME = "kubernetes.io/metadata.name"
SAID: dict[str, tuple[tuple[str, ...], list[Any]]] = {
    "nobody of another namespace, as long as an administrator says nothing": ((), [None]),
    "those that an administrator names": (
        ("ml", "lab"),
        [None, {"matchLabels": {NAME: "ml"}}, {"matchLabels": {NAME: "lab"}}],
    ),
    "an empty name is nobody, not everybody": (("",), [None]),
    "all, where an administrator says so": (("ml", "*"), [{}]),
}


@pytest.mark.parametrize(("namespaces", "selectors"), SAID.values(), ids=SAID)
def test_gateways_are_reached_by_trainers_of(namespaces: tuple[str, ...], selectors: list[Any]) -> None:
    settings = Settings(operator_namespace="sandgate-system", trainer_namespaces=namespaces)
    (rule,) = gateway_policy(job(MANAGED), settings)["spec"]["ingress"]
    label = {"sandgate.dev/trainer": "true"}
    trainers = [peer for peer in rule["from"] if peer["podSelector"]["matchLabels"] == label]
    assert [peer.get("namespaceSelector") for peer in trainers] == selectors
    others = [peer for peer in rule["from"] if peer not in trainers]
    assert [peer["podSelector"]["matchLabels"].get("sandgate.dev/role") for peer in others] == [
        AGENT,
        VERIFIER,
        None,
    ]


@pytest.mark.parametrize(("namespaces", "selectors"), SAID.values(), ids=SAID)
def test_engines_are_reached_by_trainers_of(namespaces: tuple[str, ...], selectors: list[Any]) -> None:
    """They know no keys: an administrator who lets a namespace knock at gateways says nothing of engines by it."""
    settings = Settings(trainer_namespaces=("knocks", "*"), engine_trainer_namespaces=namespaces)
    (policy,) = engine_policies(job(MANAGED), settings)
    gateways, trainers = policy["spec"]["ingress"]
    assert [peer.get("namespaceSelector") for peer in trainers["from"]] == selectors
    assert len(gateways["from"]) == 1
