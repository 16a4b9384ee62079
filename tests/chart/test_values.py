"""Values: what the chart refuses, by name; that it describes and declares each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from scripts.generators import chart_values
from scripts.generators.chart_values import values as documented
from tests.chart.rendering import CHART, ChartRefused, helm, render

SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


# path of the value -> a bad one; the message must name the path
BAD: Mapping[str, tuple[str, Any]] = {
    "a scope of another kind": ("scope", "galaxy"),
    "watched namespaces of a cluster-wide install": ("watchNamespaces", ["a"]),
    "a shard that is no label": ("shards/0", {"shards": ["Big_One"]}),
    "a shard twice": ("shards", ["a", "a"]),
    "a shard too long for names": ("shards/0", {"shards": ["a" * 41]}),
    "no replica": ("operator/replicas", 0),
    "replicas as text": ("operator/replicas", "2"),
    "no time to stop": ("operator/terminationGracePeriodSeconds", 0),
    "a quantity that is none": ("operator/resources/requests/cpu", "lots"),
    "resources of another kind": ("operator/resources", {"request": {}}),
    "a pod label that is none": ("operator/podLabels/x", "no spaces"),
    "a digest without its algorithm": ("images/gateway/digest", "0" * 64),
    "a tag with a slash": ("images/operator/tag", "a/b"),
    "no repository": ("images/fetcher/repository", ""),
    "an unknown pull policy": ("images/pullPolicy", "Sometimes"),
    "a pull secret that is no name": ("images/pullSecrets/0", {"images": {"pullSecrets": ["_"]}}),
    "a relative models directory": ("jobs/modelsDir", "models"),
    "a negative history": ("jobs/history", -1),
    "a fraction of a second": ("jobs/sandbox/unreachableSeconds", 1.5),
    "a DNS that nothing is": ("jobs/dns/labels", {"k8s-app": None}),
    "trainers that are anyone": ("jobs/trainer/labels", {"sandgate.dev/trainer": None}),
    "an account neither made nor named": ("serviceAccount/name", {"serviceAccount": {"create": False}}),
    "a budget that lets nobody go": ("pdb/maxUnavailable", 0),
    "a port beyond all": (
        "networkPolicy/apiServer/ports/0",
        {"networkPolicy": {"apiServer": {"ports": [65536]}}},
    ),
    "no port of the API server": ("networkPolicy/apiServer/ports", []),
    "an address without a mask": (
        "networkPolicy/apiServer/cidrs/0",
        {"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}},
    ),
    "a peer that is everybody": (
        "networkPolicy/metricsFrom/0",
        {"networkPolicy": {"metricsFrom": [{}]}},
    ),
    "an address of gateways that is none": ("jobs/gateway/external/url", "rollouts.example.com"),
    "a proxy that is everybody": (
        "jobs/gateway/external/from/0",
        {"jobs": {"gateway": {"external": {"from": [{}]}}}},
    ),
    "a Gateway without a name": (
        "jobs/gateway/external/parentRefs/0",
        {"jobs": {"gateway": {"external": {"parentRefs": [{"namespace": "infra"}]}}}},
    ),
    "keys for ever, by a value that was taken away": (
        "jobs/trainer",
        {"jobs": {"trainer": {"keySeconds": None}}},
    ),
    "volumes that fill, by a value that was taken away": (
        "jobs/gateway",
        {"jobs": {"gateway": {"retireSeconds": None}}},
    ),
    "every port, by a value that was taken away": (
        "networkPolicy/apiServer",
        {"networkPolicy": {"apiServer": {"ports": None}}},
    ),
    "a level that no log has": ("operator/logLevel", "verbose"),
    "a level of gateways in capitals": ("jobs/gateway/logLevel", "INFO"),
    "a form that no log has": ("operator/logFormat", "xml"),
    "a variable without a name": ("operator/extraEnv/0", {"operator": {"extraEnv": [{"value": "x"}]}}),
    "a variable that is a number": (
        "operator/extraEnv/0/value",
        {"operator": {"extraEnv": [{"name": "A", "value": 1}]}},
    ),
    "a variable with two sources": (
        "operator/extraEnv/0",
        {"operator": {"extraEnv": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}]}},
    ),
    "a variable's name that is none": (
        "operator/extraEnv/0/name",
        {"operator": {"extraEnv": [{"name": "A=B", "value": "x"}]}},
    ),
    "a volume without a source": ("operator/extraVolumes/0", {"operator": {"extraVolumes": [{"name": "x"}]}}),
    "a mount that is relative": (
        "operator/extraVolumeMounts/0/mountPath",
        {"operator": {"extraVolumeMounts": [{"name": "x", "mountPath": "certs"}]}},
    ),
    "a mount with a word that Kubernetes lacks": (
        "operator/extraVolumeMounts/0",
        {"operator": {"extraVolumeMounts": [{"name": "x", "mountPath": "/certs", "readonly": True}]}},
    ),
    "an interval without a unit": ("metrics/serviceMonitor/interval", "30"),
    "a switch that is text": ("crds/keep", "no"),
}


@pytest.mark.parametrize(("path", "value"), BAD.values(), ids=BAD)
def test_refused_and_named(path: str, value: Any) -> None:
    top = path.split("/", maxsplit=1)[0]
    whole = value if isinstance(value, dict) and top in value else nested(path.replace("/", "."), value)
    with pytest.raises(ChartRefused, match=f"at '/{path}'"):
        render(whole)


@pytest.mark.parametrize("path", sorted({"", *(".".join(one.path[:-1]) for one in documented(
    (CHART / "values.yaml").read_text("utf-8"))) }))  # fmt: skip
def test_unknown_keys_are_refused_everywhere(path: str) -> None:
    with pytest.raises(ChartRefused, match="additional properties 'unheardOf' not allowed"):
        render(nested(f"{path}.unheardOf".strip("."), 1))


def declared(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of values that the schema knows: it stops where any key may come."""
    schema = SCHEMA["$defs"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
    if "properties" in schema and path[-1:] != ("resources",):
        for name, below in schema["properties"].items():
            yield from declared(below, (*path, name))
    else:
        yield path


def test_schema_and_values_know_the_same() -> None:
    known = {one.path for one in documented((CHART / "values.yaml").read_text("utf-8"))}
    assert set(declared(SCHEMA)) - {("global",)} == known


def test_the_readme_has_a_row_with_type_default_and_description_for_every_value() -> None:
    lines = (CHART / "README.md").read_text("utf-8").splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert rows.keys() == {".".join(path) for path in declared(SCHEMA) if path != ("global",)}
    for name, line in rows.items():
        _, value, kind, *_, description, _ = line.replace("\\|", "/").split("|")
        assert value.strip() == f"`{name}`"
        assert kind.strip(), line
        assert len(description.split()) >= 2, line


def test_a_value_without_a_comment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.c has no comment"):
        list(documented("a:\n  # Said.\n  b: 1\n\n  c: 2\n"))


TYPES: Mapping[str, tuple[Any, str]] = {
    "words": ({"enum": ["a", "b", "c"]}, "`a`, `b` or `c`"),
    "numbers with bounds": ({"type": "integer", "minimum": 1, "maximum": 9}, "integer, 1 to 9"),
    "a list of what is shared": ({"type": "array", "items": {"$ref": "#/$defs/x"}}, "list: text"),
    "either": (
        {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/x"}, {"const": "*"}]}},
        "list: text or `*`",
    ),
    "a map of any keys": ({"type": "object", "additionalProperties": {"type": "string"}}, "map of text"),
    "a switch": ({"type": "boolean"}, "true or false"),
}


@pytest.mark.parametrize(("schema", "words"), TYPES.values(), ids=TYPES)
def test_types_of_the_schema_in_words(schema: Any, words: str) -> None:
    assert chart_values.kind(schema, {"x": {"type": "string"}}) == words


def test_every_object_of_the_schema_is_closed_or_free() -> None:
    """Closed, or a map of any keys on purpose: never open beside named properties."""

    def objects(schema: Any) -> Iterator[Mapping[str, Any]]:
        if isinstance(schema, dict):
            if schema.get("type") == "object":
                yield schema
            for below in schema.values():
                yield from objects(below)

    open_ones = [
        one for one in objects(SCHEMA) if "properties" in one and one.get("additionalProperties") is not False
    ]
    assert open_ones == []


def test_the_notes_say_what_uninstalling_takes(tmp_path: Any) -> None:
    """They are not in `helm template`; a dry run of the client renders them."""

    def notes(**crds: bool) -> str:
        said = helm(
            "install", "s", str(CHART), "--dry-run=client", "--values=-", stdin=json.dumps({"crds": crds})
        )
        return said.split("NOTES:")[1]

    assert "EVERY RolloutJob" in notes(keep=False)
    assert "the definitions stay" in notes(keep=True)
    assert "not by this release" in notes(install=False)


def test_lint() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))
