"""`sandgate run JOB.yaml`: the main job on this machine, without a cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandgate.contract.errors import InvalidBody, NotFound, SandgateError, Unavailable
from sandgate.contract.trajectory import Json
from sandgate.trainer import outdir
from sandgate.trainer.cli import say
from sandgate.trainer.summary import summarize

if TYPE_CHECKING:
    from sandgate.contract.job import RolloutJob
    from sandgate.operator.drivers.local import Counts, Event, JobResult
    from sandgate.trainer.cli.progress import Display

DEFAULT_OUT = Path("out")
"""Below the current directory; each job has a folder of its own there."""
ENGINE_S = 10.0
"""How long an engine that should be up may take to answer."""
ENGINE_POLL_S = 0.5


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
    json: say.AsJson = False,
) -> None:
    """Run a job on this machine: engine (if managed), gateway, agents; then a summary and trajectories.parquet.

    Ctrl-C lets running sessions end, a second one aborts them; running it again goes on. Exit code 0: every group is
    there; 1: the job failed or groups are missing; 130: stopped by Ctrl-C before it was complete.
    """
    from sandgate.operator.drivers.local import load_job
    from sandgate.trainer.cli.progress import display

    if engine_url is not None and not engine_url.startswith(("http://", "https://")):
        raise InvalidBody(f"{engine_url!r} is not an http URL", field="--engine-url")
    job = load_job(manifest)
    folder = out or DEFAULT_OUT / job.metadata.name
    stops = Stops()
    try:
        with display(quiet=json) as shown:
            ran = asyncio.run(
                _run(job, manifest.resolve().parent, folder, engine_url, shown, stops, retry_failed)
            )
    except Unavailable as error:  # it was asked rightly, and did not happen
        say.error_line(error)
        raise typer.Exit(say.NOT_DONE) from None
    found = report(ran, folder, str(manifest.parent / job.spec.model.tokenizer))
    if json:
        say.as_json(found)
    else:
        say.table(rows(found), "run", "")
    if not ran.result.complete:
        if ran.result.cause:
            say.error_line(SandgateError(ran.result.cause))
        raise typer.Exit(say.STOPPED if stops.count else say.NOT_DONE)


@dataclass(slots=True)
class Stops:
    """What Ctrl-C does: while nothing runs yet it ends the run; then once lets sessions end, twice aborts them, and a
    third time does not wait for anything."""

    count: int = 0
    started: bool = False
    """A session may run."""

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


async def _run(
    job: RolloutJob,
    base: Path,
    out: Path,
    engine_url: str | None,
    shown: Display,
    stops: Stops,
    retry_failed: bool,
) -> Ran:
    from sandgate.operator.drivers.local import Counts, GatewayReady, SessionStarted, run_local
    from sandgate.trainer.export.arrow import merge_parquet, samples_in_parquet, write_parquet

    last: Counts | None = None

    def tell(event: Event) -> None:
        nonlocal last
        stops.started = stops.started or isinstance(event, SessionStarted)
        if isinstance(event, Counts):
            last = event
        elif isinstance(event, GatewayReady):  # the folder is ours now
            outdir.remember(out, base / job.spec.model.tokenizer)
        shown.tell(event)

    await answering([engine_url] if engine_url else list(job.spec.engine.endpoints or ()))
    stop, abort = asyncio.Event(), asyncio.Event()
    running = asyncio.ensure_future(
        run_local(
            job,
            manifest_dir=base,
            out=out,
            write_groups=write_parquet,
            merge=merge_parquet,
            samples_in=samples_in_parquet,
            engine_url=engine_url,
            progress=tell,
            stop=stop,
            abort=abort,
            retry_failed=retry_failed,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stops.handler(stop, abort, running))
    try:
        return Ran(await running, last)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def answering(urls: list[str]) -> None:
    """One of the engines that should be up answers within ENGINE_S. Raises Unavailable: a typing error in a URL is told
    now, not after the gateway's long patience with engines that restart."""
    if not urls:
        return
    import httpx

    why = ""
    async with httpx.AsyncClient(timeout=ENGINE_S, trust_env=False) as http:
        end = asyncio.get_running_loop().time() + ENGINE_S
        while asyncio.get_running_loop().time() < end:
            for url in urls:
                try:
                    await http.get(f"{url.rstrip('/')}/health")
                    return
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    why = f"{url}: {error}"
            await asyncio.sleep(ENGINE_POLL_S)
    raise Unavailable(f"no engine answers: {why}")


def report(ran: Ran, out: Path, model: str) -> dict[str, Json]:
    """What --json gives. Rewards, trajectories and tokens are of the rows that are written; sessions, turns, forks and
    failures of all attempts, retried ones included; `tokens_per_s` of this run."""
    result = ran.result
    try:
        numbers = summarize(outdir.trajectories(out)).numbers(0.0)
    except NotFound:
        numbers = summarize([]).numbers(0.0)
    sampled = ran.last.sampled_tokens if ran.last else 0
    return {
        "complete": result.complete,
        "cause": result.cause or None,
        "missing_groups": result.missing_groups,
        **numbers,
        "sessions": result.sessions,
        "turns": result.turns,
        "forks": result.forks,
        "failures": result.failures,
        "tracebacks": result.tracebacks,
        "restarts": result.restarts,
        "wall_s": round(result.seconds, 3),
        "tokens_per_s": round(sampled / result.seconds, 1) if result.seconds else None,
        "problems": list(result.problems),
        "out": str(out),
        "trajectories_file": str(out / outdir.TRAJECTORIES) if result.trajectories else None,
        "model": model,
    }


def rows(found: dict[str, Any]) -> list[dict[str, str]]:
    """The summary for people: every number with its unit, nothing that is empty."""
    reward = "-"
    if found["reward_mean"] is not None:
        reward = f"{found['reward_mean']:.3f} ± {found['reward_std']:.3f}, {found['solved']:.0%} solved"
    failures = say.cell(found["failures"])
    if found["tracebacks"]:
        failures += f"; exit 1 with a traceback: {found['tracebacks']:,}"
    lines = {
        "state": state(found),
        "sessions": f"{found['sessions']:,} in {say.plural(found['groups'], 'group')}",
        "reward": reward,
        "turns": say.cell(found["turns"]),
        "tokens": f"{found['sampled_tokens']:,} sampled, {found['context_tokens']:,} context",
        "rate": f"{found['tokens_per_s'] or 0:,.1f} tokens/s, {found['wall_s']:.1f} s",
        "forks": say.cell(found["forks"]),
        "failures": failures,
        "restarts": say.cell(found["restarts"] or None),
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
    if found["cause"]:
        return "failed: mend the cause, then run it again with --retry-failed"
    return "not complete: run it again to go on"
