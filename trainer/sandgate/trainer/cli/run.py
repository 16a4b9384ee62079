"""`sandgate run JOB.yaml`: the main job on this machine, without a cluster."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandgate.contract.errors import InvalidBody, NotFound, SandgateError, Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.trajectory import Json
from sandgate.trainer.cli import output
from sandgate.trainer.runs import folder
from sandgate.trainer.runs.finished import RESULT, finished, forget, identity, keep
from sandgate.trainer.runs.summary import summarize

if TYPE_CHECKING:
    from sandgate.contract.job import RolloutJob, Task
    from sandgate.operator.local.job import Counts, Event, JobResult
    from sandgate.trainer.cli.progress import Display

DEFAULT_OUT = Path("out")
"""Below the current directory; each job has a folder of its own there."""
LORA_TARGETS = "--lora-target-modules"
SLOW = 20
"""Tokens a second that one answer has at an engine with many: what takes longer than its session at that pace is worth
a word."""


def run(
    manifest: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A RolloutJob.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Everything goes here; default: out/NAME. Again = go on."),
    ] = None,
    engine_url: Annotated[
        str | None,
        typer.Option("--engine-url", metavar="URL", help="Use this engine, whatever the manifest says."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run samples that failed, and left no row, again.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run it anew: what earlier runs left in DIR is removed first.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say whether the job could run here, into DIR; start nothing."),
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Run a job on this machine: engine (if managed), gateway, agents; then a summary and trajectories.parquet.

    Ctrl-C lets running sessions end, a second one aborts them; running it again goes on, and a job that is complete is
    only reported. Exit code 0: every group is there; 1: the job failed or groups are missing; 2: it cannot run like
    this; 130: stopped by Ctrl-C before it was complete.
    """
    from sandgate.operator.local.job import load_job
    from sandgate.trainer.cli.progress import display

    output.check_url(engine_url, "--engine-url")
    job = load_job(manifest)
    asked = RunOptions(manifest, job, out or DEFAULT_OUT / job.metadata.name, engine_url)
    if not fresh and not dry_run and not retry_failed and tell_finished(asked, json=json):
        return
    tasks = ready(asked, dry_run=dry_run, fresh=fresh, json=json)
    if dry_run:
        return
    if fresh:
        anew(asked)
    stops = Stops()
    try:
        with display(quiet=json) as shown:
            ran = asyncio.run(_run(asked, tasks, shown, stops, retry_failed))
    except Unavailable as error:  # it was asked rightly, and did not happen
        output.error_line(error)
        raise typer.Exit(output.NOT_DONE) from None
    found = report(ran, asked)
    keep(asked.out, asked.identity, found)  # first: nobody may be reading
    tell_result(found, json=json)
    if not ran.result.complete:
        if ran.result.cause:
            output.error_line(SandgateError(ran.result.cause))
        raise typer.Exit(output.STOPPED if stops.count else output.NOT_DONE)


@dataclass(slots=True)
class RunOptions:
    """What was asked for."""

    manifest: Path
    job: RolloutJob
    out: Path
    engine_url: str | None
    base: Path = field(init=False)
    """What relative paths of the manifest begin at."""
    identity: str = field(init=False)
    """Of manifest and tasks, as they were when the command began."""

    def __post_init__(self) -> None:
        self.base = self.manifest.resolve().parent
        self.identity = identity(self.job, self.base)

    def names(self, *, merged: bool) -> dict[str, Json]:
        """For the report, as the person says them. `merged`: the job is over, and its rows are in one file."""
        return {
            "out": str(self.out),
            "trajectories_file": str(self.out / folder.TRAJECTORIES) if merged else None,
            "model": str(self.manifest.parent / self.job.spec.model.tokenizer),
        }


def tell_finished(asked: RunOptions, *, json: bool) -> bool:
    """True: this very job is complete in its folder, and was reported from there; nothing needs to be started. Not
    where a trainer waits for its groups: it needs gateways."""
    from sandgate.operator.local.job import awaited

    known = finished(asked.out, asked.identity)
    if known is None or awaited(asked.out):
        return False
    found = known.told | asked.names(merged=True) | {"finished_already": True}
    try:
        rows(found)
    except (KeyError, TypeError, ValueError):  # of another version, or edited
        return False
    tell_result(found, json=json, gone=known.gone)
    return True


def anew(asked: RunOptions) -> None:
    """Remove what earlier runs of the job left. Raises Conflict."""
    from sandgate.operator.local.fresh import clear

    clear(asked.out, asked.job.metadata.name, also=(folder.ORIGIN, RESULT))


def ready(asked: RunOptions, *, dry_run: bool, fresh: bool, json: bool) -> tuple[Task, ...] | None:
    """Look before anything starts; the tasks. Ends the command with all findings, each one line, if there are some."""
    from sandgate.operator.local.preflight import is_first, place_of, taken
    from sandgate.trainer.runs.preflight import preflight

    job = asked.job
    near = os.path.relpath(asked.base)  # as short as a person would say it
    base = asked.base if near.startswith("..") else Path(near)
    checked = asyncio.run(
        preflight(job, base, engine_url=asked.engine_url, anew=fresh or is_first(asked.out))
    )
    notes = [*warnings(job), *checked.notes]
    if dry_run and not checked.findings:  # a run finds it out when it claims the folder
        checked.findings += taken(asked.out, job, asked.base, checked.tasks or (), fresh=fresh)
    found = [(one, place_of(asked.manifest, one.field)) for one in checked.findings]
    for one, where in found:
        at = f" ({where})" if where and not one.field.startswith("--") else ""
        output.error_line(InvalidBody(one.text + at, field=one.field))
    groups = None if checked.tasks is None else len(checked.tasks)
    sessions = None if groups is None else groups * job.spec.group_size
    if json and (dry_run or found):
        rows = [{"field": one.field, "text": one.text, "place": where} for one, where in found]
        counts = {"groups": groups, "sessions": sessions}
        said = {"findings": rows, "notes": notes}
        output.as_json({"complete": False, "ready": not found, **counts, **said})
    elif dry_run and not found:
        much = "groups come from a trainer"
        if groups is not None and sessions is not None:
            much = f"{output.plural(sessions, 'session')} in {output.plural(groups, 'group')}"
        typer.echo(f"{job.metadata.name} can run here: {much}")
        for text in notes:
            typer.echo(f"note: {text}", err=True)
    if found:
        wrongly = any(one.asked_wrongly for one, _ in found)
        raise typer.Exit(output.ASKED_WRONGLY if wrongly else output.NOT_DONE)
    return checked.tasks


def warnings(job: RolloutJob) -> list[str]:
    """What stops no run, and may surprise."""
    managed = job.spec.engine.managed
    narrow = managed is not None and any(one.split("=")[0] == LORA_TARGETS for one in managed.args)
    text = f"spec.engine.managed.args: {LORA_TARGETS}: what it does not name of an adapter is passed over"
    return [*_long_answers(job), *([text] if narrow else [])]


def _long_answers(job: RolloutJob) -> list[str]:
    """One answer alone may be longer than its session, or than a gateway waits."""
    from sandgate.gateway.config import EngineConfig

    most, session_s = (
        job.spec.sampling.max_tokens or job.spec.model.max_model_len,
        job.spec.limits.session_seconds,
    )
    answer_s, turn_s = most / SLOW, EngineConfig().timeout_s
    if answer_s <= min(session_s, turn_s):
        return []
    end = f"a session has {session_s} s, and ends as SessionTimeout, which counts as the policy's"
    if turn_s < session_s:
        end = (
            f"a gateway waits {turn_s:g} s for one answer, and takes a longer one for a failure of the engine"
        )
    return [
        f"spec.limits.sessionSeconds: an answer of {most:,} tokens takes {answer_s:.0f} s at {SLOW} tokens/s; {end}. "
        "sampling.maxTokens bounds answers"
    ]


@dataclass(slots=True)
class Stops:
    """What Ctrl-C does: while nothing runs yet it ends the run; then once lets sessions end, twice aborts them, and a
    third time does not wait for anything."""

    count: int = 0
    started: bool = False
    """A session may run, or a trainer be there."""

    def handler(
        self, stop: asyncio.Event, abort: asyncio.Event, task: asyncio.Future[Any]
    ) -> Callable[[], None]:
        """For the loop's signal handlers."""

        def pressed() -> None:
            self.count += 1
            if not self.started or self.count > 2:
                task.cancel()
            else:
                (stop if self.count == 1 else abort).set()

        return pressed


@dataclass(slots=True)
class Ran:
    """A run that is over."""

    result: JobResult
    last: Counts | None
    """Of this run alone; `result` is of the whole job."""
    session: str
    """One that was seen to end and took a turn; empty if there was none."""
    turnless: str = ""
    """One that was seen to fail without a turn: there is a log, and nothing else to look at."""
    unjudged: str = ""
    """One whose verifier was seen to fail: what that printed says why."""


async def _run(
    asked: RunOptions, tasks: tuple[Task, ...] | None, shown: Display, stops: Stops, retry_failed: bool
) -> Ran:
    from sandgate.operator.local.job import (
        Counts,
        GatewayReady,
        SessionEnded,
        SessionStarted,
        TrainerNews,
        run_local,
    )
    from sandgate.trainer.export.arrow import merge_parquet, samples_in_parquet

    last: Counts | None = None
    session = turnless = unjudged = ""

    def tell(event: Event) -> None:
        nonlocal last, session, turnless, unjudged
        stops.started = stops.started or isinstance(event, SessionStarted | TrainerNews)
        if isinstance(event, Counts):
            last = event
        elif isinstance(event, SessionEnded):
            if event.failure_reason is FailureReason.VERIFIER_FAILED:
                unjudged = unjudged or event.session_id
            if event.turns:
                session = session or event.session_id
            elif event.failure_reason is not None:
                turnless = turnless or event.session_id
        elif isinstance(event, GatewayReady):  # the folder is ours now
            forget(asked.out)
            folder.remember(asked.out, asked.base / asked.job.spec.model.tokenizer)
        shown.tell(event)

    stop, abort = asyncio.Event(), asyncio.Event()
    running = asyncio.ensure_future(
        run_local(
            asked.job,
            manifest_dir=asked.base,
            out=asked.out,
            write_groups=folder.write_group,
            merge=merge_parquet,
            samples_in=samples_in_parquet,
            engine_url=asked.engine_url,
            progress=tell,
            stop=stop,
            abort=abort,
            tasks=tasks,
            retry_failed=retry_failed,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stops.handler(stop, abort, running))
    try:
        return Ran(await running, last, session, turnless, unjudged)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def report(ran: Ran, asked: RunOptions) -> dict[str, Json]:
    """What --json gives. Rewards, trajectories and tokens are of the rows that are written; sessions, turns, forks and
    failures of all attempts, retried ones included, and so is `attempts_sampled_tokens`; `tokens_per_s` of this run."""
    result = ran.result
    try:
        summary = summarize(folder.trajectories(asked.out, binary=False))
    except NotFound:
        summary = summarize([])
    numbers = summary.numbers(0.0)
    sampled = ran.last.sampled_tokens if ran.last else 0
    return {
        "complete": result.complete,
        "cause": result.cause or None,
        "missing_groups": result.missing_groups,
        **numbers,
        "sessions": result.sessions,
        "unscored": result.unscored,
        "turns": result.turns,
        "attempts_sampled_tokens": max(result.sampled_tokens, summary.sampled_tokens),
        "forks": result.forks,
        "failures": result.failures,
        "tracebacks": result.tracebacks,
        "restarts": result.restarts,
        "wall_s": round(result.seconds, 3),
        "tokens_per_s": round(sampled / result.seconds, 1) if result.seconds else None,
        "problems": list(result.problems),
        **asked.names(merged=result.trajectories is not None),
        "session": next(iter(summary.rewards), ran.session) or None,
        "turnless": ran.turnless or None,
        "unjudged": ran.unjudged or None,
    }


def tell_result(found: dict[str, Any], *, json: bool, gone: int = 0) -> None:
    """The summary, and what to try next. `gone`: files of groups that are missing beside the merged one."""
    if json:
        output.as_json(found)
        return
    output.table(rows(found), "run", "")
    # `turnless` and `unjudged`: a result that was kept by an older version has none
    looks = [
        ("show", found["session"], []),
        ("logs", None if found["session"] else found.get("turnless"), []),
        ("logs", found.get("unjudged"), ["--verifier"]),
    ]
    for look, session, more in looks:
        if not session:
            continue
        words = [command(), look, session, *more, "--out", found["out"]]
        typer.echo(f"next          {shlex.join(words)}")
    if gone:
        text = "file of groups/ is gone; its", "files of groups/ are gone; their"
        typer.echo(f"{output.plural(gone, *text)} rows are in {found['trajectories_file']}")
    if found.get("finished_already"):
        typer.echo("finished already; --fresh runs it anew")


def command() -> str:
    """How this program can be called again from this shell."""
    called = Path(sys.argv[0])
    known = shutil.which("sandgate")
    if called.name != "sandgate" or not called.is_file() or (known and called.samefile(known)):
        return "sandgate"
    near = os.path.relpath(called)
    return str(called) if near.startswith("..") else near


def rows(found: dict[str, Any]) -> list[dict[str, str]]:
    """The summary for people: every number with its unit, nothing that is empty."""
    reward = "-"
    if found["reward_mean"] is not None:
        scored = found.get("scored", found["sessions"])  # a result that was kept by an older version has none
        whom = "" if scored == found["sessions"] else f" of {output.plural(scored, 'scored session')}"
        reward = f"{found['reward_mean']:.3f} ± {found['reward_std']:.3f}, {found['solved']:.0%}{whom} solved"
    if found["unscored"]:
        reward = ", ".join([*([] if reward == "-" else [reward]), f"{found['unscored']:,} not scored"])
    failures = output.cell(found["failures"])
    if found["tracebacks"]:
        failures += f"; exit 1 with a traceback: {found['tracebacks']:,}"
    turns = output.cell(found["turns"])
    tokens = f"{found['sampled_tokens']:,} sampled, {found['context_tokens']:,} context"
    sampled = found.get("attempts_sampled_tokens", 0)
    if sampled > found["sampled_tokens"]:  # attempts that have no row, or none yet
        turns += " of all attempts"
        tokens += f" in the rows; {sampled:,} sampled by all attempts"
    lines = {
        "state": state(found),
        "sessions": f"{found['sessions']:,} in {output.plural(found['groups'], 'group')}",
        "reward": reward,
        "turns": turns,
        "tokens": tokens,
        "rate": f"{found['tokens_per_s'] or 0:,.1f} tokens/s, {found['wall_s']:.1f} s",
        "forks": output.cell(found["forks"]),
        "failures": failures,
        "restarts": output.cell(found["restarts"] or None),
        "problems": "; ".join(found["problems"]) or "-",
        "trajectories": f"{found['trajectories']:,} in {found['trajectories_file'] or found['out']}",
        "model": found["model"],
    }
    optional = {"restarts", "problems"}
    return [{"run": name, "": text} for name, text in lines.items() if not (name in optional and text == "-")]


def state(found: dict[str, Any]) -> str:
    """Of the job, and what to do about it."""
    if found["complete"]:
        return "complete"
    if found["cause"] and not found["missing_groups"] and found["trajectories"]:
        return "failed: each sample has its row; mend the cause, then run all of it anew with --fresh"
    if found["cause"]:
        return "failed: mend the cause, then run it again with --retry-failed"
    return "not complete: run it again to go on"
