"""docs/reference/rolloutjob.md and agentsession.md, from the definitions that the API server gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandgate.contract.conditions import JobCondition, JobReason, SessionCondition, SessionReason
from sandgate.contract.crd import CATEGORY, crds
from sandgate.contract.documented import member_docs, summary
from sandgate.contract.transitions import LET_GO, REFUSED, SUSPENDED
from scripts.generators.reasons import section

Json = dict[str, Any]

HEAD = "<!-- Generated from contract/sandgate/contract by `make fix`. Do not edit. -->\n"
ENUMS: dict[str, tuple[type[StrEnum], ...]] = {
    "RolloutJob": (JobCondition, JobReason),
    "AgentSession": (SessionCondition, SessionReason),
}
TRANSITIONS = {"==": "no", ">=": "only up"}
STANDING = "while suspended"
WHOLE_FIELDS = ("no", STANDING)
"""Answers that hold for everything in a field."""
REFUSED_TOO = f"""\
What may not change may while the job is `Failed` of `{REFUSED}`: it never began, and is
[corrected in place](../cluster.md#a-job-that-was-refused).
"""
WHOLE = """\
A field that is not listed is refused by `kubectl` (strict validation), by `sandgate run` and by the Python client; a
client that asks for no validation has it dropped. Quote the keys and texts `y`, `n`, `yes`, `no`, `on` and `off`:
kubectl reads them as true and false.
"""


def generate() -> dict[str, str]:
    return {f"docs/reference/{one['spec']['names']['singular']}.md": page(one) for one in crds()}


@dataclass(frozen=True)
class Spot:
    """One place in a schema."""

    path: str
    schema: Json
    change: str
    """May it change: yes, no, only up, in part; empty in a status."""
    held: Mapping[str, str]
    """Path -> no or only up, of the fields that a rule holds."""


def page(crd: Json) -> str:
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    spec, status = root["properties"]["spec"], root["properties"]["status"]
    held = held_by(root)
    spots = Spot("spec", spec, changes("spec", "yes", held), held), Spot("status", status, "", held)
    tables = [table for spot in spots for table in tables_of(spot)]
    parts = [HEAD + f"# {names['kind']}\n", f"{root['description']}\n", ways(crd), WHOLE]
    parts += [*([REFUSED_TOO] if any(LET_GO in rule for rule in rules_at(root)) else []), *tables]
    parts += [enum_table(enum) for enum in ENUMS[names["kind"]]]
    return "\n".join([*parts, columns(version), rules(root)])


def ways(crd: Json) -> str:
    """How kubectl reaches it."""
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    fields = ", ".join(f"`{one['jsonPath'][1:]}`" for one in version["selectableFields"])
    lines = [
        f"* `apiVersion: {crd['spec']['group']}/{version['name']}`, `kind: {names['kind']}`, namespaced.",
        f"* `kubectl get {names['shortNames'][0]}`; `kubectl get {CATEGORY}` lists both kinds.",
        f"* `kubectl get {names['shortNames'][0]} --field-selector` knows {fields}.",
    ]
    if "scale" in version["subresources"]:
        path = version["subresources"]["scale"]["specReplicasPath"][1:]
        lines.append(f"* `kubectl scale {names['shortNames'][0]}/NAME --replicas=N` sets `{path}`.")
    return "\n".join(lines) + "\n"


def tables_of(spot: Spot) -> Iterator[str]:
    """The table of an object, then those of the objects in it."""
    inner = list(below(spot))
    rows = [
        (
            f"`{one.path.rsplit('.', 1)[-1]}`" + (" *" if name in spot.schema.get("required", ()) else ""),
            type_of(one),
            default_of(one.schema),
            meaning(one.schema),
        )
        + ((one.change,) if spot.change else ())
        for name, one in inner
    ]
    if rows:
        head = ("field", "type", "default", "meaning") + (("may change",) if spot.change else ())
        intro = "Fields with * are required." if spot.path in ("spec", "status") else ""
        yield section(spot.path, "\n\n".join(filter(None, [summary_of(spot), intro])), head, rows)
    for _, one in inner:
        yield from tables_of(descend(one))


def below(spot: Spot) -> Iterator[tuple[str, Spot]]:
    for name, schema in spot.schema.get("properties", {}).items():
        path = f"{spot.path}.{name}"
        yield name, Spot(path, schema, spot.change and changes(path, spot.change, spot.held), spot.held)


def descend(spot: Spot) -> Spot:
    """The object that a list holds, or the spot itself."""
    items = spot.schema.get("items")
    return Spot(f"{spot.path}[]", items, spot.change, spot.held) if items else spot


def meaning(schema: Json) -> str:
    """Its description; the default has a column of its own."""
    lines = schema.get("description", "").split("\n")
    return "<br>".join(line for line in lines if not line.startswith("Default: "))


def summary_of(spot: Spot) -> str:
    return str(spot.schema.get("description", "")).split("\n", maxsplit=1)[0]


def held_by(root: Json) -> dict[str, str]:
    """Of the rules at the root that compare a field with what it was, and of a spec's own that does so as a whole."""
    paths = {
        one["fieldPath"].removeprefix("."): one["rule"]
        for one in root["x-kubernetes-validations"]
        if "fieldPath" in one
    }
    found = {
        path: STANDING if SUSPENDED in rule else answer
        for path, rule in paths.items()
        for sign, answer in TRANSITIONS.items()
        if rule.endswith(f" {sign} oldSelf.{path}")
    }
    return found | ({"spec": "no"} if "self == oldSelf" in rules_at(root["properties"]["spec"]) else {})


def changes(path: str, above: str, held: Mapping[str, str]) -> str:
    """May this field change, given the answer for the object it is in."""
    if above in WHOLE_FIELDS or path in held:
        return above if above in WHOLE_FIELDS else held[path]
    return "in part" if any(one.startswith(f"{path}.") for one in held) else "yes"


def rules_at(schema: Json) -> list[str]:
    return [one["rule"] for one in schema.get("x-kubernetes-validations", ())]


def every(spot: Spot) -> Iterator[Spot]:
    """All spots from here downwards."""
    yield spot
    for _, one in below(spot):
        yield from every(one)
    if "items" in spot.schema:
        yield from every(descend(spot))


def type_of(spot: Spot) -> str:
    schema = spot.schema
    if "enum" in schema:
        return "enum"
    kind: str = schema.get(
        "type", "integer or string" if "x-kubernetes-int-or-string" in schema else "any JSON"
    )
    if kind == "array":
        return f"list of {type_of(descend(spot))}" + span(schema, "Items")
    if kind == "object":
        if "additionalProperties" in schema:
            return (
                "map of "
                + type_of(Spot("", schema["additionalProperties"], "", {}))
                + span(schema, "Properties")
            )
        if "properties" in schema:
            anchor = "".join(char for char in spot.path.lower() if char.isalnum())  # as GitHub makes them
            return f"[object](#{anchor})"
        return "open object"
    if kind in ("integer", "number"):
        low = (
            ""
            if "minimum" not in schema
            else f"{'> ' if 'exclusiveMinimum' in schema else ''}{schema['minimum']:g}"
        )
        high = f"{schema['maximum']:,}" if "maximum" in schema else ""
        return kind + (f", {low}..{high}" if low or high else "")
    return kind + span(schema, "Length")


def span(schema: Json, unit: str) -> str:
    low, high = schema.get(f"min{unit}", 0), schema.get(f"max{unit}")
    return "" if high is None else f", {low}..{high:,}"


def default_of(schema: Json) -> str:
    if "default" not in schema:
        return ""
    return "empty" if schema["default"] in ("", []) else f"`{json.dumps(schema['default'])}`".replace('"', "")


def enum_table(enum: type[StrEnum]) -> str:
    rows = [(f"`{one}`", member_docs(enum)[one.name]) for one in enum]
    return section(enum.__name__, summary(enum), ("value", "meaning"), rows)


def columns(version: Json) -> str:
    rows = [
        (one["name"], f"`{one['jsonPath']}`", "-o wide" if one.get("priority") else "always")
        for one in version["additionalPrinterColumns"]
    ]
    return section("Columns of kubectl get", "What `kubectl get` shows.", ("column", "path", "shown"), rows)


def shorter(rule: str) -> str:
    """With a word for what many rules begin with."""
    return rule.replace(LET_GO, "refused").replace(SUSPENDED, "suspended")


def rules(root: Json) -> str:
    found = [
        (one.path[1:] or "(root)", rule["rule"], rule["message"])
        for one in every(Spot("", root, "", {}))
        for rule in one.schema.get("x-kubernetes-validations", ())
    ]
    rows = [(f"`{path}`", f"`{shorter(rule)}`", message) for path, rule, message in found]
    intro = (
        "Each has an accept and a reject test against a real API server (tests/cluster/test_crds_rules.py)."
    )
    if any(LET_GO in rule for _, rule, _ in found):
        intro += f" `refused` stands for `{LET_GO}`, `suspended` for `{SUSPENDED}`."
    return section("Rules", intro, ("of", "CEL", "message"), rows)
