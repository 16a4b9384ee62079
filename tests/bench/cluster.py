"""One operator in a cluster that is played: sessions a second, what each costs, and whom.

    python -m tests.bench.cluster [--sessions 5000] [--parallelism 400] [--gateways 2] [--warm 200] [--write]

Needs root, for names of its own (tests/cluster/scale). `--write`: its section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandgate.operator.plan.session import SHOW_S
from tests.bench import report
from tests.bench.run import TICKS, cpu_s, rss_kb
from tests.cluster.harness.control import Control
from tests.cluster.scale.figures import figures
from tests.cluster.scale.hosts import why_no_hosts
from tests.cluster.scale.plane import COMPONENTS, PLAYED_S, plane, why_no_plane
from tests.cluster.scale.world import GROUP, OPERATOR, Shape, World, world

Row = dict[str, Any]

TITLE = "Sessions in a cluster"
SLOWEST = 4.0
"""Sessions a second; a run that is slower is given up."""
PATIENCE_S = 120.0
SAMPLE_S = 1.0


class Usage:
    """What processes took between two moments: processor time, and memory at its most."""

    def __init__(self, control: Control, gateways: Iterator[int] | list[int]) -> None:
        self.pids: dict[str, list[int]] = {}
        for name in (*COMPONENTS, "operator"):
            process = control.ledger.get(name)
            assert process is not None, name
            self.pids[name] = [process.pid]
        self.pids |= {"gateways": list(gateways), "trainer and bench": [os.getpid()]}
        self.begun = {name: self._cpu(name) for name in self.pids}
        self.begun["gateways"] = 0.0  # theirs is all of this job's
        self.machine = busy_s()
        self.peak = dict.fromkeys(self.pids, 0.0)
        self.operator_mib: list[float] = []
        """In each second."""

    def _cpu(self, name: str) -> float:
        return sum(map(cpu_s, self.pids[name]))

    async def watch(self) -> None:
        """For ever: memory."""
        while True:
            for name, pids in self.pids.items():
                self.peak[name] = max(self.peak[name], mib := sum(map(rss_kb, pids)) / 1024)
                if name == "operator":
                    self.operator_mib.append(mib)
            await asyncio.sleep(SAMPLE_S)

    def spent(self) -> tuple[dict[str, float], float]:
        """(seconds of each, seconds of everybody else on this machine)."""
        ours = {name: self._cpu(name) - begun for name, begun in self.begun.items()}
        return ours, max(0.0, busy_s() - self.machine - sum(ours.values()))


def busy_s() -> float:
    """Processor time of this machine that was not idle, since it started."""
    fields = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]
    return (sum(map(int, fields)) - int(fields[3]) - int(fields[4])) / TICKS


async def measure(here: World, shape: Shape) -> Row:
    """One job, from its manifest until nothing is left but history."""
    mark = here.api.audit_mark()
    async with here.job_of(shape) as gateways:
        usage = Usage(here.control, [one.pid for one in gateways])
        sampling = asyncio.create_task(usage.watch())
        began = asyncio.get_running_loop().time()
        try:
            await here.run(shape, PATIENCE_S + shape.sessions / SLOWEST)
        finally:
            sampling.cancel()
        took = asyncio.get_running_loop().time() - began
        spent, others = usage.spent()
        counted = figures(here.api.audit_each(mark), OPERATOR)
        status = here.job(shape.name)["status"]
    return {
        "sessions": shape.sessions,
        "parallelism": shape.parallelism,
        "gateways": shape.gateways,
        "failed": status["failed"],
        "retries": status["retries"],
        "sessions_per_s": counted.rate,
        "steady_per_s": counted.steady,
        "pod_s_p50": counted.wait(0.5),
        "pod_s_p99": counted.wait(0.99),
        "writes_per_session": counted.writes_per_session,
        "writes": dict(counted.writes.most_common()),
        "cpu_ms_per_session": {name: one / shape.sessions * 1000 for name, one in spent.items()},
        "peak_mib": usage.peak,
        "operator_mib_by_tenths": tenths(usage.operator_mib),
        "cores_ours": sum(spent.values()) / took,
        "cores_others": others / took,
        "took_s": took,
    }


def tenths(values: list[float]) -> list[float]:
    """The value at the end of each tenth of the time."""
    return [values[max(0, len(values) * tenth // 10 - 1)] for tenth in range(1, 11)] if values else []


async def run(shapes: list[Shape]) -> list[Row]:
    """One after the other, under the same operator."""
    rows = []
    with plane() as (api, control):
        async with world(api, control, {}) as here:
            for shape in shapes:
                rows.append(await measure(here, shape))
                print(line(rows[-1]), flush=True)
    return rows


def line(row: Row) -> str:
    return report.table([], [cells(row)]).splitlines()[-1]


COLUMNS = [
    "sessions (at once)", "sessions/s", "steady", "AgentSession to pod p50 / p99", "API writes a session",
    "operator CPU a session", "operator memory", "all of it / others, cores", "failed",
]  # fmt: skip


def cells(row: Row) -> list[str]:
    return [
        f"{row['sessions']} ({row['parallelism']})",
        f"{row['sessions_per_s']:.1f}",
        f"{row['steady_per_s']:.1f}",
        f"{row['pod_s_p50']:.2f} / {row['pod_s_p99']:.2f} s",
        f"{row['writes_per_session']:.2f}",
        f"{row['cpu_ms_per_session']['operator']:.1f} ms",
        f"{row['peak_mib']['operator']:.0f} MiB",
        f"{row['cores_ours']:.2f} / {row['cores_others']:.2f}",
        str(row["failed"]),
    ]


HEAD = f"""\
One operator process (one shard, with the chart's settings and rights) runs a job in a cluster whose etcd, API server,
controller manager and scheduler are real, on this machine too, and whose pods kwok plays: bound, Running, and Succeeded
after {PLAYED_S:g} to {2 * PLAYED_S:g} s. Groups of {GROUP}. Gateways are real processes with journals on disk. Agents
do not run, so sessions have no turns; a trainer leases and acknowledges their groups. A session of less than
{SHOW_S:g} s never says Running: longer ones take one write more, verified ones one more.

sessions/s: from the first AgentSession to the last TrajectoryCommitted; steady: pods a second without the first and the
last tenth. AgentSession to pod: between the two answers, in the API server's audit log, and so are writes: everything
that the operator asked for, its Lease too. A row follows the one above it under the same operator.

Made by `python -m tests.bench.cluster --write`.

"""


def section(rows: list[Row]) -> str:
    """The tables: what was reached, and where the time went."""
    last = rows[-1]
    spent = sorted(last["cpu_ms_per_session"].items(), key=lambda one: -one[1])
    whole = sum(value for _, value in spent)
    own = 1000 / last["cpu_ms_per_session"]["operator"]
    cost = [
        [name, f"{value:.1f} ms", f"{value / whole:.0%}", f"{last['peak_mib'][name]:.0f} MiB"]
        for name, value in spent
    ]
    cost.append(["all", f"{whole:.1f} ms", "", f"{sum(last['peak_mib'].values()):.0f} MiB"])
    counted = [[what, f"{count / last['sessions']:.3f}"] for what, count in last["writes"].items()]
    cores = os.cpu_count() or 1
    return "\n\n".join(
        (
            HEAD.strip(),
            report.table(COLUMNS, [cells(row) for row in rows]),
            f"Of the {last['sessions']} sessions:",
            report.table(["process", "CPU a session", "share", "memory at most"], cost),
            "The operator's memory after each tenth of the time: "
            + ", ".join(f"{one:.0f}" for one in last["operator_mib_by_tenths"])
            + " MiB.",
            f"What bounds it: {last['cores_ours']:.2f} of {cores} cores are busy all the time, from before the first"
            f" session to after the last. A core of the operator's own is {own:.0f} sessions/s.",
            report.table(["the operator's writes", "a session"], counted),
            f"Measured on {platform.machine()}, {cores} cores, Python {platform.python_version()}.",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--parallelism", type=int, default=400)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--warm", type=int, default=200, help="sessions of a first job, which is told too")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and .json")
    args = parser.parse_args()
    if why := why_no_plane() or why_no_hosts():
        print(why, file=sys.stderr)
        return 2
    sizes = [args.warm, args.sessions] if args.warm else [args.sessions]
    rows = asyncio.run(
        run(
            [
                Shape(f"job-{number}", size // GROUP * GROUP, args.parallelism, args.gateways)
                for number, size in enumerate(sizes)
            ]
        )
    )
    if args.write:
        report.write(TITLE, section(rows), rows)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
