"""The trainers' environments have what our rooms need there: they are installed without dependencies of ours."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

import pytest

from tests.tidy.source import ROOT

EXTRAS = {"trl": "trainer", "verl": "gateway"}
"""Environment -> the extra that its `.in` names as ours."""
OURS = re.compile(r"sandgate\[([a-z,-]+)\]")


def packages(lines: Iterable[str]) -> set[str]:
    """Names, without versions and extras."""
    return {
        re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in lines if line and not line.startswith("#")
    }


def asked(extra: str) -> set[str]:
    """What an extra asks for, with the lower bounds; of extras in it too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found: set[str] = set()
    for line in extras[extra]:
        ours = OURS.match(line)
        found |= set().union(*map(asked, ours[1].split(","))) if ours else {line}
    return found


def needed(extra: str) -> set[str]:
    """Packages of an extra, those of extras in it too."""
    return packages(asked(extra))


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("ending", ["in", "lock"])
def test_an_environment_names_every_package_of_the_extra_that_runs_in_it(name: str, ending: str) -> None:
    text = (ROOT / "trainer" / "envs" / f"{name}.{ending}").read_text("utf-8")
    assert not needed(EXTRAS[name]) - packages(text.splitlines())


@pytest.mark.parametrize("name", EXTRAS)
def test_an_environment_asks_for_no_older_version_than_the_extra(name: str) -> None:
    text = (ROOT / "trainer" / "envs" / f"{name}.in").read_text("utf-8")
    pinned = packages(line for line in text.splitlines() if "==" in line)
    assert {one for one in asked(EXTRAS[name]) if packages([one]) - pinned} <= set(text.splitlines())
