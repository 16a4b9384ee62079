"""Disruption budget, spread and rollout: a drain or an upgrade never takes the last operator."""

from __future__ import annotations

from typing import Any

from tests.chart.rendering import at, render


def test_one_may_go_at_a_time() -> None:
    spec = render().one("PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow", (
        "a broken operator must not hold a node's drain up"
    )


def test_a_single_replica_has_no_budget() -> None:
    """It would say nothing, or hold every drain up."""
    assert render({"operator": {"replicas": 1}}).all("PodDisruptionBudget") == []


def test_it_can_be_left_out() -> None:
    assert render({"pdb": {"enabled": False}}).all("PodDisruptionBudget") == []


def test_a_rollout_adds_before_it_takes() -> None:
    assert at(render().one("Deployment"), "spec.strategy") == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_replicas_prefer_other_nodes_and_zones_but_a_small_cluster_will_do() -> None:
    pod = at(render().one("Deployment"), "spec.template.spec")
    assert pod["affinity"].keys() == {"podAntiAffinity"}
    assert pod["affinity"]["podAntiAffinity"].keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    assert [one["whenUnsatisfiable"] for one in pod["topologySpreadConstraints"]] == ["ScheduleAnyway"]


def test_placement_is_the_users_when_given() -> None:
    affinity: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    spread = [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    given = {
        "affinity": affinity,
        "topologySpreadConstraints": spread,
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    }
    pod = at(render({"operator": given}).one("Deployment"), "spec.template.spec")
    assert {name: pod[name] for name in given} == given
