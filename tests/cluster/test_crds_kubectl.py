"""What a person meets with kubectl: explain, columns, short names, scale, field selectors, status on its own.

`SANDGATE_GOLDEN=write pytest tests/cluster/test_crds_kubectl.py` writes down anew what explain says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.cluster.crds import Json, install, path
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.contract.manifests import GONE, spoilt
from tests.tidy.source import ROOT

NAMESPACE = "crd-kubectl"
WRITE = os.environ.get("SANDGATE_GOLDEN") == "write"
GOLDEN = ROOT / "tests" / "golden" / "crds"
EXPLAINED = (
    "rj.spec.engine",
    "rj.spec.engine.managed",
    "rj.spec.model",
    "rj.spec.agent.template.spec.containers",
    "rj.status.conditions",
    "ags.spec",
    "ags.status",
)
CONDITIONS = [
    {"type": "Ready", "status": "True", "reason": "GatewaysReady"},
    {"type": "Complete", "status": "False"},
]
COUNTS = {"reason": "Running", "sessions": 4, "ended": 1, "running": 2, "failed": 0, "committed": 1}


@pytest.fixture(scope="module")
def api(apiserver: Api) -> Iterator[Api]:
    install(apiserver)
    with apiserver.namespace(NAMESPACE):
        rest = apiserver.rest()
        for name, more in (("shop", ()), ("later", (("spec.suspend", True), ("spec.model.name", "other")))):
            body = spoilt(("metadata.managedFields", GONE), ("metadata.name", name), *more)
            rest.create(path(NAMESPACE), body)
        status = {"conditions": CONDITIONS, "selector": "sandgate.dev/job=shop", **COUNTS}
        rest.merge(path(NAMESPACE, name="shop/status"), {"status": status})
        for job, uid, sample in (("shop", "q1", 0), ("shop", "q1", 1), ("shop", "q2", 0), ("later", "q1", 0)):
            rest.create(path(NAMESPACE, "agentsessions"), session(job, uid, sample))
        ended = {
            "conditions": [{"type": "TrajectoryCommitted", "status": "True"}],
            "turns": 3,
            "reward": 0.5,
            "node": "n1",
            "failureClass": "policy",
            "failureReason": "TurnLimit",
        }
        rest.merge(path(NAMESPACE, "agentsessions", "shop-q1-0/status"), {"status": ended})
        yield apiserver


def session(job: str, uid: str, sample: int) -> Json:
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {"name": f"{job}-{uid}-{sample}"},
        "spec": {"jobName": job, "taskUid": uid, "sampleIndex": sample, "gateway": f"{job}-gateway-0"},
    }


def kubectl(api: Api, *args: str) -> str:
    return api.kubectl("-n", NAMESPACE, *args)


def rows(api: Api, *args: str) -> dict[str, list[str]]:
    """Name -> the other cells of `kubectl get`; the header is at "NAME"."""
    lines = [line.split("\t") for line in kubectl(api, "get", *args).splitlines()]
    cells = [line[0].split() for line in lines]
    return {line[0]: line[1:] for line in cells}


@pytest.mark.parametrize("field", EXPLAINED)
def test_kubectl_explain_reads_well(api: Api, field: str) -> None:
    text = "\n".join(line.rstrip() for line in api.kubectl("explain", field).splitlines())
    file, text = GOLDEN / f"{field}.txt", text.rstrip() + "\n"
    if WRITE:
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


def test_who_applies_the_same_definitions_is_in_no_conflict_with_who_did_before(api: Api) -> None:
    """As kubectl first and the chart after it: what is stored is what is applied, to the letter."""
    said = api.kubectl("apply", "--server-side", "--field-manager=helm", "-f", str(ROOT / "crds"))
    assert said.count("serverside-applied") == 2


def test_every_field_can_be_explained(api: Api) -> None:
    for kind in ("rj", "ags"):
        listed = api.kubectl("explain", kind, "--recursive")
        assert "status" in listed
        assert "<no description>" not in api.kubectl("explain", kind)


def test_the_columns_tell_the_story_of_a_job(api: Api) -> None:
    table = rows(api, "rj", "shop", "-o", "wide")
    assert (
        table["NAME"] == "READY DONE OF RUNNING FAILED COMPLETE REASON AGE MODEL SUSPENDED COMMITTED".split()
    )
    age = table["shop"].pop(7)
    assert age.endswith("s")
    assert table["shop"] == "True 1 4 2 0 False Running tiny false 1".split()


def test_the_columns_tell_the_story_of_a_session(api: Api) -> None:
    table = kubectl(api, "get", "ags", "shop-q1-0", "-o", "wide").splitlines()
    head = "NAME JOB TASK SAMPLE ATTEMPT RUNNING COMMITTED REWARD FAILURE TURNS NODE AGE"
    assert table[0].split() == head.split()
    assert table[1].split()[:-1] == "shop-q1-0 shop q1 0 0 True 0.5 TurnLimit 3 n1".split()


def test_both_kinds_are_in_the_category(api: Api) -> None:
    names = set(kubectl(api, "get", "sandgate", "-o", "name").split())
    assert {"rolloutjob.sandgate.dev/shop", "agentsession.sandgate.dev/shop-q1-0"} <= names


def test_kubectl_scale_sets_parallelism_and_sees_what_runs(api: Api) -> None:
    seen = json.loads(kubectl(api, "get", "--subresource=scale", "rj", "shop", "-o", "json"))
    assert seen["spec"] == {"replicas": 8}
    assert seen["status"] == {"replicas": 2, "selector": "sandgate.dev/job=shop"}
    kubectl(api, "scale", "rj", "later", "--replicas=3", "--current-replicas=8")
    stored = json.loads(kubectl(api, "get", "rj", "later", "-o", "json"))
    assert stored["spec"]["parallelism"] == 3
    with pytest.raises(AssertionError, match="greater than or equal to 1"):
        kubectl(api, "scale", "rj", "later", "--replicas=0")  # spec.suspend is the way


SELECTED = {
    "ags,spec.jobName=shop": {"shop-q1-0", "shop-q1-1", "shop-q2-0"},
    "ags,spec.jobName=shop,spec.taskUid=q1": {"shop-q1-0", "shop-q1-1"},
    "ags,spec.taskUid!=q1": {"shop-q2-0"},
    "ags,spec.gateway=later-gateway-0": {"later-q1-0"},
    "ags,spec.remote=true": set(),
    "rj,spec.suspend=true": {"later"},
    "rj,spec.suspend=false": {"shop"},
    "rj,spec.model.name=other": {"later"},
}


@pytest.mark.parametrize(("query", "names"), SELECTED.items(), ids=SELECTED)
def test_objects_are_found_by_fields(api: Api, query: str, names: set[str]) -> None:
    kind, selector = query.split(",", 1)
    found = json.loads(kubectl(api, "get", kind, f"--field-selector={selector}", "-o", "json"))["items"]
    assert {one["metadata"]["name"] for one in found} == names


def test_status_is_written_apart_from_spec(api: Api) -> None:
    rest = api.rest()
    at = path(NAMESPACE, name="shop")
    before = rest.get(at)
    rest.merge(at, {"status": {"running": 77}})
    rest.merge(path(NAMESPACE, name="shop/status"), {"spec": {"parallelism": 77}, "status": {"retries": 1}})
    after = rest.get(at)
    assert after["status"] == before["status"] | {"retries": 1}
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_one_condition_of_a_type(api: Api) -> None:
    with pytest.raises(Refused, match="Duplicate value"):
        api.rest().merge(
            path(NAMESPACE, name="later/status"), {"status": {"conditions": [CONDITIONS[0], CONDITIONS[0]]}}
        )


def test_what_sandgate_crds_prints_changes_nothing_after_crds_was_applied(api: Api) -> None:
    from typer.testing import CliRunner

    from sandgate.trainer.cli.command import app

    told = CliRunner().invoke(app, ["crds"])
    assert told.exit_code == 0
    api.kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=told.stdout)
