"""Decodes and encodes manifests: dict to dataclass and back; what is wrong with a field is said here. (pure)

Every error is BadManifest; its `field` is the path in the manifest, its text begins with it and says what to do.
Unknown fields are refused: a misspelt field that is silently ignored costs a cluster's night.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from sandgate.contract.errors import BadManifest
from sandgate.contract.rules import Bounds, Cel, Check, Name, OneOf, Pattern, Size, Unique

T = TypeVar("T")

DEPTH_MAX = 64
"""Of embedded JSON; deeper is an attack or a mistake."""
INT64_MAX = 2**63 - 1
"""What JSON integers of the API server are."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One field of a manifest class."""

    python: str
    manifest: str
    hint: Any
    """The field's type without None; Annotated metadata are in `rules`."""
    optional: bool
    required: bool
    rules: tuple[Any, ...]


def camel(name: str) -> str:
    """snake_case -> camelCase."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


_SLOTS: dict[type[Any], tuple[Slot, ...]] = {}


def slots(cls: type[Any]) -> tuple[Slot, ...]:
    """The fields of a manifest dataclass, in order."""
    if cls not in _SLOTS:
        hints = get_type_hints(cls, include_extras=True)
        _SLOTS[cls] = tuple(_slot(member, hints[member.name]) for member in fields(cls))
    return _SLOTS[cls]


def _slot(member: Field[Any], hint: Any) -> Slot:
    hint, rules = unwrap(hint)
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        assert len(inner) == 1, f"{member.name}: one type or None"
        optional = True
        hint, more = unwrap(inner[0])
        rules = more + rules
    named = next((rule.text for rule in rules if isinstance(rule, Name)), camel(member.name))
    required = member.default is MISSING and member.default_factory is MISSING
    return Slot(member.name, named, hint, optional, required, rules)


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """(plain type, rules) of a possibly annotated type."""
    if get_origin(hint) is Annotated:
        inner, *rules = get_args(hint)
        plain, more = unwrap(inner)
        return plain, (*more, *rules)
    return hint, ()


# -- decode -----------------------------------------------------------------------------------------------------------


def decode(
    cls: type[T], value: Any, path: str = "", *, ignore_unknown: bool = False, stored: bool = False
) -> T:
    """`value` as `cls`. Raises BadManifest. With `ignore_unknown` (this object only) further fields are let be.
    `stored`: the API server has it already, so that rules of new objects do not count."""
    if not isinstance(value, Mapping):
        raise bad(path, f"must be an object, not {says(value)}")
    by_name = {slot.manifest: slot for slot in slots(cls)}
    if not ignore_unknown:
        refuse_unknown(value, by_name, path)
    values: dict[str, Any] = {}
    for slot in by_name.values():
        field_path = below(path, slot.manifest)
        given = value.get(slot.manifest)
        if given is None:
            # An explicit null is an absent field, as for the API server; only Json keeps null apart from nothing.
            if slot.required:
                raise bad(field_path, "is missing")
            continue
        values[slot.python] = _value(slot.hint, given, field_path, slot.rules)
    made = cls(**values)
    for rule in getattr(cls, "RULES", ()):
        if not (stored and isinstance(rule, Cel) and rule.when_made):
            _hold(rule, cls, made, path)
    return made


def refuse_unknown(value: Mapping[Any, Any], known: Mapping[str, Slot], path: str) -> None:
    """Raises BadManifest naming the first field that is not known, with the nearest one that is."""
    for name in value:
        if name in known:
            continue
        if not isinstance(name, str):
            raise bad(below(path, str(name)), "is not a field: names are text")
        near = difflib.get_close_matches(name.lower(), [other.lower() for other in known], n=1, cutoff=0.6)
        hint = next(
            (f"; did you mean {other}?" for other in known if near and other.lower() == near[0]),
            "",
        )
        listed = hint or (f"; there is {', '.join(known)}" if known else "; nothing belongs here")
        raise bad(below(path, name), f"is not a known field{listed}")


def _hold(rule: Any, cls: type, made: Any, path: str) -> None:
    if isinstance(rule, OneOf):
        names = {slot.python: slot.manifest for slot in slots(cls)}
        given = [names[member] for member in rule.fields if getattr(made, member) is not None]
        listed = ", ".join(names[member] for member in rule.fields)
        if not given:
            raise bad(path, f"needs exactly one of {listed}")
        if len(given) > 1:
            raise bad(below(path, given[1]), f"cannot stand beside {given[0]}: exactly one of {listed}")
    elif isinstance(rule, Cel) and rule.holds is not None and not rule.holds(made):
        raise bad(below(path, rule.field) if rule.field else path, rule.message)


def _value(hint: Any, value: Any, path: str, rules: tuple[Any, ...] = ()) -> Any:
    hint, more = unwrap(hint)
    made = _plain(hint, value, path)
    for rule in (*more, *rules):
        if isinstance(rule, Bounds | Size | Pattern):
            if (wrong := rule.wrong(made)) is not None:
                raise bad(path, wrong)
        elif isinstance(rule, Check | Unique) and (misfit := rule.find(made)) is not None:
            raise bad(below(path, misfit[0]), misfit[1])
    return made


def _plain(hint: Any, value: Any, path: str) -> Any:
    if hint is Any:
        return json_value(value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        # Kubernetes adds managedFields, creationTimestamp and more to metadata.
        return decode(hint, value, path, ignore_unknown=hint.__name__ == "Metadata")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint, value, path)
    if hint in _SCALARS:
        return _scalar(hint, value, path)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise bad(path, f"must be a list, not {says(value)}")
        inner = get_args(hint)[0]
        return tuple(_value(inner, one, f"{path}[{index}]") for index, one in enumerate(value))
    assert get_origin(hint) is dict, hint
    if not isinstance(value, Mapping):
        raise bad(path, f"must be an object, not {says(value)}")
    inner = get_args(hint)[1]
    return {_key(name, path): _value(inner, one, below(path, str(name))) for name, one in value.items()}


_SCALARS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _scalar(hint: Any, value: Any, path: str) -> Any:
    given = type(value)
    if hint is float and given is int:
        given, value = float, _float(value, path)
    if hint is int and given is float and value.is_integer() and abs(value) <= 2**53:
        given, value = int, int(value)  # 4.0 is how some JSON writers say 4
    if given is not hint:
        wanted = _SCALARS[hint]
        quote = "; quote it" if hint is str and given in (int, float, bool) else ""
        raise bad(path, f"must be {wanted}, not {says(value)}{quote}")
    if hint is float and not math.isfinite(value):
        raise bad(path, f"must be a finite number, not {value}")
    if hint is int and abs(value) > INT64_MAX:
        raise bad(path, f"is out of range: {says(value)}")
    if hint is str:
        _text(value, path)
    return value


def _float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise bad(path, "is out of range") from None


def _text(value: str, path: str) -> None:
    if "\0" in value:
        raise bad(path, "must not hold a NUL character")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise bad(path, "is not valid Unicode: half of a surrogate pair")


def _choice(hint: type[Enum], value: Any, path: str) -> Enum:
    for member in hint:
        if member.value == value and isinstance(value, str):
            return member
    listed = ", ".join(str(member.value) for member in hint)
    near = difflib.get_close_matches(str(value).lower(), [str(one.value).lower() for one in hint], n=1)
    meant = next(
        (f"; did you mean {one.value}?" for one in hint if near and str(one.value).lower() == near[0]), ""
    )
    one_of = "one of " if len(hint) > 1 else ""
    raise bad(path, f"must be {one_of}{listed}, not {says(value)}{meant}")


def _key(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise bad(below(path, str(name)), "is not a text key; quote it")
    _text(name, below(path, name))
    return name


def json_value(value: Any, path: str, depth: int = 0) -> Any:
    """A copy of `value`, if it is JSON. Raises BadManifest (YAML also knows dates, sets and keys that are numbers)."""
    if depth > DEPTH_MAX:
        raise bad(path, f"is nested deeper than {DEPTH_MAX}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _text(value, path)
        return value
    if isinstance(value, int):
        if abs(value) > INT64_MAX:
            raise bad(path, "is out of range for JSON")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise bad(path, f"must be a finite number, not {value}")
        return value
    if isinstance(value, list | tuple):
        return [json_value(one, f"{path}[{index}]", depth + 1) for index, one in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _key(name, path): json_value(one, below(path, str(name)), depth + 1)
            for name, one in value.items()
        }
    raise bad(path, f"must be JSON, not {says(value)}; quote it")


# -- encode -----------------------------------------------------------------------------------------------------------


def encode(made: Any) -> dict[str, Any]:
    """The manifest of a manifest dataclass: camelCase, without absent fields. `decode` gives the same object back."""
    return dict(_encoded(made))


def _encoded(made: Any) -> Iterator[tuple[str, Any]]:
    for slot in slots(type(made)):
        value = getattr(made, slot.python)
        if value is not None:
            yield slot.manifest, _out(value)


def _out(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return encode(value)
    if isinstance(value, tuple):
        return [_out(one) for one in value]
    if isinstance(value, dict):
        return {name: _out(one) for name, one in value.items()}
    return value


# -- words ------------------------------------------------------------------------------------------------------------


def below(path: str, name: str) -> str:
    """The path of a field of `path`."""
    return name if not path else path if not name else f"{path}{name}" if name[0] == "[" else f"{path}.{name}"


def bad(path: str, text: str) -> BadManifest:
    """BadManifest that names the field first."""
    return BadManifest(f"{path or 'manifest'}: {text}", field=path or "manifest")


KEY_SAID_CHARS = 100
"""Of a key that somebody else wrote, in an error."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The `object_pairs_hook` of a JSON object in which each key stands once; without it the last one wins, silently.
    Raises BadManifest, which names the key."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                said = name[:KEY_SAID_CHARS].encode("utf-8", "backslashreplace").decode()
                raise bad(said or '""', "stands there twice")
            seen.add(name)
    return made


def says(value: Any) -> str:
    """A wrong value, briefly."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return "a number of that size"  # its decimal digits may be thousands, or refused by Python
    text = repr(value) if isinstance(value, str | int | float) else f"{value!s} ({type(value).__name__})"
    return text if len(text) <= 60 else text[:57] + "..."
