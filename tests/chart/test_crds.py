"""The definitions in the chart are those in crds/, and are kept or taken away as the values say."""

from __future__ import annotations

import pytest
import yaml

from scripts.generators.chart_crds import template
from tests.chart.rendering import CHART, render

DEFINITIONS = {
    body["metadata"]["name"]: body
    for path in (CHART.parents[1] / "crds").glob("*.yaml")
    for body in [yaml.safe_load(path.read_text("utf-8"))]
}
KEEP = {"helm.sh/resource-policy": "keep"}


def test_the_chart_has_them_all() -> None:
    names = {one["metadata"]["name"] for one in render().all("CustomResourceDefinition")}
    assert names == set(DEFINITIONS) == {"rolloutjobs.sandgate.dev", "agentsessions.sandgate.dev"}


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_they_are_the_same_but_for_labels(name: str) -> None:
    body = render().one("CustomResourceDefinition", name)
    assert body["spec"] == DEFINITIONS[name]["spec"]
    assert body["metadata"].keys() == {"name", "labels"}


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_kept_when_asked(name: str) -> None:
    kept = render({"crds": {"keep": True}}).one("CustomResourceDefinition", name)
    assert kept["metadata"]["annotations"] == KEEP


def test_left_out_when_another_release_has_them() -> None:
    assert render({"crds": {"install": False}}).all("CustomResourceDefinition") == []


def test_helms_own_folder_is_not_used() -> None:
    """What is in there is never upgraded."""
    assert not (CHART / "crds").exists()


DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: x
"""


def test_braces_in_a_description_are_not_read_by_helm() -> None:
    text = template("crds/x.yaml", DEFINITION + 'spec:\n  doc: "say {{ x }}"\n')
    assert 'doc: "say {{ "{{" }} x }}"' in text


BAD = {
    "labels of its own": f"{DEFINITION}  labels: {{a: b}}\nspec: {{}}\n",
    "a definition with a field behind spec": f"{DEFINITION}spec:\n  a: b\nstatus: {{}}\n",
    "an object of another kind": DEFINITION.replace("CustomResourceDefinition", "ConfigMap") + "spec: {}\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_would_be_lost_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"crds/x\.yaml: "):
        template("crds/x.yaml", text)
