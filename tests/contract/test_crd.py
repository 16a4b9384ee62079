"""The definitions keep the conventions of the Kubernetes API, and say what the dataclasses say; without a cluster."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sandgate.contract import conditions, kinds
from sandgate.contract.conditions import JobReason, SessionReason
from sandgate.contract.crd import crds
from sandgate.contract.documented import member_docs
from sandgate.contract.failure_reasons import FailureReason
from sandgate.trainer.cli.command import app
from tests.cluster.crds import Json, roots, schemas
from tests.tidy.source import ROOT

OPEN = "x-kubernetes-preserve-unknown-fields"
FREE = {
    "RolloutJob.spec.model.templateKwargs": "variables of a chat template, which names them",
    "RolloutJob.spec.engine.managed.template": "part of a PodTemplateSpec",
    "RolloutJob.spec.gateway.template": "part of a PodTemplateSpec",
    "RolloutJob.spec.tasks.inline[].prompt": "text or chat messages",
    "RolloutJob.spec.tasks.inline[].data": "the user's own JSON",
    "RolloutJob.spec.agent.template": "a PodTemplateSpec",
    "RolloutJob.spec.agent.egress[]": "a NetworkPolicyEgressRule",
    "RolloutJob.spec.reward.verifier.container": "a Container",
}
"""Where unknown fields are kept, and why; what is below is part of it."""


def spots() -> Iterator[tuple[str, Json]]:
    """Every schema of spec and status, by kind and path."""
    for kind, root in roots().items():
        for block in ("spec", "status"):
            for at, schema in schemas(block, root["properties"][block]):
                yield f"{kind}.{at}", schema


SPOTS = dict(spots())
FIELDS = {at: schema for at, schema in SPOTS.items() if not at.endswith(("[]", "{}"))}


def broken(found: Iterator[str]) -> None:
    assert not (listed := list(found)), "\n".join(listed)


def test_there_is_much_to_check() -> None:
    assert len(FIELDS) > 130


def test_every_field_has_a_description() -> None:
    broken(at for at, schema in FIELDS.items() if len(schema.get("description", "")) < 5)


def test_fields_are_camel_case_and_not_plain_acronyms() -> None:
    names = {at: at.rsplit(".", 1)[-1] for at in FIELDS}
    broken(at for at, name in names.items() if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name))


def test_there_is_no_phase() -> None:
    broken(at for at in FIELDS if at.lower().endswith(("phase", "state")))


def test_optional_fields_of_a_spec_have_a_default_or_say_what_absence_means() -> None:
    def silent() -> Iterator[str]:
        for at, schema in FIELDS.items():
            owner, _, name = at.rpartition(".")
            if ".spec." not in at or any(at.startswith(free) for free in FREE):
                continue
            optional = name not in SPOTS[owner].get("required", ())
            told = re.search(
                r"absent|default|not beside|needed|with source", schema["description"], re.IGNORECASE
            )
            if optional and "default" not in schema and not told:
                yield f"{at}: {schema['description']}"

    broken(silent())


def test_a_status_is_not_filled_in() -> None:
    broken(at for at, schema in FIELDS.items() if ".status" in at and "default" in schema)


def fits(schema: Json, value: Any) -> bool:
    """Is this default one that the field may have?"""
    if "enum" in schema:
        return bool(value in schema["enum"])
    match value:
        case str():
            return bool(re.search(schema["pattern"], value)) and len(value) >= schema.get("minLength", 0)
        case bool():
            return bool(schema["type"] == "boolean")
        case int() | float():
            return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def test_defaults_are_within_their_bounds() -> None:
    typed = {at: one for at, one in FIELDS.items() if "default" in one and "type" in one}
    assert len(typed) > 40
    broken(at for at, schema in typed.items() if not fits(schema, schema["default"]))


def test_every_value_of_an_enum_is_described() -> None:
    """But where the values say it all."""
    plain = {"True", "False", "Unknown"}
    broken(
        f"{at}: {value}"
        for at, schema in FIELDS.items()
        for value in schema.get("enum", ())
        if value not in plain and f"* {value}: " not in schema["description"]
    )


def test_every_text_has_a_longest_length() -> None:
    broken(
        at
        for at, schema in SPOTS.items()
        if schema.get("type") == "string" and "enum" not in schema and "maxLength" not in schema
    )


def test_every_text_refuses_nul() -> None:
    broken(
        at
        for at, schema in SPOTS.items()
        if schema.get("type") == "string" and "enum" not in schema and re.search(schema["pattern"], "a\0b")
    )


def test_every_list_and_map_has_a_greatest_size() -> None:
    broken(at for at, one in SPOTS.items() if one.get("type") == "array" and "maxItems" not in one)
    broken(at for at, one in SPOTS.items() if "additionalProperties" in one and "maxProperties" not in one)


def test_every_list_says_how_it_is_merged() -> None:
    kinds_of = {at: one.get("x-kubernetes-list-type") for at, one in SPOTS.items() if "items" in one}
    assert set(kinds_of.values()) == {"atomic", "map"}
    merged = {at: SPOTS[at]["x-kubernetes-list-map-keys"] for at, how in kinds_of.items() if how == "map"}
    assert merged == {
        "RolloutJob.spec.tasks.inline": ["uid"],
        "RolloutJob.status.conditions": ["type"],
        "AgentSession.status.conditions": ["type"],
    }
    broken(at for at, keys in merged.items() if not set(keys) <= set(SPOTS[f"{at}[]"]["required"]))


def test_whole_numbers_have_a_width_and_it_holds_their_bounds() -> None:
    for at, schema in SPOTS.items():
        if schema.get("type") == "integer":
            assert schema["format"] in ("int32", "int64"), at
            if schema["format"] == "int32":
                assert -(2**31) <= schema["minimum"] <= schema["maximum"] < 2**31, at


def test_seconds_are_named_so() -> None:
    """A duration is a whole number of seconds, and its name ends in it; no other number's does."""
    broken(
        at
        for at, schema in FIELDS.items()
        if at.lower().endswith("seconds")
        and (schema.get("type"), schema.get("format")) != ("integer", "int32")
    )
    broken(at for at in FIELDS if re.search(r"(timeout|duration|ttl|deadline)$", at, re.IGNORECASE))


def test_only_what_is_not_ours_is_left_open() -> None:
    opened = {at for at, schema in SPOTS.items() if schema.get(OPEN)}
    tops = {at for at in opened if not any(at.startswith(f"{other}.") for other in opened)}
    assert tops == FREE.keys()


def test_conditions_and_their_reasons_are_documented() -> None:
    for enum in (conditions.JobCondition, conditions.SessionCondition, JobReason, SessionReason):
        assert member_docs(enum).keys() == set(enum.__members__)
    assert "* Ready: " in SPOTS["RolloutJob.status.conditions"]["description"]
    assert "* Finalized: " in SPOTS["AgentSession.status.conditions"]["description"]
    for page, enum in (("rolloutjob", JobReason), ("agentsession", SessionReason)):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text("utf-8")
        broken(one for one in enum if f"| `{one}` |" not in text)


TOLD_IN: dict[str, type[StrEnum]] = {
    "operator/sandgate/operator/plan/status.py": JobReason,
    "operator/sandgate/operator/plan/ends.py": JobReason,
    "operator/sandgate/operator/cluster/session_status.py": SessionReason,
}


@pytest.mark.parametrize(("file", "reasons"), TOLD_IN.items(), ids=TOLD_IN)
def test_every_reason_that_the_operator_gives_is_a_documented_one(file: str, reasons: type[StrEnum]) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    told = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)*", node.value)
    }
    assert told, "no reason is given there: look elsewhere"
    assert told <= {*reasons, *FailureReason}


def test_one_version_is_served_and_stored() -> None:
    for one in crds():
        (version,) = one["spec"]["versions"]
        assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
        assert version["subresources"]["status"] == {}
        assert one["spec"]["scope"] == "Namespaced"


def test_columns_selectors_and_scale_name_fields_that_exist() -> None:
    for one in crds():
        (version,) = one["spec"]["versions"]
        kind = one["spec"]["names"]["kind"]
        paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
        paths += [field["jsonPath"] for field in version["selectableFields"]]
        paths += list(version["subresources"].get("scale", {}).values())
        plain = [path for path in paths if not path.startswith(".metadata.")]
        broken(path for path in plain if f"{kind}{path.split('[')[0]}" not in FIELDS)


def test_sandgate_crds_prints_what_is_checked_in() -> None:
    told = CliRunner().invoke(app, ["crds"])
    assert told.exit_code == 0
    files = [ROOT / "crds" / name for name in ("rolloutjob.yaml", "agentsession.yaml")]
    assert list(yaml.safe_load_all(told.stdout)) == [
        yaml.safe_load(file.read_text("utf-8")) for file in files
    ]
    assert json.loads(CliRunner().invoke(app, ["crds", "--json"]).stdout)["items"] == crds()


def test_definitions_are_small_enough_to_apply_without_server_side_apply() -> None:
    """kubectl apply keeps a copy in an annotation, and annotations end at 256 KiB."""
    assert all(len(yaml.safe_dump(one)) < 200_000 for one in crds())


ENV = {
    "a name": ("A", True),
    "a name with an equals sign": ("A=B", False),
    "an empty name": ("", False),
    "a name with NUL": ("A\0", False),
}


@pytest.mark.parametrize(("name", "good"), ENV.values(), ids=ENV)
def test_names_of_variables(name: Any, good: bool) -> None:
    assert bool(re.search(kinds.ENV_NAME_PATTERN, name)) is good
