"""The CustomResourceDefinitions of RolloutJob and AgentSession. (pure)

One version, v1alpha1, served and stored. A field that is added later is optional with a default, so that stored objects
stay valid; a change that is none of that is a new version beside this one, with a conversion.
"""

from __future__ import annotations

from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.documented import summary
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import slots
from sandgate.contract.names import GROUP, VERSION
from sandgate.contract.openapi import Json, object_schema
from sandgate.contract.rules import PrinterColumn, rule_schema
from sandgate.contract.transitions import immutable, may_change, transitions

KINDS: tuple[type[Any], ...] = (RolloutJob, AgentSession)
CATEGORY = "sandgate"
"""`kubectl get sandgate` lists both kinds."""


def crds() -> list[Json]:
    """apiextensions.k8s.io/v1 objects, RolloutJob first."""
    return [crd(kind) for kind in KINDS]


def crd(kind: type[Any]) -> Json:
    """The definition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.KIND,
                "listKind": f"{kind.KIND}List",
                "plural": kind.PLURAL,
                "singular": kind.KIND.lower(),
                "shortNames": list(kind.SHORT),
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [version(kind)],
        },
    }


def version(kind: type[Any]) -> Json:
    """The entry of v1alpha1."""
    scale = {"scale": dict(kind.SCALE)} if hasattr(kind, "SCALE") else {}
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root_schema(kind)},
        "subresources": {"status": {}} | scale,
        "additionalPrinterColumns": [printer_column(column) for column in kind.COLUMNS],
        "selectableFields": [{"jsonPath": path} for path in kind.SELECTABLE],
    }


def root_schema(kind: type[Any]) -> Json:
    """Of a whole object. Metadata has the API server's own schema; only the length of the name is said here, and what
    the name must be by rule. What of the spec may not change is held here too, where rules see the status."""
    blocks = {slot.manifest: slot.hint for slot in slots(kind)}
    text = {"type": "string"}
    held = transitions(blocks["spec"]) if changeable(blocks["spec"]) else ()
    return {
        "type": "object",
        "description": summary(kind),
        "required": ["spec"],
        "properties": {
            "apiVersion": text | {"description": f"{GROUP}/{VERSION}."},
            "kind": text | {"description": f"{kind.KIND}."},
            "metadata": {"type": "object"},
            "spec": spec_schema(blocks["spec"]),
            "status": object_schema(blocks["status"], filled=False),
        },
        "x-kubernetes-validations": [*map(rule_schema, kind.RULES), *held],
    }


def spec_schema(cls: type[Any]) -> Json:
    """Of a spec; one that nothing in may change has the rule that says so."""
    if changeable(cls):
        return object_schema(cls)
    return object_schema(cls) | {"x-kubernetes-validations": [immutable("spec")]}


def changeable(cls: type[Any]) -> bool:
    """May something in this spec change? What may not is held at the root, field by field."""
    return any(may_change(slot) for slot in slots(cls))


def printer_column(one: PrinterColumn) -> Json:
    made: Json = {"name": one.name, "type": one.type, "jsonPath": one.path}
    if one.description:
        made["description"] = one.description
    return made | ({"priority": one.priority} if one.priority else {})
