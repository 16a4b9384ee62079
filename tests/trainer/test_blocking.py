"""The blocking face has all that the asynchronous client has, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from sandgate.trainer.client import blocking
from sandgate.trainer.client.blocking_client import Group, RolloutClient
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group as AsyncGroup
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.weight_update import Update

FACES: dict[str, tuple[type, type, set[str]]] = {
    "a fleet, which beats by itself and is closed by its block": (
        AsyncFleet,
        blocking.Fleet,
        {"aclose", "beating"},
    ),
    "a client of one gateway": (AsyncRolloutClient, RolloutClient, {"aclose"}),
    "a group": (AsyncGroup, Group, set()),
    "an update": (Update, blocking.Update, set()),
}
PAIRS = [
    pytest.param(inner, outer, name, id=f"{said}: {name}")
    for said, (inner, outer, without) in FACES.items()
    for name, _ in inspect.getmembers(inner, callable)
    if not name.startswith("_") and name not in without
]


WITHIN = {"lease", "client", "keeper", "hold"}
"""What a group is made of; the calls above are for it."""


def test_the_blocking_group_says_of_itself_what_the_other_does() -> None:
    of_one = {one.name for one in fields(AsyncGroup)} - WITHIN
    computed = {name for name, _ in inspect.getmembers(AsyncGroup, lambda one: isinstance(one, property))}
    has = {name for name, _ in inspect.getmembers(Group, lambda one: isinstance(one, property))}
    assert has == of_one | computed


def parameters(function: Any) -> Iterator[tuple[str, Any]]:
    """(name, kind) of all but self; what `blocking` wraps has those of the wrapped."""
    for one in list(inspect.signature(function).parameters.values())[1:]:
        yield one.name, one.kind


@pytest.mark.parametrize(("inner", "outer", "name"), PAIRS)
def test_the_blocking_face_has(inner: type, outer: type, name: str) -> None:
    assert list(parameters(getattr(outer, name))) == list(parameters(getattr(inner, name)))
