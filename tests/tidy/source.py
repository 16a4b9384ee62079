"""The repository's Python as data: which modules exist, and what each imports. Read as text, never imported."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    """Dotted name. For `from a import b` it is `a.b` where that is a module of ours, else `a`."""
    line: int
    typing_only: bool
    """Below `if TYPE_CHECKING:`: never executed."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    """Without the `sandgate.` in front: `gateway.engine.api`; a package is its own name."""
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.split(".", 1)[0]

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git has or would take, sorted; what is ignored is nobody's business."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            f"safe.directory={ROOT}",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def python_below(*folders: str) -> Iterator[Path]:
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders:
            yield path


def in_package(path: Path) -> bool:
    """Below `<room>/sandgate/<room>/`?"""
    room, *rest = path.relative_to(ROOT).parts
    return rest[:2] == ["sandgate", room]


@cache
def parse(path: Path) -> ast.Module:
    # A collection within ast.parse may end a task of an earlier test whose error asyncio logs; a traceback's carets are
    # found by ast.parse, and CPython 3.11 counts the depth of both in one place ("recursion depth mismatch").
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"), str(path))
    finally:
        gc.enable()


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the five rooms. What lies beside a room's package is none (test_house.py forbids it)."""
    found = []
    for path in python_below(*ROOMS):
        if not in_package(path):
            continue
        parts = list(path.relative_to(ROOT).with_suffix("").parts)[2:]  # drops <room>/sandgate/
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, parse(path)))
    return tuple(found)


@cache
def module_names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import, also inside functions."""
    skipped = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=str(base), names=names):
                targets = [of_ours(f"{base}.{alias.name}") or base for alias in names]
            case _:
                continue
        for target in dict.fromkeys(targets):
            yield Import(target, node.lineno, node in skipped)


def of_ours(target: str) -> str | None:
    """`target` if it is a module of a room, else None."""
    return (
        target
        if target.removeprefix("sandgate.") in module_names() and target.startswith("sandgate.")
        else None
    )
