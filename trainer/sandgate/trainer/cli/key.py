"""`sandgate key`: a key for a gateway that was started by hand, from the secret that it reads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from sandgate.contract.errors import BadManifest
from sandgate.contract.keys import Key, Scope, mint
from sandgate.trainer.cli import output

SCOPES = (Scope.TRAINER, Scope.ADMIN)
"""A session's own keys come with the session."""
TTL_MAX_S = 10_000_000_000
"""Three hundred years."""
JOB_CHARS_MAX = 253
"""Of a session's job, in a gateway's API."""


def key(
    secret_file: Annotated[
        Path,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="The gateway's secret_file: hex, at least 16 bytes.",
            show_default=False,
        ),
    ],
    scope: Annotated[str, typer.Option("--scope", help="trainer or admin.")] = Scope.TRAINER.value,
    job: Annotated[str, typer.Option("--job", help="Of this job only; empty = of every job.")] = "",
    ttl_s: Annotated[float, typer.Option("--ttl", metavar="SECONDS", help="0 = it never expires.")] = 0.0,
    json: output.AsJson = False,
) -> None:
    """Print a key of the control API: whoever has the secret may make one. Give sessions theirs by creating them."""
    if scope not in SCOPES:
        raise BadManifest(f"--scope: {scope!r}; it may be {', '.join(SCOPES)}", field="--scope")
    if not 0 <= ttl_s <= TTL_MAX_S:  # also where it is no number
        raise BadManifest(f"--ttl: seconds from now, at most {TTL_MAX_S}, or 0", field="--ttl")
    if len(job) > JOB_CHARS_MAX or not job.isprintable():  # such as half of a character, of another encoding
        raise BadManifest(
            f"--job: a job's name; at most {JOB_CHARS_MAX} characters that can be printed", field="--job"
        )
    from sandgate.gateway.config import read_secret

    expires = time.time() + ttl_s if ttl_s else 0.0
    made = mint(read_secret(secret_file), Key(Scope(scope), job=job, expires_at=expires))
    if json:
        output.as_json({"key": made, "scope": scope, "job": job, "expires_at": expires or None})
    else:
        typer.echo(made)
