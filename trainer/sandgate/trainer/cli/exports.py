"""`sandgate export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sandgate.trainer import outdir
from sandgate.trainer.cli import say


class Format(StrEnum):
    """What trajectories can be written as."""

    PARQUET = "parquet"
    JSONL = "jsonl"


def export(
    out: say.OutDir,
    format: Annotated[Format, typer.Option("--format", help="File format.")] = Format.PARQUET,  # noqa: A002
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; default: trajectories.FORMAT in DIR.")
    ] = None,
    json: say.AsJson = False,
) -> None:
    """Write the trajectories of a run (DIR, or a Parquet file) in another format. The file is whole or not there."""
    from sandgate.trainer.export.arrow import write_parquet
    from sandgate.trainer.export.jsonl import write_jsonl

    write = {Format.PARQUET: write_parquet, Format.JSONL: write_jsonl}[format]
    found = outdir.trajectories(out)  # before the target's folder is made
    target = to or (out if out.is_file() else out / outdir.TRAJECTORIES).with_suffix(f".{format}")
    rows = write(target, found)
    if json:
        say.as_json({"path": str(target), "format": str(format), "trajectories": rows})
    else:
        typer.echo(f"{rows} trajectories -> {target}")
