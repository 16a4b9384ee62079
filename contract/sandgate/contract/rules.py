"""Rules of manifest fields, as metadata on their types: checked by contract.schema, printed into the CRDs. (pure)

Field rules stand in `Annotated[type, ...]`; rules about several fields stand in the class's `RULES`, printer columns
in its `COLUMNS`. One statement serves three readers: the decoder, the OpenAPI schema and `kubectl explain`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Wrong: TypeAlias = tuple[str, str] | None
"""(path below the field, what is wrong), or None."""


@dataclass(frozen=True, slots=True)
class Doc:
    """Description for `kubectl explain` and the reference."""

    text: str


@dataclass(frozen=True, slots=True)
class OpenEnum:
    """Values of this enumeration are documented, but others may come later: the schema leaves them open."""

    enum: type[StrEnum]
    explained: bool = True
    """`kubectl explain` lists them; the reference always does."""


@dataclass(frozen=True, slots=True)
class Name:
    """The field's name in manifests, where it is not the camelCase of its Python name."""

    text: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds of a number."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    """Exclusive lower bound."""

    def wrong(self, value: float) -> str | None:
        if self.low is not None and value < self.low:
            return f"{value} is below {self.low:g}"
        if self.above is not None and value <= self.above:
            return f"{value} is not above {self.above:g}"
        if self.high is not None and value > self.high:
            return f"{value} is above {self.high:g}"
        return None


@dataclass(frozen=True, slots=True)
class Size:
    """Inclusive bounds of a length: characters, items or keys."""

    low: int = 0
    high: int | None = None

    def wrong(self, value: str | tuple[Any, ...] | list[Any] | dict[str, Any]) -> str | None:
        unit = "characters" if isinstance(value, str) else "entries"
        if len(value) < self.low:
            return (
                "must not be empty"
                if self.low == 1
                else f"has {len(value)} {unit}; at least {self.low} are needed"
            )
        if self.high is not None and len(value) > self.high:
            return f"has {len(value)} {unit}; at most {self.high} are allowed"
        return None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A whole-string regular expression (RE2 and Python alike), and how to say it to a person."""

    regex: str
    says: str

    def wrong(self, value: str) -> str | None:
        # fullmatch: Python's $ also matches before a final newline, RE2's does not.
        return (
            None
            if re.fullmatch(self.regex.removeprefix("^").removesuffix("$"), value)
            else f"{_short(value)} is not {self.says}{self._meant(value)}"
        )

    def _meant(self, value: str) -> str:
        """Where only one word is right, and nearly said."""
        near = re.fullmatch(self.regex, self.says) and difflib.get_close_matches(
            value.lower(), [self.says.lower()], n=1
        )
        return f"; did you mean {self.says}?" if near else ""


@dataclass(frozen=True, slots=True)
class Check:
    """For values that pass through as JSON: what is wrong, and the schema that says the same to the API server."""

    find: Callable[[Any], Wrong]
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unique:
    """No two objects of a list have the same value of this field (same name in Python and manifest): a list-map."""

    key: str

    def find(self, value: Sequence[Any]) -> Wrong:
        seen = set()
        for index, item in enumerate(value):
            name = getattr(item, self.key)
            if name in seen:
                return f"[{index}].{self.key}", f"{_short(str(name))} is there twice"
            seen.add(name)
        return None


@dataclass(frozen=True, slots=True)
class Mutable:
    """May change while the object lives; a field of a spec without this may not, nor may anything in it, unless
    something in it is marked."""


@dataclass(frozen=True, slots=True)
class WhileSuspended:
    """May change while its job is suspended: what is made of it then is made anew when the job goes on."""


@dataclass(frozen=True, slots=True)
class Grows:
    """A number that may change, but never become less. `because` ends the message."""

    because: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """Exactly one of these fields (Python names) is set."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule over a whole object. `holds` is the same rule in Python; None where it compares with the old object,
    which only the API server can. `field` (manifest path below the object) is what the error names."""

    rule: str
    message: str
    field: str = ""
    holds: Callable[[Any], bool] | None = None
    when_made: bool = False
    """Of new objects only: what is there and breaks it can still be changed, finished and deleted."""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`. `priority` 1 shows with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


def rule_schema(rule: Cel) -> dict[str, Any]:
    """As an entry of x-kubernetes-validations. The API server's field paths know no list indices: they end before."""
    made: dict[str, Any] = {"rule": rule.rule, "message": rule.message}
    path = rule.field.split("[")[0]
    if rule.when_made:
        made |= {"rule": f"oldSelf.hasValue() || {rule.rule}", "optionalOldSelf": True}
    if path.startswith("metadata."):  # has no schema of ours, so no path can lead there
        return made | {"message": f"{path} {rule.message}"}
    return made | ({"fieldPath": f".{path}"} if path else {})


def name_rules(high: int, *, when_made: bool = False) -> tuple[Cel, ...]:
    """Of metadata.name, which has no schema of ours: names are parts of host names and label values. `when_made`:
    longer ones that are there stay."""
    return (
        Cel(
            f"size(self.metadata.name) <= {high}",
            f"has more than {high} characters",
            "metadata.name",
            (lambda one: len(one.metadata.name) <= high) if when_made else None,
            when_made,
        ),
        Cel(
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name is not a DNS label (lower case letters, digits and dashes)",
        ),
    )


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
