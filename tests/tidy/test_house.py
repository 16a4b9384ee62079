"""What would break a fresh clone on another machine, or a tool that then silently checks less."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.tidy.source import (
    ROOMS,
    ROOT,
    imports,
    in_package,
    module_names,
    modules,
    parse,
    python_below,
    tracked,
)

FORBIDDEN = re.compile(
    # Written so that this file does not match itself.
    r"/work/(?:main|shared|steering)|/f[a]rm/|/tmp/(?:k8s|vllm-lab|peerbench)"
    r"|pypi[.]org|python[h]osted|registry[.]npmjs|proxy[.]golang|deb[.]debian[.]org|crates[.]io/api|repo1[.]maven"
    r"|BEGIN [A-Z ]*PRIVATE KE[Y]|\bhf_[A-Za-z0-9]{30,}|\bsk-(?:ant|proj)-[A-Za-z0-9_-]{20,}"
)
"""Paths of one machine, hosts of package registries, secrets."""

MAY_SLEEP = (
    "tests/support/waiting.py",
    "tests/bench/",
    "tests/cluster/scale/",
    "tests/simulation/",
    "tests/gateway/engine/sglang/own_server.py",
    "tests/trainer/trl/training.py",
)
SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}


def test_no_init_where_it_would_end_the_namespace_or_shadow_the_standard_library() -> None:
    roots = [folder for room in ROOMS for folder in (ROOT / room, ROOT / room / "sandgate")]
    assert not [str(folder) for folder in roots if (folder / "__init__.py").exists()]


def test_every_package_says_that_it_is_one() -> None:
    """Without `__init__.py` a folder is not in the wheel's types, and import-linter does not see it."""
    folders = {path.parent for path in python_below(*ROOMS)}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]
    assert all((ROOT / room / "sandgate" / room / "py.typed").exists() for room in ROOMS)


def test_rooms_hold_nothing_beside_their_package() -> None:
    assert not [str(path.relative_to(ROOT)) for path in python_below(*ROOMS) if not in_package(path)]


def test_import_linter_sees_every_module() -> None:
    graph = grimp.build_graph(*(f"sandgate.{room}" for room in ROOMS), cache_dir=None)
    assert {name.removeprefix("sandgate.") for name in graph.modules} == module_names()


def test_mypy_is_told_folders_not_packages() -> None:
    """`packages = ["sandgate"]` finds a part of a namespace package and is silent about the rest."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert config["files"] == [*ROOMS, "tests", "scripts"]
    assert config["strict"] is True
    assert not config.keys() & {"packages", "modules", "exclude"}


def test_no_machine_path_registry_host_or_secret() -> None:
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "ignore")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN.finditer(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", ["contract", "sandbox"])
def test_bare_rooms_load_the_standard_library_only(room: str) -> None:
    """In a process of its own, all modules of the room: `pip install sandgate` installs nothing else."""
    names = [f"sandgate.{name}" for name in sorted(module_names()) if name.split(".")[0] == room]
    program = (
        "import importlib, sys\n"
        "before = set(sys.modules)\n"  # what .pth files of this environment load at start-up
        f"for name in {names!r}: importlib.import_module(name)\n"
        "tops = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'sandgate'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def sleeps(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in SLEEPS
            and "".join(map(ast.unparse, node.args)) != "0"
        ):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_tests_do_not_sleep() -> None:
    """They wait for what they wait for: tests/support/waiting.py. `asyncio.sleep(0)` only yields, and is fine; the
    simulation sleeps in virtual time, and what makes load has a pace."""
    paths = [p for p in python_below("tests") if not str(p.relative_to(ROOT)).startswith(MAY_SLEEP)]
    found = [line for path in paths for line in sleeps(path)]
    assert not found, "\n".join(found)


def test_no_module_is_dead() -> None:
    """Each is imported from somewhere, or is started by name."""
    used = {
        found.target.removeprefix("sandgate.")
        for path in python_below(*ROOMS, "tests", "scripts", "examples")
        for found in imports(parse(path))
    }
    started = {
        module.name for module in modules() if '__name__ == "__main__"' in module.path.read_text("utf-8")
    }
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"].values()
    started |= {target.split(":")[0].removeprefix("sandgate.") for target in scripts}
    started |= {  # by a command line: `python -c "from sandgate.x import main"`
        name
        for module in modules()
        for name in re.findall(r"from sandgate\.([\w.]+) import main", module.path.read_text("utf-8"))
    }
    packages = {module.name for module in modules() if module.path.name == "__init__.py"}
    dead = module_names() - used - started - packages
    assert not dead, f"imported from nowhere, not even from a test: {sorted(dead)}"
