"""Measures what a hostile agent in a pod costs the turns of seven honest ones; nothing is asserted of the times.

    make test-all T='-s tests/cluster/e2e/measure_hostile.py'

Each job has a gateway of its own, and the second begins when the first is over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.adversary import hostile
from tests.cluster.e2e import scripted
from tests.cluster.e2e.test_hostile import HONEST, rows
from tests.cluster.e2e.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

TURNS, ROUNDS = 300, 1_000
"""Of each honest agent; of the hostile one, which is killed when it has taken its session's time."""
AGENT = f"""
if os.environ["SANDGATE_PROMPT"] == "task {HONEST}":
    sys.argv[1:] = ["{ROUNDS}"]
    exec(compile(HOSTILE, "hostile", "exec"), {{"__name__": "__main__"}})
took = []
for turn in range({TURNS}):
    began = time.monotonic()
    say(os.environ["SANDGATE_PROMPT"] + ", turn " + str(turn))
    took.append(round(time.monotonic() - began, 4))
leave(reward=1.0, reward_info={{"turn_s": took}})
"""


def job(name: str, agents: int) -> dict[str, Any]:
    program = f"import sys\nHOSTILE = {Path(hostile.__file__).read_text('utf-8')!r}\n{AGENT}"
    return scripted.job(name, program, tasks=agents, limits={"turns": 400, "sessionSeconds": 120})


async def test_measure(world: World) -> None:
    with world.cluster.namespace("hostile-p99") as namespace:
        scripted.prepare(world, namespace)
        found: dict[str, float] = {}
        for name, agents in (("alone", HONEST), ("beside", HONEST + 1)):
            scripted.submit(world, namespace, job(name, agents))
            told = {row.uid: row.reward_info for row in await rows(world, namespace, name, agents)}
            took = sorted(
                second for uid, info in told.items() if uid != f"q{HONEST}" for second in info["turn_s"]
            )
            assert len(took) == HONEST * TURNS
            found |= {f"{name}_p50_s": took[len(took) // 2], f"{name}_p99_s": took[len(took) * 99 // 100]}
    found["p99_ratio"] = found["beside_p99_s"] / found["alone_p99_s"]
    print(json.dumps(found, indent=1))
