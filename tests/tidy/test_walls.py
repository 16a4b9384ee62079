"""The walls of tests/tidy/walls.py hold. Each failure names file, line and the rule."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import packages_distributions

import pytest

from tests.tidy import walls
from tests.tidy.source import ROOMS, ROOT, Import, Module, imports, module_names, modules


def is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def is_pure(name: str) -> bool:
    return is_any(name, walls.PURE_IN_SHELL) or not is_any(name, walls.SHELL)


def ours(target: str) -> str | None:
    return target.removeprefix("sandgate.") if target.startswith("sandgate.") else None


def every_import() -> Iterator[tuple[Module, Import]]:
    return ((module, found) for module in modules() for found in imports(module.tree))


def test_pure_modules_import_nothing_that_acts() -> None:
    broken = []
    for module, found in every_import():
        if found.typing_only or not is_pure(module.name):
            continue
        own = ours(found.target)
        if (
            found.target in walls.IMPURE
            or found.target.split(".")[0] in walls.IMPURE
            or (own and not is_pure(own))
        ):
            broken.append(
                f"{module.at(found.line)}: pure (not in SHELL of tests/tidy/walls.py) but imports {found.target}"
            )
    assert not broken, "\n".join(broken)


def test_pure_modules_call_nothing_that_acts() -> None:
    calls = (
        (module, node)
        for module in modules()
        if is_pure(module.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in walls.IMPURE_CALLS
    )
    assert not [
        f"{module.at(call.lineno)}: pure, but calls {ast.unparse(call.func)}" for module, call in calls
    ]


def test_rooms_are_entered_by_their_front_doors() -> None:
    broken = []
    for module, found in every_import():
        own = ours(found.target)
        if own is None or own.split(".")[0] == module.room:
            continue
        doors = walls.FRONT_DOORS.get(own.split(".")[0], ())
        side = tuple(
            door for who, doors in walls.SIDE_DOORS.items() if fnmatch(module.name, who) for door in doors
        )
        if not is_any(own, doors + side):
            broken.append(f"{module.at(found.line)}: {own} is not a door; use {', '.join(doors) or 'none'}")
    assert not broken, "\n".join(broken)


def test_each_third_party_has_one_home() -> None:
    broken = [
        f"{module.at(found.line)}: {top} lives in {', '.join(walls.HOMES[top])} only"
        for module, found in every_import()
        if (top := found.target.split(".")[0]) in walls.HOMES and not is_any(module.name, walls.HOMES[top])
    ]
    assert not broken, "\n".join(broken)


def extras() -> dict[str, set[str]]:
    """Room -> the distributions that its extra installs; bare rooms have none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed: dict[str, list[str]] = project["optional-dependencies"]
    by_room = {
        room: {
            name_of(line)
            for extra, lines in listed.items()
            # gateway-arrow: imported where it is used; cluster: the trainer's way into one.
            if extra == room or extra.startswith(f"{room}-") or (room, extra) == ("trainer", "cluster")
            for line in lines
        }
        for room in ROOMS
    }
    by_room["operator"] |= by_room["gateway"]  # reached through gateway.client only, see FRONT_DOORS
    by_room["trainer"] |= by_room["gateway"] | by_room["operator"]
    return by_room


def name_of(requirement: str) -> str:
    head = next((at for at, char in enumerate(requirement) if char in "[<>=!~; "), len(requirement))
    return requirement[:head].lower().replace("_", "-")


def test_a_room_imports_only_what_its_extra_installs() -> None:
    known, allowed = packages_distributions(), extras()
    broken = []
    for module, found in every_import():
        top = found.target.split(".")[0]
        if top == "sandgate" or top in sys.stdlib_module_names or top in walls.FRAMEWORKS:
            continue
        distributions = {name.lower().replace("_", "-") for name in known.get(top, [top])}
        if not distributions & allowed[module.room]:
            broken.append(
                f"{module.at(found.line)}: {top} is not in the extra `{module.room}` of pyproject.toml"
            )
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("name", "pure"),
    [
        ("contract.keys", True),
        ("operator.plan.job", True),
        ("gateway.web.server", False),
        ("operator.cluster.health", True),
    ],
)
def test_modules_are_pure_unless_listed(name: str, pure: bool) -> None:
    assert is_pure(name) is pure


def test_every_import_of_ours_exists() -> None:
    """Also those inside functions, which no other test may reach."""
    missing = [
        f"{module.at(found.line)}: {found.target} does not exist"
        for module, found in every_import()
        if (own := ours(found.target)) and own not in module_names()
    ]
    assert not missing, "\n".join(missing)
