"""Types that a JSON schema lets a value have, as vLLM counts them for arguments that models write as text. (pure)"""

from __future__ import annotations

from typing import Any

STRING = frozenset({"string"})

CHOICES = ("anyOf", "oneOf", "allOf")

_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
    "bool": "boolean",
    "dict": "object",
}
"""Names that are no JSON Schema and stand in tools all the same; vLLM knows them, too."""

_REFS_MAX = 64
"""Limit of references that are followed for one value; a schema's writer may make more of them than anyone can read."""


def declared_types(schema: Any, root: Any) -> frozenset[str]:
    """The types, over choices, enumerations and references into `root`; empty if the schema says nothing.

    A choice that says nothing takes a text; a reference that leads nowhere says nothing."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [schema]
    while left:
        one = left.pop()
        own, more = _own(one), _choices(one)
        ref = one.get("$ref") if isinstance(one, dict) else None
        if isinstance(ref, str):
            if ref not in seen and len(seen) < _REFS_MAX and (target := _target(ref, root)) is not None:
                more.append(target)
            seen.add(ref)
        silent = not own and not more and not isinstance(ref, str) and one is not schema
        found |= STRING if silent else own
        left += more
    return frozenset(found)


def fits(value: Any, types: frozenset[str]) -> bool:
    """Whether a parsed JSON value is of one of the types."""
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return bool(types & {"integer", "number"})
        case float():
            return "number" in types
        case str():
            return "string" in types
        case list():
            return "array" in types
        case _:
            return "object" in types


def _own(schema: Any) -> set[str]:
    """What the schema's own `type` and `enum` say."""
    if not isinstance(schema, dict):
        return set()
    told, values = schema.get("type"), schema.get("enum")
    names = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    found = {_ALIASES.get(name.lower(), name) for name in names if isinstance(name, str)}
    return found | {_type_of(value) for value in (values if isinstance(values, list) else ())}


def _choices(schema: Any) -> list[Any]:
    lists = [schema.get(field) for field in CHOICES] if isinstance(schema, dict) else []
    return [choice for choices in lists if isinstance(choices, list) for choice in choices]


def _type_of(value: Any) -> str:
    names = ("null", "boolean", "integer", "number", "string", "array")
    return next((name for name in names if fits(value, frozenset({name}))), "object")


def _target(ref: str, root: Any) -> Any:
    """What a reference like `#/$defs/Item` means; None for any other."""
    head, *path = ref.split("/")
    if head != "#":
        return None
    for step in path:
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, dict) else None
    return root
