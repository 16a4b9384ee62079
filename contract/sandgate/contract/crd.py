"""The CustomResourceDefinitions of RolloutJob and AgentSession. (pure)

One version, v1alpha1, served and stored. A field that is added later is optional with a default, so that stored objects
stay valid; a change that is none of that is a new version beside this one, with a conversion.
"""

from __future__ import annotations

from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.documented import summary
from sandgate.contract.job import RolloutJob
from sandgate.contract.names import GROUP, VERSION
from sandgate.contract.openapi import Json, SchemaPlace, immutable, may_change, object_schema
from sandgate.contract.rules import PrinterColumn, rule_schema
from sandgate.contract.schema import slots

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
    the name must be by rule."""
    blocks = {slot.manifest: slot.hint for slot in slots(kind)}
    text = {"type": "string"}
    return {
        "type": "object",
        "description": summary(kind),
        "required": ["spec"],
        "properties": {
            "apiVersion": text | {"description": f"{GROUP}/{VERSION}."},
            "kind": text | {"description": f"{kind.KIND}."},
            "metadata": {"type": "object"},
            "spec": spec_schema(blocks["spec"]),
            "status": object_schema(blocks["status"], SchemaPlace("status", filled=False)),
        },
        "x-kubernetes-validations": [rule_schema(rule) for rule in kind.RULES],
    }


def spec_schema(cls: type[Any]) -> Json:
    """Of a spec: what may not change is held by the fields' own rules, or by one rule if nothing in it may."""
    if any(may_change(slot) for slot in slots(cls)):
        return object_schema(cls, SchemaPlace("spec", fixed=True))
    return object_schema(cls) | {"x-kubernetes-validations": [immutable("spec")]}


def printer_column(one: PrinterColumn) -> Json:
    made: Json = {"name": one.name, "type": one.type, "jsonPath": one.path}
    if one.description:
        made["description"] = one.description
    return made | ({"priority": one.priority} if one.priority else {})
