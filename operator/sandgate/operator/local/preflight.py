"""Preflight of a local run: finds missing programs, bad tasks and a bad engine command before anything starts, and
tells all of them at once.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sandgate.contract.errors import BadRequest, Conflict
from sandgate.contract.job import ManagedEngineSpec, RolloutJob, Task
from sandgate.operator.driver.tasks import load_tasks
from sandgate.operator.local import engine
from sandgate.operator.local.folder import Folder, claimable
from sandgate.operator.local.fresh import clearable
from sandgate.operator.local.manifest import place_of as place_of
from sandgate.operator.local.sandboxes import base_env, check
from sandgate.operator.local.supervise import own_env
from sandgate.operator.manifests.vllm import served_name as served_name
from sandgate.sandbox.agents import container_env, expand_all
from sandgate.sandbox.process import StartFailed, resolve

TOKENIZER = "spec.model.tokenizer"
AGENT = "spec.agent.template.spec.containers[0]"
VERIFIER = "spec.reward.verifier.container"
MANAGED = "spec.engine.managed"
PARALLELISM = "spec.parallelism"

HAS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
HAS_VLLM_S = 20.0
"""It takes a tenth of a second; on a machine that is this busy nothing is said."""
SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path (sun_path, less its NUL)."""
VLLM_SOCKET = len("/sg-12345678/00000000-0000-0000-0000-000000000000")
"""What sockets.py and vLLM add to the folder for temporary files."""
DESCRIPTORS = 64
"""File descriptors of a run without sessions: 30 with one gateway, and what more gateways and trainers take."""
SESSION_DESCRIPTORS = 6
"""Of one session: its keeper's two lines and end, two pipes, its log."""
NAMES_MAX = 10_000
"""Of a folder, that are looked at for what may have been meant."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""ORGANISATION/MODEL."""
_PYTHON = re.compile(r"python[\d.]*$")
_PLAIN_FLAG = re.compile(r"-[bBdEiIOPqRsSuv]+$")
"""Options of `python` after which its script still comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One thing that would stop the run."""

    field: str
    """Of the manifest, or an option of the command."""
    text: str
    """One line; begins with the field."""
    asked_wrongly: bool = True
    """False: what was asked for is right, and is not there now."""


def found(field: str, why: str, *, asked_wrongly: bool = True) -> Obstacle:
    """A finding, in the form of a manifest's errors."""
    return Obstacle(field=field, text=f"{field}: {why}", asked_wrongly=asked_wrongly)


def said(error: BadRequest, field: str) -> Obstacle:
    """An error as a finding; `field`: if it names none."""
    return Obstacle(field=error.field or field, text=str(error))


def model_folder(job: RolloutJob, manifest_dir: Path) -> Obstacle | None:
    """Is the model folder that gateways will read there? No hub is asked for it. What it holds is another question."""
    folder = manifest_dir / job.spec.model.tokenizer
    if not folder.is_dir():
        what = "is a file; a model folder is needed"
        if not folder.exists():
            what = f"no such folder{meant(folder) or _of_hub(job.spec.model.tokenizer)}"
        return found(TOKENIZER, f"{folder}: {what}")
    if not (folder / "tokenizer.json").is_file():
        return found(TOKENIZER, f"{folder}: has no tokenizer.json")
    return None


def _of_hub(name: str) -> str:
    """What to do, if it looks like a hub's name."""
    if not _HUB_NAME.fullmatch(name):
        return ""
    return f"; a hub's name is no folder: download it first, hf download {name} --local-dir FOLDER"


def programs(job: RolloutJob, manifest_dir: Path) -> Iterator[Obstacle]:
    """Agent and verifier: can they be started? What a session alone knows (its key, its prompt) is left open."""
    try:
        check(job)
    except BadRequest as error:
        yield said(error, AGENT)
        return
    yield from program(AGENT, job.spec.agent.template["spec"]["containers"][0], manifest_dir)
    if job.spec.reward.verifier is not None:
        yield from program(VERIFIER, job.spec.reward.verifier.container, manifest_dir)


def descriptors_needed(job: RolloutJob, tasks: Sequence[Task] | None) -> int:
    """File descriptors that a run needs for the sessions that it may have at once. `tasks`: None if a trainer gives
    them."""
    at_once = job.spec.parallelism
    if tasks is not None and job.spec.tasks.queue is None:
        at_once = min(at_once, len(tasks) * job.spec.group_size)
    return DESCRIPTORS + at_once * SESSION_DESCRIPTORS


def files(
    job: RolloutJob, tasks: Sequence[Task] | None, most: int | None, *, anew: bool
) -> tuple[list[Obstacle], list[str]]:
    """What stands in the way, and notes: whether a process that may have `most` descriptors has those that the run
    needs (it raises the soft limit itself). `anew`: no earlier run did some of its samples. Where those are fewer than
    all, or come from a trainer, what runs at once may be less than `parallelism`, and nothing stands in the way."""
    needed, queue = descriptors_needed(job, tasks), job.spec.tasks.queue is not None
    if most is None or most >= needed or (tasks is None and not queue):
        return [], []
    fits = max((most - DESCRIPTORS) // SESSION_DESCRIPTORS, 0)
    why = f"{needed} file descriptors, and this process may have {most} (ulimit -Hn): enough for {fits}"
    if anew and not queue:
        return [found(PARALLELISM, f"needs {why}")], []
    return [], [found(PARALLELISM, f"may need {why}").text]


def is_first(out: Path) -> bool:
    """Whether no run began in this folder."""
    return not Folder(out).job_file().exists()


def program(field: str, container: Mapping[str, Any], manifest_dir: Path) -> Iterator[Obstacle]:
    """One of them: its working directory, its program by its own PATH, and the script that a `python` is given."""
    cwd = manifest_dir / container.get("workingDir", ".")
    if not cwd.is_dir():
        yield found(f"{field}.workingDir", f"{cwd}: no such folder{meant(cwd)}")
        return
    env = container_env(container.get("env") or [], base_env(Path("/")), {})
    argv = expand_all([*container["command"], *(container.get("args") or [])], env)
    yield from started(f"{field}.command", argv, env, cwd)


def started(field: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Iterator[Obstacle]:
    """Is the program there, and the script that a `python` is given?"""
    if "$(" in argv[0]:
        return
    try:
        resolve(argv[0], env, cwd)
    except StartFailed as error:
        yield found(field, f"{error}{_instead(cwd / argv[0]) if '/' in argv[0] else ''}")
        return
    script = script_of(argv)
    if script and not (cwd / script).exists():
        yield found(field, f"{cwd / script}: no such file{meant(cwd / script)}")


def _instead(program: Path) -> str:
    """What to do about a program that cannot be started."""
    return f"; chmod +x {program}" if program.is_file() else meant(program)


def script_of(argv: Sequence[str]) -> str:
    """The file that a Python is to run, if that can be said."""
    if not _PYTHON.match(Path(argv[0]).name):
        return ""
    for word in argv[1:]:
        if not _PLAIN_FLAG.match(word):
            return "" if word.startswith("-") or "$(" in word else word
    return ""


def tasks(job: RolloutJob, manifest_dir: Path) -> tuple[tuple[Task, ...] | None, list[Obstacle]]:
    """(the tasks, what is wrong with them). A queue has none yet."""
    if job.spec.tasks.queue is not None:
        return None, []
    try:
        return load_tasks(job.spec.tasks, manifest_dir), []
    except BadRequest as error:
        near = ""
        if isinstance(error.__cause__, FileNotFoundError) and job.spec.tasks.file is not None:
            near = meant(manifest_dir / job.spec.tasks.file)
        return None, [Obstacle(field=error.field or "spec.tasks", text=f"{error}{near}")]


def taken(
    out: Path, job: RolloutJob, manifest_dir: Path, tasks: Sequence[Task], *, fresh: bool
) -> list[Obstacle]:
    """Why a run could not use the folder `out` as it is now; starts and changes nothing there (SQLite's own files
    beside a journal may come). `fresh`: what earlier runs left would be removed first."""
    try:
        if fresh:
            clearable(out, job.metadata.name)
        else:
            claimable(Path(os.path.abspath(out)), job, manifest_dir, tasks)
    except Conflict as error:
        return [Obstacle(field="--out", text=str(error))]
    return []


def own_engine(job: RolloutJob, manifest_dir: Path) -> Iterator[Obstacle]:
    """How the job's engine is started, its model apart."""
    spec = job.spec.engine
    if spec.endpoints is not None:
        return
    if spec.managed is None:
        yield Obstacle(field="spec.engine.selector", text=engine.NO_PODS)
    elif spec.managed.command:
        yield from _command(spec.managed, manifest_dir)
    else:
        yield from _vllm(spec.managed)
        yield from against(job, spec.managed.args)


def against(job: RolloutJob, args: Sequence[str]) -> Iterator[Obstacle]:
    """Arguments of the job's own vLLM that overrule what gateways are told by the manifest: they would refuse it."""
    window, mode = job.spec.model.max_model_len, job.spec.engine.logprobs_mode.value
    said = flag(args, "--max-model-len")
    if said.isascii() and said.isdigit() and window > int(said):
        text = f"--max-model-len {said} is less than the model.maxModelLen of {window} that the job asks for"
        yield found(f"{MANAGED}.args", text)
    said = flag(args, "--logprobs-mode")
    if said and said != mode:
        text = f"--logprobs-mode {said}, but engine.logprobsMode is {mode}; say it there, and not here"
        yield found(f"{MANAGED}.args", text)


def flag(args: Sequence[str], name: str) -> str:
    """The value of an option: the last one counts, as vLLM reads it; empty if it is not there."""
    value = ""
    for index, word in enumerate(args):
        given, equals, after = word.partition("=")
        if given.replace("_", "-") == name:
            value = after if equals else "".join(args[index + 1 : index + 2])
    return value


def _command(managed: ManagedEngineSpec, manifest_dir: Path) -> Iterator[Obstacle]:
    words = (*managed.command, *managed.args)
    if not any("$(PORT)" in word for word in words):
        yield found(
            f"{MANAGED}.command", "has no $(PORT): the engine is asked on a port that is free when it starts"
        )
    env = own_env() | {"PATH": engine.own_path()} | managed.env
    yield from started(f"{MANAGED}.command", expand_all(words, env), env, manifest_dir)


def _vllm(managed: ManagedEngineSpec) -> Iterator[Obstacle]:
    for word in managed.args:
        if word.split("=", 1)[0] in ("--port", "--host"):
            yield found(
                f"{MANAGED}.args",
                f"{word}: the engine is asked on a loopback port that is free when it starts; leave it out",
            )
    python = engine.known_interpreter()
    if python is None:
        if not engine.SCRIPT.is_file():
            yield found(MANAGED, engine.NO_ENGINE)
    elif not os.access(python, os.X_OK):
        yield found(
            MANAGED, f"{python} is not a program; see SANDGATE_ENGINE_PYTHON and SANDGATE_ENGINE_VENV"
        )
    elif not has_vllm(python):
        yield found(MANAGED, f"{python} has no vllm; see SANDGATE_ENGINE_PYTHON and SANDGATE_ENGINE_VENV")
    if len(os.fsencode(tempfile.gettempdir())) + VLLM_SOCKET > SOCKET_PATH_MAX:
        yield found(
            MANAGED, f"{tempfile.gettempdir()} is too long for vLLM's sockets; set TMPDIR to a shorter path"
        )


def has_vllm(python: str) -> bool:
    """Blocks. True also if that cannot be said in time."""
    env = {name: value for name, value in own_env().items() if not name.startswith("PYTHON")}
    try:
        asked = subprocess.run(
            [python, "-c", HAS_VLLM], env=env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=HAS_VLLM_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False
    return asked.returncode == 0


def meant(path: Path) -> str:
    """`; did you mean NAME?`, by what stands where `path` should."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, NAMES_MAX) if entry.name != path.name]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""
