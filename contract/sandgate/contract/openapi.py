"""The structural OpenAPI schema of a manifest class, from the types and rules of its fields. (pure)

What `contract.schema.decode` accepts this accepts, and the API server fills in the defaults that decode does; the
other way round but for what no structural schema can say (tests/cluster/test_crds_agree.py lists it).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, get_args, get_origin

from sandgate.contract.documented import listed, summary
from sandgate.contract.kinds import INT32_MAX, NO_NUL
from sandgate.contract.manifest_decoder import Slot, slots, unwrap
from sandgate.contract.rules import (
    Bounds,
    Cel,
    Check,
    Doc,
    OneOf,
    OpenEnum,
    Pattern,
    Size,
    Unique,
    rule_schema,
)

Json = dict[str, Any]


def object_schema(cls: type[Any], *, filled: bool = True) -> Json:
    """Schema of a manifest class. `filled`: the API server fills in defaults; of a status it does not."""
    field_slots = slots(cls)
    required = [slot.manifest for slot in field_slots if slot.required]
    made: Json = {"type": "object", "description": summary(cls)}
    if required:
        made["required"] = required
    if (
        field_slots
    ):  # an empty map is not stored: whoever applied it again would be in conflict with who applied it first
        made["properties"] = {
            slot.manifest: property_schema(cls, slot, filled=filled) for slot in field_slots
        }
    rules = [rule_schema(cel_of(cls, rule)) for rule in getattr(cls, "RULES", ())]
    return made | ({"x-kubernetes-validations": rules} if rules else {})


def cel_of(cls: type[Any], rule: OneOf | Cel) -> Cel:
    """The rule as the API server is told it."""
    if isinstance(rule, Cel):
        return rule
    names = [slot.manifest for slot in slots(cls) if slot.python in rule.fields]
    has = ", ".join(f"has(self.{name})" for name in names)
    return Cel(f"[{has}].filter(is, is).size() == 1", f"exactly one of {', '.join(names)} is needed")


def property_schema(cls: type[Any], slot: Slot, *, filled: bool) -> Json:
    """Schema of one field, with its description and default."""
    made = value_schema(slot.hint, slot.rules, filled=filled)
    parts = [describe(cls, slot, made.get("description", ""))]
    if filled and not slot.required and not slot.optional:
        made["default"] = _sparse(_default(next(one for one in fields(cls) if one.name == slot.python)))
        if isinstance(made["default"], str | int | float) and made["default"] != "":
            parts.append(f"Default: {json.dumps(made['default']).strip(chr(34))}.")
        if isinstance(made["default"], float) and made["default"].is_integer():
            made["default"] = int(made["default"])  # as it is stored
        if made["default"] is None:
            del made["default"]  # the same as none
    made["description"] = "\n".join(parts)
    return made


def describe(cls: type[Any], slot: Slot, inner: str) -> str:
    """What `kubectl explain` says of a field: its Doc, else what its type says of itself; the values of an enum; that
    it excludes its siblings."""
    text = next((rule.text for rule in reversed(slot.rules) if isinstance(rule, Doc)), inner)
    parts = [text]
    if isinstance(slot.hint, type) and issubclass(slot.hint, StrEnum):
        parts.append(listed(slot.hint))
    parts += [listed(rule.enum) for rule in slot.rules if isinstance(rule, OpenEnum) and rule.explained]
    for rule in getattr(cls, "RULES", ()):
        if isinstance(rule, OneOf) and slot.python in rule.fields:
            others = [one.manifest for one in slots(cls) if one.python in rule.fields and one is not slot]
            parts.append(f"Not beside {' or '.join(others)}.")
    return "\n".join(parts)


def value_schema(hint: Any, rules: tuple[Any, ...], *, filled: bool) -> Json:
    """Schema of a type with rules, without a description but that of an object's class."""
    hint, more = unwrap(hint)
    made = _plain(hint, filled=filled)
    for rule in (*more, *rules):
        match rule:
            case Bounds():
                made |= _bounds(rule, whole=hint is int)
            case Size():
                _narrow(made, hint, rule)
            case Pattern():
                made["pattern"] = rule.regex
            case Check():
                made |= rule.schema
            case Unique(key):
                made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return made


def _plain(hint: Any, *, filled: bool) -> Json:
    if hint is Any:
        return {"x-kubernetes-preserve-unknown-fields": True}
    if isinstance(hint, type) and is_dataclass(hint):
        return object_schema(hint, filled=filled)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"type": "string", "enum": [one.value for one in hint]}
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    inner = get_args(hint)[-1 if get_origin(hint) is dict else 0]
    if get_origin(hint) is tuple:
        return {
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "items": value_schema(inner, (), filled=filled),
        }
    if inner is Any:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "additionalProperties": value_schema(inner, (), filled=filled)}


_SCALARS: dict[Any, Json] = {
    str: {"type": "string", "pattern": NO_NUL},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number", "format": "double"},
    bool: {"type": "boolean"},
}


def _bounds(rule: Bounds, *, whole: bool) -> Json:
    made: Json = {}
    if rule.low is not None:
        made["minimum"] = rule.low
        if rule.low != int(rule.low):  # of a whole value the API server compares the bound's whole part alone
            made["x-kubernetes-validations"] = [
                {"rule": f"self >= {rule.low!r}", "message": f"is below {rule.low:g}"}
            ]
    if rule.above is not None:
        made |= {"minimum": rule.above, "exclusiveMinimum": True}
    if rule.high is not None:
        made["maximum"] = rule.high
        if whole and rule.high <= INT32_MAX:
            made["format"] = "int32"
    return made


def _narrow(made: Json, hint: Any, rule: Size) -> None:
    """Lengths of several rules: the narrower bound of each side."""
    unit = "Length" if hint is str else "Properties" if get_origin(hint) is dict else "Items"
    if rule.low:
        made[f"min{unit}"] = max(rule.low, made.get(f"min{unit}", 0))
    if rule.high is not None:
        made[f"max{unit}"] = min(rule.high, made.get(f"max{unit}", rule.high))


# -- defaults ---------------------------------------------------------------------------------------------------------


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _sparse(value: Any) -> Any:
    """As in a manifest, without what the API server fills in by the defaults of the fields within."""
    if is_dataclass(value):
        defaults = {one.name: _default(one) for one in fields(value) if not _needed(one)}
        return {
            slot.manifest: _sparse(given)
            for slot in slots(type(value))
            if (given := getattr(value, slot.python)) is not None
            and (slot.python not in defaults or defaults[slot.python] != given)
        }
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING
