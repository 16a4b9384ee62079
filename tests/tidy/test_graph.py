"""No way back up: inside a room folders import one way, and a class name means one thing in the whole house."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.tidy.source import ROOMS, Module, imports, modules

SAME_NAME_SAME_THING: dict[str, str] = {}
"""Public class name -> why two rooms may each have one. Empty: none may."""


def folder(name: str) -> str:
    """`gateway.engine.api` -> `gateway.engine`; a module at the room's root is its own."""
    return ".".join(name.split(".")[:2])


def folder_imports(room: str) -> dict[str, set[str]]:
    """Folder (or root module) -> what it imports of the same room. The room's own `__init__` is what users import
    from, and imports nothing until then."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        if module.room != room or module.name == room:
            continue
        for found in imports(module.tree):
            target = found.target.removeprefix("sandgate.")
            if target.startswith(f"{room}.") and folder(target) != folder(module.name):
                graph[folder(module.name)].add(folder(target))
    return graph


@pytest.mark.parametrize("room", ROOMS)
def test_folders_of_a_room_import_one_way(room: str) -> None:
    try:
        order = tuple(TopologicalSorter(folder_imports(room)).static_order())
    except CycleError as error:
        pytest.fail(f"imports go round: {' -> '.join(error.args[1])}")
    assert order or room == "contract"


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_import_one_way(room: str) -> None:
    graph = {
        module.name: {
            found.target.removeprefix("sandgate.")
            for found in imports(module.tree)
            if found.target.startswith(f"sandgate.{room}.") and found.target != f"sandgate.{module.name}"
        }
        for module in modules()
        if module.room == room and module.name != room
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports go round: {' -> '.join(error.args[1])}")


def public_classes(module: Module) -> set[str]:
    return {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def test_no_class_name_means_two_things_in_two_rooms() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for name in public_classes(module):
            homes[name].add(module.name)
    twice = {
        name: sorted(found)
        for name, found in homes.items()
        if len({home.split(".")[0] for home in found}) > 1 and name not in SAME_NAME_SAME_THING
    }
    assert not twice, "\n".join(f"{name}: {', '.join(found)}" for name, found in sorted(twice.items()))
    assert homes.keys() >= SAME_NAME_SAME_THING.keys(), "an exception for a class that is not there"
