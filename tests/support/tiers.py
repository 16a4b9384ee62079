"""Which tests run, and that what they need is made before them (a pytest plugin).

`pytest` without paths is what a person runs: no root, no compiler, no cluster, no whole trainer. `--tier all`
leaves out what CI has no time for (the mark `endurance`); naming paths, or that mark with `-m`, nothing. What is
missing is made in the background, in the order in which tests ask for it, while tests that need nothing run; who needs
it waits outside of the test's own time limit. A build that fails is told once, and the tests that need it fail with
what it said.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import cache
from tests.support.failures import tell_at_once
from tests.support.needs import NEEDS, in_order, needs_of
from tests.support.workers import in_turn

ROOT = Path(__file__).resolve().parents[2]
STATUS = "SANDGATE_TEST_STATUS"
"""Environment: the file in which the builder says how far it is. Set here, for the workers of pytest-xdist."""
BUILD_S = 3600.0
"""A test waits that long for what it needs. All of it takes half of that from empty caches on two cores."""
POLL_S = 0.2
HOG = "while True: pass"
DIE_WITH_PARENT = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); exec(sys.argv[1])"
"""PR_SET_PDEATHSIG: a hog ends with the run, however that ends."""

TIERS = {"everyday": "what needs no root, no compiler, no cluster and no whole trainer", "all": "everything"}
LEFT_OUT = (
    "left out: tests on a real API server and a real cluster, of the chart and the images (root, Go; 30 min), and in"
    " the environments of verl, AReaL and TRL (9 GB; 6 min), and of real agents (3.4 GB; 2 min): make test-all"
)
EVERYDAY = "some {minutes} min on two cores, and 1 to 3 more where the engine (5 GB) is not built yet"
MINUTES = {"everyday": 15, "all": 35}
"""Roughly, on two cores, with warm caches."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sandgate")
    group.addoption(
        "--tier", choices=TIERS, help="which tests run; default: everyday, or all where paths are named"
    )
    group.addoption("--hog", type=int, default=0, metavar="N", help="run beside N processes that never rest")


def tier(config: pytest.Config) -> str:
    """Of this run."""
    return str(config.getoption("--tier") or ("all" if named(config) else "everyday"))


def named(config: pytest.Config) -> bool:
    """Somebody asked for these paths."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def worker(config: pytest.Config) -> str:
    """Of pytest-xdist; empty: there are none, or this is what commands them."""
    return str(getattr(config, "workerinput", {}).get("workerid", ""))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    cache.MAKES[0] = False
    plugin = Parts(config)
    config.pluginmanager.register(plugin, "sandgate-parts")
    config.add_cleanup(plugin.close)
    tell_at_once(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What a person wants to know before it begins."""
    chosen = tier(config)
    lines = [f"tier: {chosen}, {TIERS[chosen]}"]
    if not named(config) and not config.getoption("keyword"):
        lines.append(f"takes: {EVERYDAY.format(minutes=MINUTES[chosen])}")
    if chosen == "everyday":
        lines.append(LEFT_OUT)
    else:
        lacking = {why: name for name, need in NEEDS.items() if (why := need.lacks())}
        lines += [f"cannot run here: what needs {name}: {why}" for why, name in lacking.items()]
    if hogs := config.getoption("--hog"):
        lines.append(f"beside {hogs} busy processes")
    return lines


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out; what needs nothing comes first."""
    needs = {item: in_order(needs_of(item)) for item in items}
    out = [item for item in items if is_left_out(config, item, needs[item])]
    if out:
        config.hook.pytest_deselected(items=out)
        kept = set(out)
        items[:] = [item for item in items if item not in kept]
    for item in items:
        item.stash[NEEDED] = needs[item]
    in_turn(config, items)


def is_left_out(config: pytest.Config, item: pytest.Item, needs: list[str]) -> bool:
    dear = tier(config) == "everyday" and not all(NEEDS[name].everyday for name in needs)
    asked = named(config) or "endurance" in str(config.getoption("markexpr") or "")
    return dear or (item.get_closest_marker("endurance") is not None and not asked)


NEEDED = pytest.StashKey[list[str]]()


class Parts:
    """What this run needs: the builder that makes it, and who waits for it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.builder: subprocess.Popen[bytes] | None = None
        self.hogs: list[subprocess.Popen[bytes]] = []
        self.narrator = threading.Thread(target=self._narrate, daemon=True)
        self.over = threading.Event()
        self.folder: str | None = None
        if not worker(config):
            self.folder = tempfile.mkdtemp(prefix="sandgate-tests-")
            os.environ[STATUS] = f"{self.folder}/status"
        self.status = Path(os.environ[STATUS])

    def pytest_sessionstart(self) -> None:
        if worker(self.config):
            return
        self.narrator.start()
        for _ in range(self.config.getoption("--hog")):
            self.hogs.append(subprocess.Popen([sys.executable, "-c", DIE_WITH_PARENT, HOG]))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Starts to make what is missing."""
        if worker(self.config) not in ("", "gw0") or self.config.getoption("collectonly"):
            return
        needed = in_order(name for item in session.items for name in item.stash.get(NEEDED, []))
        if missing := [name for name in needed if not NEEDS[name].ready() and not NEEDS[name].lacks()]:
            for name in missing:
                self._note(name, "asked", "")
            with open(f"{self.status}.log", "wb") as log:
                self.builder = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.prepare", "--status", str(self.status), *missing],
                    cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Waits, outside of the test's time limit."""
        for name in item.stash.get(NEEDED, []):
            self._wait(name)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for name in item.stash.get(NEEDED, []):
            said = self._said().get(name, {})
            if said.get("state") == "failed":
                pytest.fail(said["words"], pytrace=False)

    def _wait(self, name: str) -> None:
        """As long as somebody makes it. What nobody was asked to make was there when the run began: whatever became of
        it since, waiting does not bring it back."""
        need, end = NEEDS[name], time.monotonic() + BUILD_S
        if not need.ready() and (why := need.lacks()):
            return self._note(name, "lacks", why)
        while self._state(name) in ("asked", "making"):
            gone = self.builder is not None and self.builder.poll() is not None
            if gone and self._state(name) in ("asked", "making"):  # it may have said more before it ended
                return self._note(name, "failed", f"{name} was not made: see {self.status}.log")
            if time.monotonic() > end:
                return self._note(
                    name, "failed", f"{name} was not made within {BUILD_S:.0f} s: see {self.status}.log"
                )
            self.over.wait(POLL_S)
        return None

    def _state(self, name: str) -> str:
        return self._said().get(name, {}).get("state", "")

    def _note(self, name: str, state: str, words: str) -> None:
        if self._state(name) in ("", "asked", "making"):
            with self.status.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "state": state, "words": words}) + "\n")

    def _said(self) -> dict[str, dict[str, str]]:
        return {said["name"]: said for said in self._lines()}

    def _lines(self) -> Iterator[dict[str, str]]:
        with contextlib.suppress(FileNotFoundError):
            for line in self.status.read_text("utf-8").splitlines():
                yield json.loads(line)

    def _narrate(self) -> None:
        """Tells what is made, and where what failed said why."""
        told = 0
        while True:
            over = self.over.wait(POLL_S)
            lines = list(self._lines())
            for said in lines[told:]:
                self._tell(said)
            told = len(lines)
            if over:
                return

    def _tell(self, said: dict[str, str]) -> None:
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not said["words"]:
            return
        more = ""
        if said["state"] == "failed":
            log = Path(f"{self.status}.log")
            last = log.read_text("utf-8", "replace").splitlines()[-15:] if log.exists() else []
            more = "".join(f"\n    {line}" for line in last)
        reporter.ensure_newline()
        reporter.write_line(f"{said['name']}: {said['state']}: {said['words']}{more}")

    def close(self) -> None:
        """The builder ends with the run: what it had finished stays, the rest is begun again."""
        for process in self.hogs:
            process.kill()
            process.wait()
        if self.builder is not None and self.builder.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.builder.pid, 15)
            self.builder.wait()
        self.over.set()
        if self.narrator.is_alive():
            self.narrator.join(5.0)
        if self.folder is not None:
            for path in Path(self.folder).iterdir():
                path.unlink()
            Path(self.folder).rmdir()
