"""The definitions' life with a release at a real API server: installed, upgraded under jobs, kept or taken away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.released import Release, everything, fresh, until_as
from tests.chart.rendering import CHART
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.contract.manifests import spoilt
from tests.support.waiting import until_now

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rolloutjobs.sandgate.dev"
NAMES = ("rolloutjobs.sandgate.dev", "agentsessions.sandgate.dev")


@pytest.fixture
def release(apiserver: Api) -> Iterator[Release]:
    """A namespace for a release and its jobs, and the API server left as it was."""
    with apiserver.namespace(fresh("chart-crds")) as namespace:
        before = everything(apiserver)
        release = Release(apiserver, namespace)
        try:
            yield release
        finally:  # a test that failed must not fail the next
            release.uninstall("--ignore-not-found")
            apiserver.kubectl("delete", "crd", *NAMES, "--ignore-not-found")
        until_as(before, apiserver)


def jobs(release: Release) -> str:
    return f"/apis/sandgate.dev/v1alpha1/namespaces/{release.namespace}/rolloutjobs"


def make_job(release: Release) -> str:
    """A job's uid. The definition is served soon after it is there, not at once."""
    rest = release.api.rest()
    until_now(lambda: rest.answers(jobs(release)), what="RolloutJobs are served")
    return str(rest.create(jobs(release), spoilt())["metadata"]["uid"])


def older(folder: Path) -> Path:
    """The chart as it may have been: a kind without its short name."""
    chart = folder / "sandgate"
    shutil.copytree(CHART, chart)
    for path in (chart / "templates" / "crds").iterdir():
        text = path.read_text("utf-8")
        path.write_text(text.replace("- rj\n", "- oldrj\n"), "utf-8")
    return chart


def test_an_upgrade_changes_the_definitions_under_a_job(release: Release, tmp_path: Path) -> None:
    rest = release.api.rest()
    release.install(chart=older(tmp_path))
    assert rest.get(DEFINITION)["spec"]["names"]["shortNames"] == ["oldrj"]
    uid = make_job(release)
    release.upgrade()
    assert rest.get(DEFINITION)["spec"]["names"]["shortNames"] == ["rj"]
    assert rest.get(f"{jobs(release)}/shop")["metadata"]["uid"] == uid


def test_uninstalling_takes_definitions_and_jobs(release: Release) -> None:
    release.install()
    make_job(release)
    release.uninstall()
    until_now(lambda: not release.api.rest().answers(jobs(release)), what="RolloutJobs are not served")
    with pytest.raises(Refused, match="404"):
        release.api.rest().get(jobs(release))


def test_kept_definitions_and_jobs_are_taken_over_by_the_next_release(release: Release) -> None:
    rest = release.api.rest()
    keep: dict[str, Any] = {"crds": {"keep": True}}
    release.install(keep)
    uid = make_job(release)
    release.uninstall()
    left = {(kind, name) for kind, _, name in everything(release.api) if "sandgate" in kind + name}
    left.discard(("apiservices.apiregistration.k8s.io", "v1alpha1.sandgate.dev"))  # comes with definitions
    definitions = {("customresourcedefinitions.apiextensions.k8s.io", name) for name in NAMES}
    assert left == definitions | {("rolloutjobs.sandgate.dev", "shop")}
    release.install(keep)
    assert rest.get(f"{jobs(release)}/shop")["metadata"]["uid"] == uid
    release.upgrade({"crds": {"keep": False}})
    release.uninstall()
    until_now(lambda: not rest.answers(DEFINITION), what="the definition is gone")
