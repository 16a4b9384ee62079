"""The rules of a definition that hold a spec as it was made, and when they let go. (pure)

They stand at the root: only from there a rule sees the status. A job that was refused never began, so anything of its
spec may be corrected in place. That is safe because the operator says BadManifest only of a job that nothing was made
of, and takes it back, of just that spec, before it makes anything (operator/cluster/spec_acceptance.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from sandgate.contract.conditions import JobReason
from sandgate.contract.manifest_decoder import Slot, slots
from sandgate.contract.rules import Cel, Grows, Mutable, WhileSuspended, rule_schema

Json = dict[str, Any]

FORBIDDEN = "FieldValueForbidden"
"""Reason of a change that may not be: `kubectl` then says "Forbidden: ..."."""
REFUSED = JobReason.BAD_MANIFEST.value
"""Reason of a job that its spec kept from beginning."""
LET_GO = (
    f"has(oldSelf.status) && has(oldSelf.status.reason) && oldSelf.status.reason == '{REFUSED}'"
    " && (!has(oldSelf.status.selector) || oldSelf.status.selector == '')"
)
"""The selector is written before anything is made of a job, and stays: one that began is held, whoever calls it
refused, as an operator would that is older than its definition."""

SUSPENDED = (
    "(has(oldSelf.spec.suspend) && oldSelf.spec.suspend && has(oldSelf.status) && has(oldSelf.status.conditions)"
    " && oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True'))"
)
"""Its operator must have seen it, too: else it might only see a job that goes on, with other pods. Also true in the
very change that lets the job go on."""


def may_change(slot: Slot) -> bool:
    """Is this field, or something in it, marked Mutable, WhileSuspended or Grows?"""
    return any(isinstance(rule, Mutable | WhileSuspended | Grows) for rule in slot.rules) or changes_within(
        slot
    )


def changes_within(slot: Slot) -> bool:
    """Is something in this field marked?"""
    hint = slot.hint
    return isinstance(hint, type) and is_dataclass(hint) and any(may_change(inner) for inner in slots(hint))


def immutable(path: str) -> Json:
    """The rule of a whole object that stays as it was made, whatever its status says."""
    return rule_schema(Cel("self == oldSelf", f"{path} is immutable")) | {"reason": FORBIDDEN}


def transitions(cls: type[Any], at: str = "spec", both: str = "") -> Iterator[Json]:
    """The rules of all fields below `at`. `both`: an optional field on the way, which only has fields to compare where
    it is there before and after."""
    for slot in slots(cls):
        path, within = f"{at}.{slot.manifest}", both
        if any(isinstance(rule, Mutable) for rule in slot.rules):
            continue
        if slot.optional:
            yield _rule(
                path, f"has(self.{path}) == has(oldSelf.{path})", "can neither be added nor removed", both
            )
            within = path
        if changes_within(slot):
            yield from transitions(slot.hint, path, within)
        elif (grows := next((rule for rule in slot.rules if isinstance(rule, Grows)), None)) is not None:
            yield _rule(path, f"self.{path} >= oldSelf.{path}", f"may only grow: {grows.because}", within)
        elif any(isinstance(rule, WhileSuspended) for rule in slot.rules):
            says = "changes only while the job is suspended (spec.suspend: true)"
            yield _rule(path, f"{SUSPENDED} || self.{path} == oldSelf.{path}", says, within)
        elif not _single(slot):
            yield _rule(path, f"self.{path} == oldSelf.{path}", "is immutable", within)


def _rule(path: str, holds: str, says: str, both: str) -> Json:
    absent = f"!has(self.{both}) || !has(oldSelf.{both}) || " if both else ""
    return rule_schema(Cel(f"{LET_GO} || {absent}{holds}", f"{path} {says}", path)) | {"reason": FORBIDDEN}


def _single(slot: Slot) -> bool:
    """There is nothing that it could change to."""
    return isinstance(slot.hint, type) and issubclass(slot.hint, Enum) and len(slot.hint) == 1
