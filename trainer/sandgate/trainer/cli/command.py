"""`sandgate ...`: each command parses, calls one function, and says the result to a person or, with --json, to a pipe.

Exit codes: 0 what was asked for happened; 1 it did not; 2 it was asked wrongly (one line `error: ...` on stderr, never
a traceback); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from io import TextIOWrapper
from typing import Annotated

import typer

from sandgate.trainer.cli import (
    crds,
    doctor,
    exports,
    inspect,
    key,
    logs,
    output,
    render_manifest,
    run,
    serve,
    show,
)

app = typer.Typer(
    cls=output.Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="On-policy RL rollouts from any agent that speaks OpenAI or Anthropic.",
)
app.command("run")(run.run)
app.command("show")(show.show)
app.command("logs")(logs.logs)
app.command("crds")(crds.crds)
app.command("doctor")(doctor.doctor)
app.command("gateway")(serve.gateway)
app.command("key")(key.key)
app.command("operator")(serve.operator)
app.command("forks")(inspect.forks)
app.command("sessions")(inspect.sessions)
app.command("trajectories")(inspect.trajectories)
app.command("status")(inspect.status)
app.command("export")(exports.export)
app.command("render")(render_manifest.render)


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"sandgate {installed('sandgate')}")
        except PackageNotFoundError:  # run from its sources, by PYTHONPATH
            typer.echo("sandgate, not installed")
        raise typer.Exit(0)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Makes every command a subcommand, also when there is only one."""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script. Always ends by SystemExit with one of the module's exit codes."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot spell a character still shows the rest
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=list(sys.argv[1:] if argv is None else argv), prog_name="sandgate")
    except OSError as error:  # of --help and --version, which are no command's: a full disk
        raise SystemExit(output.system_error(error)) from None


def _open_streams() -> None:
    """Where a shell closed some (`>&-`), Python has None for them, and the next file that is opened, as a journal,
    would be what our processes print into."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
