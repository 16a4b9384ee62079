"""`sandgate status`, `sessions`, `forks`, `trajectories`: what sessions did, in a cluster, at a gateway or in a
run's directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.cli import output
from sandgate.trainer.client.cluster import ClusterPlace, rollout_job
from sandgate.trainer.runs.sources import Cluster, Source, source
from sandgate.trainer.runs.trees import fork_rows

Job = Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job's sessions.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Look into the --out directory of `sandgate run`.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask this gateway.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="In a cluster; default the current one.")
]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", envvar="SANDGATE_KEY", help="Trainer or admin key for --url.", show_default=False),
]

SESSION_COLUMNS = (
    "session", "uid", "sample", "attempt", "state", "turns", "tokens", "reward", "forks", "roles", "failure",
)  # fmt: skip


def status(
    job: Job = "",
    out: Out = None,
    url: Url = None,
    key: KeyOption = None,
    namespace: Namespace = "",
    context: Context = "",
    json: output.AsJson = False,
) -> None:
    """Counts over all sessions: states, turns, tokens, forks by reason, turns by role, failures by reason."""
    place = ClusterPlace(namespace, context)
    where = source(out, url, key, place=place)
    found = conditions(job, place) if isinstance(where, Cluster) and job else {}
    found |= count(where, job)
    if json:
        output.as_json(found)
    else:
        output.table([{"what": name, "value": value} for name, value in found.items()], "what", "value")


def conditions(job: str, place: ClusterPlace) -> dict[str, Any]:
    """What the operator says of a RolloutJob: condition -> reason, or message where it has one."""
    said = rollout_job(job, place).get("status") or {}
    return {
        one["type"]: f"{one['status']} {one.get('message') or one.get('reason', '')}".strip()
        for one in said.get("conditions", ())
    }


SUMS = "turns", "tokens", "sampled_tokens", "in_flight", "special_tokens_in_text"
"""Numbers of a session that `status` adds up."""


def count(where: Source, job: str) -> dict[str, Any]:
    """The numbers of `status`."""
    states: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for one in where.sessions(job):
        states[one["state"]] += 1
        forks.update(one["forks"])
        roles.update(one.get("roles", {}))
        if one["failure_class"]:
            failures[f"{one['failure_class']}/{one['failure_reason']}"] += 1
        sums.update({name: one.get(name, 0) for name in SUMS})
    counts = {name: sums[name] for name in SUMS}
    return {
        "sessions": dict(states),
        **counts,
        "paused": where.paused(job),
        "forks": dict(forks.most_common()),
        "roles": dict(roles.most_common()),
        "failures": dict(failures.most_common()),
    }


def sessions(
    job: Job = "",
    out: Out = None,
    url: Url = None,
    key: KeyOption = None,
    namespace: Namespace = "",
    context: Context = "",
    json: output.AsJson = False,
) -> None:
    """One line per session."""
    found = list(source(out, url, key, place=ClusterPlace(namespace, context)).sessions(job))
    if json:
        output.as_json(found)
    else:
        output.table([session_row(one) for one in found], *SESSION_COLUMNS)


def session_row(one: dict[str, Any]) -> dict[str, Any]:
    """A session's summary as a line of the table. A reward that nobody learns from is no number there."""
    masked = one["reward"] is not None and one["failure_class"] not in (None, FailureClass.POLICY)
    return one | {
        "reward": "masked" if masked else one["reward"],
        "session": one["session_id"],
        "sample": one["sample_index"],
        "failure": one["failure_reason"],
        "tokens": one["sampled_tokens"],
    }


def forks(
    job: Job = "",
    out: Out = None,
    url: Url = None,
    key: KeyOption = None,
    namespace: Namespace = "",
    context: Context = "",
    json: output.AsJson = False,
) -> None:
    """Each break of token identity, with its reason. Exit code 1 if there is any."""
    where = source(out, url, key, place=ClusterPlace(namespace, context))
    found = [
        row
        for one in where.sessions(job)
        if one["forks"]
        for row in fork_rows(where.tree(one["session_id"], text=False))
    ]
    if json:
        output.as_json(found)
    elif found:
        output.table(found, "session", "uid", "sample", "turn", "left", "reason", "role", "prompt_tokens")
    else:
        typer.echo("no forks: every turn's prompt begins with what was sampled before it")
    if found:
        raise typer.Exit(output.NOT_DONE)


def trajectories(
    job: Job = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="The --out directory of `sandgate run`, or a Parquet file."
        ),
    ] = None,
    url: Url = None,
    key: KeyOption = None,
    namespace: Namespace = "",
    context: Context = "",
    json: output.AsJson = False,
) -> None:
    """One line per training row of sessions that are finalized. Takes no lease."""
    where = source(out, url, key, place=ClusterPlace(namespace, context))
    found = [trajectory_row(one) for one in where.trajectories(job)]
    if json:
        output.as_json(found)
    else:
        output.table(found, *TRAJECTORY_COLUMNS)


TRAJECTORY_COLUMNS = (
    "session_id", "trajectory_id", "uid", "sample_index", "reward", "turns", "prompt", "sampled", "context",
    "fork_reason", "role", "main", "failure_reason",
)  # fmt: skip


def trajectory_row(one: Trajectory) -> dict[str, Any]:
    """A trajectory in numbers."""
    sampled = one.loss_mask.count(1)
    return {
        "session_id": one.session_id,
        "trajectory_id": one.trajectory_id,
        "uid": one.uid,
        "sample_index": one.sample_index,
        "attempt": one.attempt,
        "reward": one.reward,
        "turns": len(one.turn_ids),
        "prompt": len(one.prompt_ids),
        "sampled": sampled,
        "context": len(one.response_ids) - sampled,
        "finish_reason": one.finish_reason,
        "fork_reason": one.fork_reason,
        "role": one.role,
        "main": one.main,
        "failure_class": one.failure_class,
        "failure_reason": one.failure_reason,
        "complete": one.complete,
    }
