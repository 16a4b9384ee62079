"""A hostile agent as a process of `sandgate run`, one of eight: what it earned, and what the others have.

The same program as in test_one_of_eight.py, which measures turns, and in tests/cluster/e2e/test_hostile.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sandgate.trainer.export.parquet import read_parquet
from tests.adversary import hostile
from tests.adversary.eight import reply
from tests.trainer.jobs import Lab, lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HONEST, TURNS, ROUNDS = 7, 8, 2
SAME = (
    "uid", "sample_index", "prompt_ids", "response_ids", "response_logprobs", "loss_mask", "versions", "turn_ends",
    "reward", "finish_reason", "fork_reason", "failure_reason", "complete", "masked",
)  # fmt: skip
AGENT = f"""
import json, os, runpy, sys, urllib.request
from pathlib import Path

def leave(**message):
    Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(json.dumps(message))

def say(said):
    body = {{"model": os.environ["SANDGATE_MODEL"], "messages": said}}
    headers = {{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120)
    return json.load(answer)["choices"][0]["message"]

prompt = os.environ["SANDGATE_PROMPT"]
if prompt == "task {HONEST}":
    leave(reward=1.0, reward_info={{"reward": 1.0}}, answer="whatever you like")
    sys.argv[1:] = ["{ROUNDS}"]
    runpy.run_path({hostile.__file__!r}, run_name="__main__")
else:
    said = []
    for turn in range({TURNS}):
        said.append({{"role": "user", "content": prompt + ", turn " + str(turn)}})
        said.append(say(said))
    leave(answer=said[-1]["content"])
"""
VERIFIER = """
import json, os
from pathlib import Path

said = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text())["message"]
right = isinstance(said, dict) and str(said.get("answer")).startswith("answer ")
Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(json.dumps({"reward": float(right)}))
"""


async def rows(tmp_path: Path, name: str, agents: int) -> list[dict[str, Any]]:
    """Of a run with so many agents, the last of which is the hostile one if there are more than HONEST."""
    os.mkdir(folder := tmp_path / name)
    async with lab(folder, reply) as made:
        write(made, agents)
        ended = await made.run()
        assert ended.code == 0, ended.stderr
    found = read_parquet(folder / "out" / "trajectories.parquet")
    chosen = [{name: getattr(row, name) for name in SAME} for row in found]
    return sorted(chosen, key=lambda row: (row["uid"], list(row["prompt_ids"])))


def write(made: Lab, agents: int) -> None:
    """Its job."""
    (made.folder / "agent.py").write_text(AGENT)
    (made.folder / "judge.py").write_text(VERIFIER)
    path = made.folder / "job.yaml"
    tasks = [{"uid": f"q{number}", "prompt": f"task {number}"} for number in range(agents)]
    judge = {"source": "verifier", "verifier": {"container": {"command": [sys.executable, "judge.py"]}}}
    text = path.read_text().replace("reward: {source: exitCode}", f"reward: {json.dumps(judge)}")
    lines = [line for line in text.splitlines() if "inline:" not in line]
    text = (
        "\n".join(lines).replace("groupSize: 2", "groupSize: 1").replace("parallelism: 2", "parallelism: 8")
    )
    path.write_text(f"{text}\n  tasks: {{inline: {json.dumps(tasks)}}}\n")


async def test_a_run_gives_it_what_it_earned_and_the_others_what_they_have_without_it(tmp_path: Path) -> None:
    alone = await rows(tmp_path, "alone", HONEST)
    beside = await rows(tmp_path, "beside", HONEST + 1)
    assert len(alone) == HONEST
    assert {row["reward"] for row in alone} == {1.0}
    assert [row for row in beside if row["uid"] != f"q{HONEST}"] == alone
    assert {row["reward"] for row in beside if row["uid"] == f"q{HONEST}"} == {0.0}
    (said,) = (tmp_path / "beside" / "out" / "logs").glob(f"ask-q{HONEST}-*-0-0.log")
    assert said.read_text().split() == [str(number) for number in range(ROUNDS)], "it did all it does"
