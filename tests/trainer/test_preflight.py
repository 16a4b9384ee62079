"""What would stop a run is said before anything starts: all of it, each in one line that names field and line."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandgate.contract.errors import BadManifest
from sandgate.operator.local.job import ignore
from sandgate.operator.local.manifest import parse_job
from sandgate.operator.local.preflight import files, tasks
from sandgate.operator.local.serve import serve_local
from sandgate.trainer import tinymodel
from sandgate.trainer.cli.command import app
from sandgate.trainer.cli.run import warnings
from sandgate.trainer.runs import preflight
from tests.trainer.jobs import AGENT, MANIFEST, lab

PYTHON = sys.executable
ENGINE = 'engine: {endpoints: ["http://127.0.0.1:9"]}'
AGENT_LINE = "command: [PYTHON, agent.py]"
VERIFIED = (
    "reward: {source: exitCode}",
    "reward: {source: verifier, verifier: {container: {name: v, image: none, command: [judge]}}}",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that could run, with an engine of its own."""
    monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", PYTHON)
    monkeypatch.setattr("sandgate.operator.local.preflight.has_vllm", lambda python: True)
    tinymodel.write_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


def asked(folder: Path, *changes: tuple[str, str], words: tuple[str, ...] = ("--dry-run",)) -> Any:
    """`sandgate run` of the manifest with a managed engine, changed."""
    text = MANIFEST.replace(ENGINE, "engine: {managed: {gpus: 0}}")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (folder / "job.yaml").write_text(text.replace("PYTHON", PYTHON))
    return CliRunner().invoke(app, ["run", str(folder / "job.yaml"), "--out", str(folder / "out"), *words])


def managed(text: str) -> tuple[str, str]:
    return "managed: {gpus: 0}", f"managed: {{gpus: 0, {text}}}"


WRONG: dict[str, tuple[list[tuple[str, str]], str]] = {
    "a model folder that is not there": (
        [("tokenizer: model", "tokenizer: modle")],
        "error: spec.model.tokenizer: DIR/modle: no such folder; did you mean model? (DIR/job.yaml:5)"
        " [field spec.model.tokenizer]",
    ),
    "a tasks file of nearly that name": (
        [('{inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}', "{file: agent.pyl}")],
        "error: spec.tasks.file: DIR/agent.pyl: No such file or directory; did you mean agent.py?",
    ),
    "a hub's name for a model folder": (
        [("tokenizer: model", "tokenizer: Qwen/Qwen3-0.6B")],
        "error: spec.model.tokenizer: DIR/Qwen/Qwen3-0.6B: no such folder; a hub's name is no folder: download it"
        " first, hf download Qwen/Qwen3-0.6B --local-dir FOLDER (DIR/job.yaml:5)"
        " [field spec.model.tokenizer]",
    ),
    "a file for a model folder": (
        [("tokenizer: model", "tokenizer: agent.py")],
        "error: spec.model.tokenizer: DIR/agent.py: is a file; a model folder is needed (DIR/job.yaml:5)"
        " [field spec.model.tokenizer]",
    ),
    "a folder without a tokenizer": (
        [("tokenizer: model", "tokenizer: .")],
        "error: spec.model.tokenizer: DIR: has no tokenizer.json (DIR/job.yaml:5) [field spec.model.tokenizer]",
    ),
    "a renderer that does not exist": (
        [("tokenizer: model", "tokenizer: model, renderer: qwen99")],
        "error: spec.model.renderer: ",
    ),
    "weights that no hub is asked for": (
        [managed("model: Qwen/Qwen3-0.6B")],
        "error: spec.engine.managed.model: DIR/Qwen/Qwen3-0.6B: no such folder, and Qwen/Qwen3-0.6B is not in ",
    ),
    "an agent that is not on PATH": (
        [(AGENT_LINE, "command: [pythonx, agent.py]")],
        "error: spec.agent.template.spec.containers[0].command: pythonx is not on PATH (DIR/job.yaml:12)"
        " [field spec.agent.template.spec.containers[0].command]",
    ),
    "an agent that is not executable": (
        [(AGENT_LINE, "command: [./agent.py]")],
        "error: spec.agent.template.spec.containers[0].command: ./agent.py is not an executable file;"
        " chmod +x DIR/agent.py (DIR/job.yaml:12)",
    ),
    "a folder for an agent": (
        [(AGENT_LINE, "command: [./model]")],
        "error: spec.agent.template.spec.containers[0].command: ./model is not an executable file (DIR/job.yaml:12)",
    ),
    "a name that is nearly an agent's": (
        [(AGENT_LINE, "command: [./agnet.py]")],
        "error: spec.agent.template.spec.containers[0].command: ./agnet.py is not an executable file; did you mean"
        " agent.py? (DIR/job.yaml:12)",
    ),
    "a script that is not there": (
        [(AGENT_LINE, "command: [PYTHON, -u, agnet.py]")],
        "error: spec.agent.template.spec.containers[0].command: DIR/agnet.py: no such file; did you mean agent.py?",
    ),
    "a working directory that is not there": (
        [(AGENT_LINE, f"{AGENT_LINE}, workingDir: work")],
        "error: spec.agent.template.spec.containers[0].workingDir: DIR/work: no such folder",
    ),
    "a Secret without a cluster": (
        [(AGENT_LINE, f"env: [{{name: A, valueFrom: {{secretKeyRef: {{name: s, key: k}}}}}}], {AGENT_LINE}")],
        "error: spec.agent.template.spec.containers[0].env[0].valueFrom: there is nothing to refer to",
    ),
    "a verifier that is not on PATH": (
        [VERIFIED],
        "error: spec.reward.verifier.container.command: judge is not on PATH (DIR/job.yaml:13)",
    ),
    "a task file that is not there": (
        [('{inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}', "{file: tasks.jsonl}")],
        "error: spec.tasks.file: DIR/tasks.jsonl: No such file or directory (DIR/job.yaml:7)",
    ),
    "pods without a cluster": (
        [("{managed: {gpus: 0}}", "{selector: {matchLabels: {app: vllm}, port: 8000}}")],
        "error: spec.engine.selector: there are no pods without a cluster",
    ),
    "a port of the engine's own": (
        [managed("args: [--port=8000]")],
        "error: spec.engine.managed.args: --port=8000: the engine is asked on a loopback port",
    ),
    "an engine's window that is less than the job's": (
        [("tokenizer: model}", "tokenizer: model, maxModelLen: 4096}"), managed("args: [--max-model-len=2048]")],
        "error: spec.engine.managed.args: --max-model-len 2048 is less than the model.maxModelLen of 4096 that the job"
        " asks for (DIR/job.yaml:6)",
    ),
    "an engine's logprobs of another mode": (
        [managed("args: [--logprobs-mode, raw_logprobs]")],
        "error: spec.engine.managed.args: --logprobs-mode raw_logprobs, but engine.logprobsMode is processed_logprobs;"
        " say it there, and not here (DIR/job.yaml:6)",
    ),
    "an engine's command that is not there": (
        [managed('command: [vlllm, "$(PORT)"]')],
        "error: spec.engine.managed.command: vlllm is not on PATH (DIR/job.yaml:6)",
    ),
    "an engine's command that is not told its port": (
        [managed('command: [PYTHON, agent.py]')],
        "error: spec.engine.managed.command: has no $(PORT)",
    ),
    "an SGLang that is to be started": (
        [("{managed: {gpus: 0}}", "{kind: sglang, managed: {gpus: 0}}")],
        "error: spec.engine.kind: a managed engine is vLLM: start SGLang yourself, and name it in endpoints or "
        "selector (DIR/job.yaml:6)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line(folder: Path, changes: list[tuple[str, str]], line: str) -> None:
    for words in ((), ("--dry-run",)):
        said = asked(folder, *changes, words=words)
        assert said.stderr.startswith(line.replace("DIR", str(folder))), said.output
        assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert not (folder / "out").exists()


def test_everything_that_is_wrong_is_said_together(folder: Path) -> None:
    changes = [("tokenizer: model", "tokenizer: modle"), (AGENT_LINE, "command: [pythonx]"), VERIFIED]
    said = asked(folder, *changes, managed("args: [--host=0.0.0.0]"))
    assert [line.split(": ")[1] for line in said.stderr.splitlines()] == [
        "spec.model.tokenizer",
        "spec.agent.template.spec.containers[0].command",
        "spec.reward.verifier.container.command",
        "spec.engine.managed.args",
    ]
    told = json.loads(asked(folder, *changes, words=("--json",)).stdout)
    assert (told["complete"], told["ready"], told["sessions"], len(told["findings"])) == (False, False, 4, 3)
    assert told["findings"][0]["place"] == f"{folder}/job.yaml:5"


def test_a_job_that_could_run_is_not_started(folder: Path) -> None:
    said = asked(folder)
    assert (said.exit_code, said.stderr) == (0, "")
    assert said.stdout == "ask can run here: 4 sessions in 2 groups\n"
    told = json.loads(asked(folder, words=("--dry-run", "--json")).stdout)
    assert told == {"complete": False, "ready": True, "groups": 2, "sessions": 4, "findings": [], "notes": []}
    assert not (folder / "out").exists()


TASKS = 'tasks: {inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}'
MANY = ("parallelism: 2", "parallelism: 300")
NOTED = "may need "
ENDS = "s, and ends as SessionTimeout, which counts as the policy's"
LONG: dict[str, tuple[str, str, str]] = {
    "an answer that is longer than its session": (
        "maxModelLen: 32768", "{}", f"32,768 tokens takes 1638 s at 20 tokens/s; a session has 900 {ENDS}",
    ),
    "a short session": (
        "maxModelLen: 4096", "{sessionSeconds: 200}",
        f"4,096 tokens takes 205 s at 20 tokens/s; a session has 200 {ENDS}",
    ),
    "one that fits": ("maxModelLen: 16384", "{}", ""),
    "a window that nobody said": ("maxModelLen: 0", "{sessionSeconds: 10}", ""),
    "one that is longer than a gateway waits": (
        "maxModelLen: 65536", "{sessionSeconds: 7200}",
        "65,536 tokens takes 3277 s at 20 tokens/s; a gateway waits 1800 s for one answer",
    ),
    "answers that are bounded": ("maxModelLen: 32768}\n  sampling: {maxTokens: 512", "{}", ""),
}  # fmt: skip


@pytest.mark.parametrize(("model", "limits", "note"), LONG.values(), ids=LONG)
def test_an_answer_that_may_take_longer_than_its_session_is_said(
    folder: Path, model: str, limits: str, note: str
) -> None:
    changes = [("tokenizer: model}", f"tokenizer: model, {model}}}\n  limits: {limits}")]
    said = asked(folder, *changes)
    assert said.exit_code == 0, said.stderr
    assert note in said.stderr
    assert bool(note) == said.stderr.startswith("note: spec.limits.sessionSeconds: an answer of ")
    told = json.loads(asked(folder, *changes, words=("--dry-run", "--json")).stdout)
    assert [f"note: {text}\n" for text in told["notes"]] == ([said.stderr] if note else [])


QUEUE = (TASKS, "tasks: {queue: {}}")
FILES: dict[str, tuple[list[tuple[str, str]], int | None, bool, str]] = {
    "no limit": ([], None, True, ""),
    "enough for all samples, and not for parallelism": ([MANY], 100, True, ""),
    "too few for the samples": ([MANY], 87, True, "needs 88 file descriptors, and this process may have 87"),
    "too few for all samples, of which an earlier run may have some": ([MANY], 87, False, NOTED),
    "too few for parallelism, and a trainer gives tasks": ([MANY, QUEUE], 1_863, True, NOTED),
    "enough for parallelism, and a trainer gives tasks": ([MANY, QUEUE], 1_864, True, ""),
    "tasks that cannot be read are refused themselves": (
        [MANY, (TASKS, "tasks: {file: none.jsonl}")],
        87,
        True,
        "",
    ),
}


@pytest.mark.parametrize(("changes", "most", "anew", "says"), FILES.values(), ids=FILES)
def test_a_hard_limit_refuses_only_what_surely_needs_more(
    folder: Path, changes: list[tuple[str, str]], most: int | None, anew: bool, says: str
) -> None:
    text = MANIFEST
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    job = parse_job(text)
    refused, noted = files(job, tasks(job, folder)[0], most, anew=anew)
    assert [one.field for one in refused] == (["spec.parallelism"] if says and says is not NOTED else [])
    told = "".join([*(one.text for one in refused), *noted])
    assert told.startswith(f"spec.parallelism: {says}" if says else "")
    assert bool(told) == bool(says)


def test_an_argument_by_which_layers_of_adapters_are_passed_over_is_said() -> None:
    args = "[--enable-lora, --lora-target-modules, q_proj]"
    engine = 'engine: {endpoints: ["http://127.0.0.1:9"]}'
    assert engine in MANIFEST
    job = parse_job(MANIFEST.replace(engine, f"engine: {{managed: {{image: v, args: {args}}}}}"))
    (note,) = warnings(job)
    assert note.startswith("spec.engine.managed.args: --lora-target-modules")


RIGHT = {
    "a program that only the session's own variables name": (AGENT_LINE, 'command: ["$(OPENAI_BASE_URL)"]'),
    "a module": (AGENT_LINE, "command: [PYTHON, -m, agent]"),
    "code": (AGENT_LINE, "command: [PYTHON, -c, pass]"),
    "a program by its own PATH": (
        AGENT_LINE, 'env: [{name: PATH, value: "DIR/bin"}], command: [judge]',
    ),
    "an engine's own program that is told its port": managed('command: [PYTHON, agent.py, "--on=$(PORT)"]'),
    "weights beside the manifest": managed("model: model"),
    "weights in the local cache": managed("model: Qwen/Qwen3-0.6B, env: {HF_HUB_CACHE: DIR/hub}"),
    "weights of a hub that the manifest allows": managed('model: a/b, env: {HF_HUB_OFFLINE: "0"}'),
    "a queue, which a trainer fills": (
        '{inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}', "{queue: {}}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_nothing_is_said_of_what_may_be_right(folder: Path, change: tuple[str, str]) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "judge").symlink_to("/bin/true")
    snapshot = folder / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    said = asked(folder, (change[0], change[1].replace("DIR", str(folder))))
    assert (said.exit_code, said.stderr) == (0, "")


def without_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "tokenizer_config.json").write_text("{}")


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "no chat template": (without_template, "spec.model.renderer: no codec for "),
    "a tokenizer that is none": (lambda model: (model / "tokenizer.json").write_text("[]"), "is no tokenizer"),
    "no weights": (lambda model: (model / "config.json").unlink(), "has no config.json"),
    "a config that is cut off": (lambda model: (model / "config.json").write_text('{"a'), "config.json is not JSON"),
    "a config that is a list": (lambda model: (model / "config.json").write_text("[]"), "config.json is no JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "text"), HARM.values(), ids=HARM)
def test_a_model_folder_is_looked_into(folder: Path, harm: Callable[[Path], object], text: str) -> None:
    harm(folder / "model")
    said = asked(folder)
    assert text in said.stderr
    assert (said.exit_code, said.stderr.count("\n")) == (2, 1)


def test_an_engine_without_vllm_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for python, why in (("/nowhere/python", "is not a program"), (PYTHON, "has no vllm")):
        monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", python)
        said = asked(folder)
        assert f"error: spec.engine.managed: {python} {why}" in said.stderr
        assert said.exit_code == 2
    monkeypatch.delenv("SANDGATE_ENGINE_PYTHON")
    monkeypatch.setenv("TMPDIR", f"/tmp/{'long' * 20}")
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{'long' * 20}")
    assert "too long for vLLM's sockets" in asked(folder).stderr


async def test_a_name_that_the_engine_does_not_serve_is_told_with_those_it_serves(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        path = tmp_path / "job.yaml"
        path.write_text(path.read_text().replace("name: tiny", "name: tinny"))
        done = await here.run()
        assert (done.code, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: --engine-url: {here.url} does not serve tinny; it serves tiny; see spec.engine.model"
            " [field --engine-url]\n"
        )
        path.write_text(path.read_text().replace("engine: {", "engine: {model: tiny, "))
        assert (await here.run("--dry-run")).code == 0
        assert here.player.counts["generations"] == 0


async def test_an_engine_whose_logprobs_are_of_another_mode_is_told_before_anything_starts(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        here.player.logprobs_mode = "raw_logprobs"
        for words in (["--dry-run"], []):
            done = await here.run(*words)
            assert (done.code, done.stdout) == (2, "")
            assert done.stderr.startswith(
                f"error: --engine-url: {here.url}: its logprobs are raw, but engine.logprobsMode is processed_logprobs"
            )
            assert "start it with --logprobs-mode processed_logprobs" in done.stderr
        path = tmp_path / "job.yaml"
        path.write_text(path.read_text().replace("engine: {", "engine: {logprobsMode: raw_logprobs, "))
        assert (await here.run("--dry-run")).code == 0
        assert here.player.counts["generations"] == 0


async def test_an_engine_that_takes_fewer_tokens_is_told_before_anything_starts(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        path, most = tmp_path / "job.yaml", here.player.max_model_len
        path.write_text(
            path.read_text().replace("tokenizer: model", f"tokenizer: model, maxModelLen: {most + 1}")
        )
        done = await here.run("--dry-run")
        assert (done.code, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: spec.model.maxModelLen: {most + 1} is more than the {most} tokens that {here.url} takes"
            " (job.yaml:5) [field spec.model.maxModelLen]\n"
        )


async def test_an_engine_that_does_not_answer_is_not_asked_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "ENGINE_S", 0.1)
    async with lab(tmp_path, ["yes"]) as here:
        words = ["run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--dry-run"]
        said = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert (said.exit_code, said.stdout) == (1, "")
        assert said.stderr.startswith("error: no engine answers: http://127.0.0.1:9")
        served, found = await preflight.engines([here.url, "http://127.0.0.1:9"], "f", "tiny", 0.0)
        assert found == [], "one that answers is enough"
        assert served == {here.url: {"tiny": 32768}}, "asked once, for names and windows"
        _, (slip,) = await preflight.engines([f"{here.url}/v1"], "f", "tiny", 0.0)
        assert slip.text.endswith(
            "answers 404 at /health, so no vLLM server is up there; give it without /v1"
        )


UNREACHED = {
    "a port that is none": "http://127.0.0.1:99999",
    "a name that is none": "http://nobody.invalid",
    "a name that IDNA refuses": "http://xn--a:80",
    "an address that is none": "http://[::::]:80",
    "nothing at the port": "http://127.0.0.1:9",
    "no TLS at the port": "https://127.0.0.1:PORT",
}


@pytest.mark.parametrize("url", UNREACHED.values(), ids=UNREACHED)
async def test_whatever_keeps_an_engine_from_answering_is_a_sentence(tmp_path: Path, url: str) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        url = url.replace("PORT", here.url.rpartition(":")[2])
        _, (said,) = await preflight.engines([url], "spec.engine.endpoints", "tiny", 0.0)
    assert (said.field, said.asked_wrongly) == ("spec.engine.endpoints", False)
    assert re.match(rf"no engine answers: {re.escape(url)}: \S", said.text), said.text
    assert "TaskGroup" not in said.text


async def test_gateways_without_agents_do_not_start_without_a_model_either(tmp_path: Path) -> None:
    job = parse_job(MANIFEST.replace("tokenizer: model", "tokenizer: modle"))
    with pytest.raises(BadManifest, match=r"spec\.model\.tokenizer: .*/modle: no such folder"):
        async with serve_local(job, manifest_dir=tmp_path, out=tmp_path / "out", progress=ignore):
            pass
    assert not (tmp_path / "out").exists()
