"""The gateway's cost: what a turn takes through it, beyond what the engine takes; beside a relay that looks at nothing.

    python -m tests.bench.run [--smoke] [--write]

Gateway or relay on core 0; engine stub and load on core 1. `--write`: its section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson

from sandgate.contract.keys import Key, Scope, mint
from tests.bench import report
from tests.bench.load import Scenario
from tests.bench.model import folder
from tests.bench.stub_engine import WINDOW

ROOT = Path(__file__).resolve().parents[2]
SECRET = bytes(range(32))
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    prompt_chars: int
    turns: int
    sessions: int
    concurrency: int
    stream: bool
    delay_ms: float = 0.0
    """Time the engine takes for one generation."""


K5, K32, K128 = 9_000, 105_000, 570_000
"""Characters of text for first prompts of about 3.4k, 30k and 128k tokens, tools included."""


def cases(smoke: bool) -> list[Case]:
    """Ten turns from 3.4k to 6.4k tokens ("5k"); four from 30k to 31.5k ("32k")."""
    out = []
    for size, chars, turns, sessions in (("5k", K5, 10, 16), ("32k", K32, 4, 16)):
        for stream in (False, True):
            wire = "SSE" if stream else "JSON"
            out.append(Case(f"{size} {wire} x1", chars, turns, sessions, 1, stream))
            for width, delay in ((64, 1000.0), (256, 4000.0)):
                out.append(Case(f"{size} {wire} x{width}", chars, turns, width, width, stream, delay))
    out.append(Case("128k JSON x8", K128, 1, 8, 8, False, 500.0))
    out.append(Case("5k JSON saturated", K5, 10, 64, 64, False))
    out.append(Case("5k SSE saturated", K5, 10, 64, 64, True))
    if smoke:
        return [Case("5k JSON x1", K5, 3, 2, 1, False), Case("5k SSE x8", K5, 3, 8, 8, True, 100.0)]
    return out


@contextmanager
def process(
    core: int, *command: str, origin: str = "", checkout: Path | None = None
) -> Iterator[tuple[str, int]]:
    """A child pinned to one core; (its origin, its pid). Killed at the end. `checkout`: another one, with its own
    environment.

    It prints {"listening": origin} first, or is told its `origin` and then answers /healthz.
    """
    core %= os.cpu_count() or 1
    python = sys.executable if checkout is None else str(checkout / ".venv" / "bin" / "python")
    child = subprocess.Popen([python, "-m", *command], stdout=subprocess.PIPE, cwd=checkout or ROOT)
    os.sched_setaffinity(child.pid, {core})
    try:
        assert child.stdout is not None
        if origin:
            _wait_for(origin, child)
        else:
            line = child.stdout.readline()
            assert line, f"{command[0]} did not start"
            origin = json.loads(line)["listening"]
        yield origin, child.pid
    finally:
        child.terminate()
        try:
            child.wait(40)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _wait_for(origin: str, child: subprocess.Popen[bytes]) -> None:
    while child.returncode is None:
        try:
            urllib.request.urlopen(f"{origin}/healthz", timeout=5).close()
            return
        except OSError:
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # it should not end: a pause between two looks
                child.wait(0.1)
    raise RuntimeError(f"{child.args!r} ended with {child.returncode}")


@contextmanager
def gateway(engine: str, model: Path, checkout: Path | None = None) -> Iterator[tuple[str, int]]:
    """The gateway as it is run, with a journal on disk; of this tree, or of another checkout."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as sock:
        home = Path(name)
        (home / "secret").write_text(SECRET.hex())
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        config = {
            "listen": {"port": port},
            "journal": str(home / "journal.db"),
            "engine": {"urls": [engine], "model": "bench"},
            "model": {"name": "bench", "tokenizer": str(model), "max_model_len": WINDOW},
            "secret_file": str(home / "secret"),
            "log_level": "WARNING",
        }
        (home / "config.json").write_bytes(orjson.dumps(config))
        told = ("sandgate.gateway.app", "--config", str(home / "config.json"))
        with process(0, *told, origin=f"http://127.0.0.1:{port}", checkout=checkout) as running:
            yield running


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS


def rss_kb(pid: int) -> int:
    """Resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def load(case: Case, target: str, origin: str) -> Row:
    """Run the load generator in its own process, on core 1."""
    scenario = Scenario(
        name=f"{case.name}-{target}".replace(" ", "-").lower(),
        target=target,
        origin=origin,
        admin_key=mint(SECRET, Key(Scope.ADMIN, "", "", 0)),
        prompt_chars=case.prompt_chars,
        turns=case.turns,
        sessions=case.sessions,
        concurrency=case.concurrency,
        stream=case.stream,
        stagger_s=case.delay_ms / 1000,
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    os.sched_setaffinity(child.pid, {1 % (os.cpu_count() or 1)})
    out, _ = child.communicate(msgspec.json.encode(scenario))
    result: Row = json.loads(out)
    return result


def measured(case: Case, target: str, origin: str, pid: int) -> Row:
    """A load, and what it cost the process that served it."""
    warm = Case(f"{case.name} warm", K5, 1, 2, 2, case.stream)
    load(warm, target, origin)  # what only the first requests of a process cost is not a turn's
    cpu, rss = cpu_s(pid), rss_kb(pid)
    row = load(case, target, origin)
    turns = max(row["turns"], 1)
    row["cpu_ms_per_turn"] = (cpu_s(pid) - cpu) / turns * 1000
    row["rss_kb_per_session"] = (rss_kb(pid) - rss) / case.sessions
    return row


def measure(case: Case, model: Path) -> Row:
    """One case: the engine directly, the relay, the gateway; each starts anew."""
    delay = ("--delay-ms", str(case.delay_ms))
    with process(1, "tests.bench.stub_engine", "--model-dir", str(model), *delay) as (engine, _):
        row: Row = {"case": case.name, "delay_ms": case.delay_ms}
        row["stub"] = load(case, "stub", engine)
        with process(0, "tests.bench.relay", "--engine", engine) as (origin, pid):
            row["relay"] = measured(case, "relay", origin, pid)
        with gateway(engine, model) as (origin, pid):
            row["gateway"] = measured(case, "gateway", origin, pid)
    floor = row["stub"]["whole_ms_p50"]
    for who in ("relay", "gateway"):
        for which in ("p50", "p99"):
            row[who][f"overhead_ms_{which}"] = row[who][f"whole_ms_{which}"] - floor
    return row


TITLE = "A turn through the gateway"
HEAD = """\
What a turn takes through the gateway beyond what the engine takes: the time from the request's first byte to the
answer's last, minus the median of the same load on the engine directly. The engine is a stub (256 tokens with logprobs,
64 events when streamed) that takes the given time for a generation. Ten-turn conversations with four tools grow from
3.4k to 6.4k prompt tokens ("5k"); four-turn ones from 30k to 31.5k ("32k"); eight sessions share a prompt. The journal
is on disk, with fsync. The relay is an aiohttp server that passes bytes on and looks at nothing. The gateway (or relay)
has one core, engine and load share another. Stall: how long a concurrent /healthz waits.

Made by `python -m tests.bench.run --write`.

"""


def _pair(row: Row, who: str) -> str:
    return f"{row[who]['overhead_ms_p50']:.1f} / {row[who]['overhead_ms_p99']:.1f} ms"


def _stall(row: Row) -> str:
    return (
        " / ".join(f"{row['gateway'][f'healthz_ms_{which}']:.1f}" for which in ("p50", "p99", "max")) + " ms"
    )


COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("case", lambda row: row["case"]),
    ("engine", lambda row: f"{row['delay_ms'] / 1000:g} s"),
    ("relay p50 / p99", lambda row: _pair(row, "relay")),
    ("gateway p50 / p99", lambda row: _pair(row, "gateway")),
    ("CPU a turn", lambda row: f"{row['gateway']['cpu_ms_per_turn']:.1f} ms"),
    ("turns/s", lambda row: f"{row['gateway']['turns_per_s']:.0f}"),
    ("stall p50 / p99 / max", _stall),
    ("memory a session", lambda row: f"{row['gateway']['rss_kb_per_session']:.0f} kB"),
    ("errors", lambda row: str(row["gateway"]["errors"])),
)


def table(rows: list[Row]) -> str:
    """Markdown."""
    cells = [[show(row) for _, show in COLUMNS] for row in rows]
    return report.table([name for name, _ in COLUMNS], cells) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="two short cases, to see that it works")
    parser.add_argument("--only", default="", help="cases whose name contains one of these, commas between")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and .json")
    args = parser.parse_args()
    model, rows = folder(), []
    for case in cases(args.smoke):
        if any(word in case.name for word in args.only.split(",")):
            rows.append(measure(case, model))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            for who in ("stub", "relay", "gateway"):
                if rows[-1][who]["first_error"]:
                    print(f"  {who}: {rows[-1][who]['first_error']}", flush=True)
    if args.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        report.write(TITLE, f"{HEAD}{table(rows)}\nMeasured on {machine}.", rows)
    return 0 if all(row["gateway"]["errors"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
