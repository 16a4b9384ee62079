"""`sandgate status`, `sessions`, `forks`: what a job's sessions are doing, from a gateway or from a run's directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from sandgate.trainer.cli import say
from sandgate.trainer.sources import Source, source
from sandgate.trainer.trees import fork_rows

Job = Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job's sessions.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Look into the --out directory of `sandgate run`.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask this gateway.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", envvar="SANDGATE_KEY", help="Trainer or admin key for --url.", show_default=False),
]

SESSION_COLUMNS = (
    "session", "uid", "sample", "attempt", "state", "turns", "tokens", "reward", "forks", "failure",
)  # fmt: skip


def status(
    job: Job = "", out: Out = None, url: Url = None, key: KeyOption = None, json: say.AsJson = False
) -> None:
    """Counts over all sessions: states, turns, tokens, forks by reason, failures by reason."""
    found = count(source(out, url, key), job)
    if json:
        say.as_json(found)
    else:
        say.table([{"what": name, "value": value} for name, value in found.items()], "what", "value")


def count(where: Source, job: str) -> dict[str, Any]:
    """The numbers of `status`."""
    states: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for one in where.sessions(job):
        states[one["state"]] += 1
        forks.update(one["forks"])
        if one["failure_class"]:
            failures[f"{one['failure_class']}/{one['failure_reason']}"] += 1
        sums.update({name: one[name] for name in ("turns", "tokens", "sampled_tokens", "in_flight")})
    counts = {name: sums[name] for name in ("turns", "tokens", "sampled_tokens", "in_flight")}
    return {
        "sessions": dict(states),
        **counts,
        "forks": dict(forks.most_common()),
        "failures": dict(failures.most_common()),
    }


def sessions(
    job: Job = "", out: Out = None, url: Url = None, key: KeyOption = None, json: say.AsJson = False
) -> None:
    """One line per session."""
    found = list(source(out, url, key).sessions(job))
    if json:
        say.as_json(found)
    else:
        say.table([session_row(one) for one in found], *SESSION_COLUMNS)


def session_row(one: dict[str, Any]) -> dict[str, Any]:
    """A session's summary as a line of the table."""
    return one | {
        "session": one["session_id"],
        "sample": one["sample_index"],
        "failure": one["failure_reason"],
        "tokens": one["sampled_tokens"],
    }


def forks(
    job: Job = "", out: Out = None, url: Url = None, key: KeyOption = None, json: say.AsJson = False
) -> None:
    """Each break of token identity, with its reason. Exit code 1 if there is any."""
    where = source(out, url, key)
    found = [
        row
        for one in where.sessions(job)
        if one["forks"]
        for row in fork_rows(where.tree(one["session_id"], text=False))
    ]
    if json:
        say.as_json(found)
    elif found:
        say.table(found, "session", "uid", "sample", "turn", "left", "reason", "prompt_tokens")
    else:
        typer.echo("no forks: every turn's prompt begins with what was sampled before it")
    if found:
        raise typer.Exit(say.NOT_DONE)
