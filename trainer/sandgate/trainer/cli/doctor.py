"""`sandgate doctor`: checks whether a model and an engine are fit for exact rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.cli import output
from sandgate.trainer.doctor.findings import Finding, as_rows

if TYPE_CHECKING:
    import httpx

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def doctor(
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="Model folder: tokenizer, template, configs."),
    ] = None,
    engine_url: Annotated[
        str | None, typer.Option("--engine-url", metavar="URL", help="A running vLLM.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Check a model folder and a running engine, and say what to fix. Exit code 1 when a check fails."""
    findings = list(examine(model, engine_url))
    if json:
        output.as_json(as_rows(findings))
    else:
        output.console().print(report(findings))
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(output.NOT_DONE)


def examine(
    folder: Path | None, url: str | None, transport: httpx.BaseTransport | None = None
) -> Iterator[Finding]:
    """What all checks found. Raises InvalidBody if there is nothing to check."""
    import httpx

    from sandgate.trainer.doctor.asked import CheckedEngine
    from sandgate.trainer.doctor.engine import TIMEOUT_S, check_engine
    from sandgate.trainer.doctor.model import CheckedModel, check_model, positions

    if folder is None and url is None:
        raise InvalidBody("say what to check: --model DIR, --engine-url URL or both", field="--model")
    output.check_url(url, "--engine-url")
    model = CheckedModel(folder) if folder is not None else None
    if model is not None:
        yield from check_model(model)
    if url is not None:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False, transport=transport) as http:
            engine = CheckedEngine(http, model.codec if model else None)
            yield from check_engine(engine, positions=positions(model) if model else 0)


def report(findings: list[Finding]) -> Table:
    """The table, and below each finding that needs it what to do."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "", "found"):
        shown.add_column(column)
    for finding in findings:
        shown.add_row(finding.check, Text(finding.verdict, STYLES[finding.verdict]), Text(finding.detail))
        if finding.fix:
            shown.add_row("", "", Text(f"-> {finding.fix}", "italic"))
    return shown
