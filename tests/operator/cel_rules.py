"""The definitions' own CEL rules, run as the API server runs them, by cel-python: what FakeKube refuses.

The API server's field types, defaults and equality are added here: cel-python knows no schema, and refuses to compare
values of different types, which CEL's `==` calls unequal. What the schema itself refuses is not checked.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError, CELFunction

from sandgate.contract.crd import crds
from sandgate.contract.errors import InvalidBody

Json = Any
RULES = "x-kubernetes-validations"


@dataclass(frozen=True)
class Wrong:
    """One cause of a refusal."""

    path: str
    message: str
    reason: str

    def __str__(self) -> str:
        """As the API server words it; of a value it says the type alone."""
        if self.reason == "FieldValueForbidden":
            return f"{self.path}: Forbidden: {self.message}"
        return f'{self.path or "<nil>"}: Invalid value: "object": {self.message}'


@dataclass(frozen=True)
class Node:
    """One value of an object with its schema, and what it was before; `old` is None where nothing can be compared."""

    schema: Json
    path: str
    new: Json
    old: Json = None

    def below(self) -> Iterator[Node]:
        """Fields, values and items. Items of atomic lists have nothing that they were before."""
        old = self.old if isinstance(self.old, type(self.new)) else None
        if isinstance(self.new, dict):
            fields, rest = self.schema.get("properties", {}), self.schema.get("additionalProperties")
            for name, value in self.new.items():
                schema = fields.get(name, rest)
                if isinstance(schema, dict):
                    path = f"{self.path}.{name}" if self.path else name
                    yield Node(schema, path, value, (old or {}).get(name))
        elif isinstance(self.new, list) and "items" in self.schema:
            keys = self.schema.get("x-kubernetes-list-map-keys")
            for index, value in enumerate(self.new):
                was = next((one for one in old or () if keys and _same(one, value, keys)), None)
                yield Node(self.schema["items"], f"{self.path}[{index}]", value, was)


def _same(one: Json, other: Json, keys: list[str]) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)


@cache
def definitions() -> dict[str, Json]:
    """Kind -> schema of the whole object. Their rules are compiled here: later it would hold the event loop.

    Raises CELParseError for one that cannot be evaluated: none is left out."""
    found = {
        one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for one in crds()
    }
    for root in found.values():
        for rule in rules_in(root):
            program(rule)
    return found


def rules_in(schema: Json) -> Iterator[str]:
    """Of it and all below."""
    yield from (one["rule"] for one in schema.get(RULES, ()))
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for one in inner:
        if isinstance(one, dict):
            yield from rules_in(one)


def check(new: Json, old: Json = None) -> None:
    """Raises InvalidBody (422) where the API server refuses to make `new`, or to make `new` of `old`."""
    root = definitions().get(new["kind"])
    if root is None:
        return
    wrong = list(refusals(Node(root, "", filled(root, new), None if old is None else filled(root, old))))
    if wrong:
        said = str(wrong[0]) if len(wrong) == 1 else f"[{', '.join(map(str, wrong))}]"
        text = f'422: {new["kind"]}.sandgate.dev "{new["metadata"]["name"]}" is invalid: {said}'
        raise InvalidBody(text, field=wrong[0].path or None)


def filled(schema: Json, value: Json) -> Json:
    """A copy with the defaults that the API server writes into what it takes."""
    if isinstance(value, dict):
        made = dict(value)
        for name, inner in schema.get("properties", {}).items():
            if name not in made and "default" in inner:
                made[name] = copy.deepcopy(inner["default"])
            if name in made:
                made[name] = filled(inner, made[name])
        if isinstance(rest := schema.get("additionalProperties"), dict):
            made = {name: filled(rest, one) for name, one in made.items()}
        return made
    if isinstance(value, list):
        return [filled(schema.get("items", {}), one) for one in value]
    return value


def refusals(node: Node) -> Iterator[Wrong]:
    """Of a value and all in it. What is as it was is not looked at again: it was refused, or it holds."""
    unchanged = {
        name
        for name in node.schema.get("properties", {})
        if isinstance(node.old, dict)
        and isinstance(node.new, dict)
        and node.new.get(name) == node.old.get(name)
    }
    due = [
        rule
        for rule in node.schema.get(RULES, ())
        if not compares(rule) or (node.old is not None and top_of(rule) not in unchanged)
    ]
    known = values(node) if due else {}
    for rule in due:
        if not holds(rule["rule"], known | before(node, rule)):
            at = (node.path + rule.get("fieldPath", "")).removeprefix(".")
            yield Wrong(at, rule["message"], rule.get("reason", "FieldValueInvalid"))
    for one in node.below():
        if one.old is None or one.new != one.old:
            yield from refusals(one)


def compares(rule: Json) -> bool:
    """Is it a transition rule? They are for what is there before and after."""
    return "oldSelf" in rule["rule"] and not rule.get("optionalOldSelf")


def top_of(rule: Json) -> str:
    """Of what it names, the field of the node itself; our transition rules are about nothing else."""
    return str(rule.get("fieldPath", "")).removeprefix(".").partition(".")[0]


def values(node: Node) -> Json:
    """The variables of its rules."""
    known = {"self": typed(node.schema, node.new)}
    return known if node.old is None else known | {"oldSelf": typed(node.schema, node.old)}


def before(node: Node, rule: Json) -> Json:
    """`oldSelf` of a rule that is also asked of what is new; such rules of ours only ask whether it has a value."""
    return {"oldSelf": celtypes.BoolType(node.old is not None)} if rule.get("optionalOldSelf") else {}


def holds(rule: str, known: Json) -> bool:
    """What cannot be evaluated does not hold, as at the API server."""
    try:
        return bool(program(rule).evaluate(known))
    except CELEvalError:
        return False


@cache
def program(rule: str) -> celpy.Runner:
    """Raises CELParseError for what is no CEL."""
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions=FUNCTIONS)


def typed(schema: Json, value: Json) -> Any:
    """As the API server hands it to CEL: 1 of a number is a double."""
    if isinstance(value, dict):
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        rest = rest if isinstance(rest, dict) else {}
        return celtypes.MapType(
            {celtypes.StringType(name): typed(fields.get(name, rest), one) for name, one in value.items()}
        )
    if isinstance(value, list):
        return celtypes.ListType([typed(schema.get("items", {}), one) for one in value])
    if schema.get("type") == "number" and not isinstance(value, bool):
        return celtypes.DoubleType(value)
    return json_to_cel(value)


def equal(one: Any, other: Any) -> celtypes.BoolType:
    """CEL's: values of different types are unequal; numbers are of one type."""
    return celtypes.BoolType(_equal(one, other))


def _equal(one: Any, other: Any) -> bool:
    numbers = celtypes.IntType, celtypes.UintType, celtypes.DoubleType
    if isinstance(one, celtypes.MapType) and isinstance(other, celtypes.MapType):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, celtypes.ListType) and isinstance(other, celtypes.ListType):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, numbers) and isinstance(other, numbers):
        return float(one) == float(other)
    return type(one) is type(other) and bool(one == other)


FUNCTIONS: dict[str, CELFunction] = {
    "_==_": equal,
    "hasValue": lambda optional: optional,
    "_!=_": lambda one, other: celtypes.BoolType(not _equal(one, other)),
}
