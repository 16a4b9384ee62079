"""docs/agents.md says what agents find, all of it, with the numbers of the code; and its programs do what it says."""

from __future__ import annotations

import re
import shlex
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract import session_urls
from sandgate.contract.errors import SandgateError
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureReason
from sandgate.contract.session import OUTCOME_BYTES_MAX
from sandgate.gateway.config import Limits
from sandgate.gateway.web.body_limits import EncodedBody
from sandgate.operator.cluster.remote_sessions import ELSEWHERE
from sandgate.operator.local.sandboxes import base_env
from sandgate.operator.manifests import sandbox_pods
from sandgate.operator.plan.actions import Exit
from sandgate.operator.plan.outcome import failure, reward_of
from sandgate.sandbox import agents, process
from sandgate.trainer import tinymodel
from sandgate.trainer.export.arrow import read_parquet
from tests.agents.node_table import NODE_AGENTS
from tests.agents.real_agent import PROMPT
from tests.operator import plans
from tests.operator import sandbox_pods as pods
from tests.trainer.jobs import MANIFEST, lab

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
SAMPLES = re.findall(r"```yaml\n(.*?)```.*?```python\n# (\w+\.py)(.*?)```", PAGE, re.DOTALL)
"""(part of a spec, name of its program, the program)."""
HANDLE = session_urls.SessionUrls.of("http://127.0.0.1:1", "s").handle()

# -- what it finds ----------------------------------------------------------------------------------------------------


def sets(**more: Any) -> set[str]:
    return {*agents.agent_env(HANDLE, model="m", prompt="p", **more)}


def told(text: str) -> set[str]:
    """Variables that are named in it, each as code."""
    return set(re.findall(r"`([A-Z][A-Z_]+)(?:=[^`]*)?`", text))


def section(title: str) -> str:
    return re.split(r"\n#+ ", PAGE.split(f" {title}\n", 1)[1])[0]


AGENTS = sets(delivery="Env") | sets(delivery="File")
VERIFIERS = {*agents.verifier_env(HANDLE, model="m")}


def test_every_variable_of_an_agent_has_a_row_and_no_other() -> None:
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)) == AGENTS


def test_the_section_names_what_verifiers_and_local_processes_find_too_and_nothing_else() -> None:
    assert told(section("What it finds")) == AGENTS | VERIFIERS | {*base_env(Path("/"))}


COMMANDS = re.findall(r"^\| ([A-Za-z -]+) \| `((?:claude|codex|qwen) .*?)`", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_coding_agent_is_started_as_the_tests_of_agents_start_it(name: str, command: str) -> None:
    for variable, value in (("P", PROMPT), ("SANDGATE_MODEL", "shop"), ("OPENAI_BASE_URL", "BASE")):
        command = command.replace(f"${variable}", value)
    program, *words = NODE_AGENTS[name].command(Path("installed"), "BASE")
    assert shlex.split(command) == [Path(program).name, *words]


def test_three_coding_agents_are_told() -> None:
    assert [name for name, _ in COMMANDS] == ["Claude Code", "Codex", "qwen-code"]


@pytest.mark.parametrize("delivery", ["Env", "File"])
def test_a_pod_sets_no_other(delivery: str) -> None:
    made = pods.agent(("spec.agent.taskDelivery", delivery), (f"{pods.MAIN}.env", []))
    (main,) = made["spec"]["containers"]
    assert {one["name"] for one in main["env"]} == sets(delivery=delivery)


def test_agents_elsewhere_lack_what_the_page_says() -> None:
    assert "but for the prompt, the task file and the termination log" in " ".join(PAGE.split())
    assert set(ELSEWHERE) == {"SANDGATE_PROMPT", "SANDGATE_TASK_FILE", "SANDGATE_TERMINATION_LOG"}


NUMBERS = {
    f"beyond {agents.ENV_BYTES_MAX:,} bytes": "the longest variable",
    f"a file beyond {sandbox_pods.PROMPT_BYTES_MAX:,} bytes": "the longest variable of a pod",
    f"{OUTCOME_BYTES_MAX:,} bytes count": "a termination message",
    f"SIGKILL {process.GRACE_S:.0f} s later": "the grace of a process",
    f"SIGKILL {sandbox_pods.GRACE_S} s later": "the grace of a pod",
    f"`{agents.TASK_PATH}`": "the task's file in a pod",
    f"`{agents.TERMINATION_PATH}`": "the result's file in a pod",
    f"at most {signature(process.ProcessSpec).parameters['log_bytes'].default >> 20} MiB": "a log",
    f"{Limits().in_flight_per_session} generations of a session, {Limits().in_flight:,} of a gateway": "429",
    f"the body is over {Limits().body_bytes >> 20} MiB": "413",
    f"an empty event every {Limits().keepalive_s:.0f} s": "a silent stream",
}  # fmt: skip


@pytest.mark.parametrize(("words", "what"), NUMBERS.items(), ids=NUMBERS.values())
def test_numbers_are_those_of_the_code(words: str, what: str) -> None:
    assert words in " ".join(PAGE.split()), what


def statuses(error: type[SandgateError]) -> set[int]:
    return {error.status}.union(*map(statuses, error.__subclasses__()))


def test_every_status_of_a_model_call_is_explained() -> None:
    rows = re.findall(r"^\| (\d{3}(?:, \d{3})*) \|", PAGE, re.MULTILINE)
    assert EncodedBody.status in statuses(SandgateError), "it is defined beside what raises it"
    assert {int(one) for row in rows for one in row.split(", ")} == statuses(SandgateError) - {409}, (
        "409 is the control API's alone"
    )


# -- how it ends ------------------------------------------------------------------------------------------------------

ENDS: dict[str, Exit] = {
    "exits with 0": Exit(9.0, 0),
    "exits with 1": Exit(9.0, 1),
    "exits with any other code": Exit(9.0, 3),
    "dies of a signal": Exit(9.0, None, 9),
    "is not there, or cannot be executed": Exit(9.0, reason=FailureReason.AGENT_MISSING),
    "runs for `limits.sessionSeconds`": Exit(9.0, reason=FailureReason.SESSION_TIMEOUT),
    "has not started after `limits.startSeconds`": Exit(9.0, reason=FailureReason.START_TIMEOUT),
    "gets a pod that its node does not take": Exit(9.0, reason=FailureReason.NODE_REFUSED),
    "holds more memory than its limit": Exit(9.0, reason=FailureReason.OOM_KILLED),
}
CELLS = {
    cells[0]: cells[1:] for line in PAGE.splitlines() if len(cells := line.strip("| ").split(" | ")) == 3
}


def test_every_end_of_the_table_is_tried() -> None:
    assert ENDS.keys() < CELLS.keys()
    at = PAGE.index("| the agent |")
    assert PAGE[at:].split("\n\n")[0].count("\n") == len(ENDS) + 1


@pytest.mark.parametrize("source", ["exitCode", "agent", "verifier", "trainer"])
@pytest.mark.parametrize("end", ENDS)
def test_the_table_of_ends_says_what_the_plan_decides(end: str, source: str) -> None:
    more = {"reward__verifier": {"container": {"command": ["x"]}}} if source == "verifier" else {}
    spec = plans.spec(reward={"source": source}, **more)
    reason, _ = failure(spec, plans.after(ENDS[end]), ENDS[end])
    cell = CELLS[end][0 if source == "exitCode" else 1]
    cell = CELLS[end][0] if cell == "the same" else cell
    if reason is None:
        assert cell in ("1.0", "ended well; the reward is the source's")
        return
    kind = FAILURE_CLASS[reason]
    assert cell.startswith((f"`{kind}/{reason}`", f"`{reason}`"))
    if source == "exitCode" and kind == "policy" and reason is not FailureReason.OOM_KILLED:
        assert cell.endswith("0.0, trained on")
        assert reward_of(spec, reason, "", ENDS[end], None).reward == 0.0
    assert ("masked" in cell) == (kind == "agent")


# -- its programs -----------------------------------------------------------------------------------------------------


def test_there_are_three_programs() -> None:
    assert [name for _, name, _ in SAMPLES] == ["agent.py", "ask.py", "server.py"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("part", "name", "program"), SAMPLES, ids=[name for _, name, _ in SAMPLES])
async def test_a_program_of_the_page_is_rewarded_for_what_the_model_said(
    tmp_path: Path, part: str, name: str, program: str
) -> None:
    async with lab(tmp_path, lambda ids, number: "yes" if number % 2 else "no") as here:
        (tmp_path / name).write_text(f"#{program}")
        manifest = yaml.safe_load(MANIFEST.replace("PYTHON", sys.executable))
        manifest["spec"] |= yaml.safe_load(part)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
        done = await here.run()
        assert done.code == 0, done.stderr
    rows = list(read_parquet(tmp_path / "out" / "trajectories.parquet"))
    assert sorted(row.reward or 0.0 for row in rows) == [0.0, 0.0, 1.0, 1.0]
    assert not any(row.masked for row in rows)
    assert {(row.reward, tinymodel.decode(row.response_ids)) for row in rows} == {
        (0.0, "no<|im_end|>"), (1.0, "yes<|im_end|>"),
    }  # fmt: skip
