"""Output of commands: tables for people, JSON for pipes, one line for an error."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from sandgate.contract.errors import BadRequest, InvalidBody, SandgateError
from sandgate.contract.kinds import BASE_URL

ASKED_WRONGLY = 2
NOT_DONE = 1
MACHINES_FAULT = frozenset(
    getattr(errno, name) for name in "EAGAIN ENOMEM EMFILE ENFILE ENOSPC EDQUOT EROFS EIO".split()
)
"""Errors of the system that say nothing of what was asked for: it was not done. The sandbox's of that name is of the
starts of programs."""
STOPPED = 130
"""128 + SIGINT, as shells say it."""
SENTENCE = 1_000
"""Characters of a command's line of help, which is wrapped: more than any has."""
PLAIN_WIDTH = 160
"""Columns when the output is no terminal: tables in logs are not cut at 80."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
"""The --json option every command has."""
OutDir = Annotated[
    Path, typer.Argument(metavar="DIR", help="DIR of `sandgate run --out DIR`.", show_default=False)
]


class Commands(TyperGroup):
    """The group that turns errors of the contract, and of files, into one line and an exit code. Its help has what each
    command does in a whole sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, one.get_short_help_str(SENTENCE))
            for name, one in found
            if one is not None and not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SandgateError as error:
            error_line(error)
            raise typer.Exit(ASKED_WRONGLY) from None
        except BrokenPipeError:  # `sandgate ... | head`: the reader has seen enough
            sys.stderr.close()
            raise typer.Exit(NOT_DONE) from None
        except OSError as error:
            raise typer.Exit(system_error(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(STOPPED) from None


def system_error(error: OSError) -> int:
    """Its line on stderr; the exit code."""
    name = f"{printable(str(error.filename))}: " if error.filename else ""
    typer.echo(f"error: {name}{error.strerror or error}", err=True)
    return NOT_DONE if error.errno in MACHINES_FAULT else ASKED_WRONGLY


def error_line(error: SandgateError) -> None:
    """`error: TEXT [field FIELD]` on stderr; the text is one line whatever it quotes."""
    text = printable(" ".join(str(error).split()))
    field = error.field if isinstance(error, BadRequest) else None
    typer.echo(f"error: {text}" + (f" [field {field}]" if field else ""), err=True)


def check_url(url: str | None, option: str) -> None:
    """Raises InvalidBody, naming the option, where the URL is not what a manifest takes."""
    if url is not None and (wrong := BASE_URL.wrong(url)) is not None:
        raise InvalidBody(wrong, field=option)


def as_json(value: Any) -> None:
    """One JSON document on stdout; what stdout cannot spell is in it as JSON's own escape, which any parser reads."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # Python's escapes of a character are not JSON's
        text = json.dumps(value, indent=2)
    typer.echo(text)


def console() -> Console:
    """stdout: colours and the terminal's width on a terminal, plain and wide elsewhere."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PLAIN_WIDTH, highlight=False, color_system=None)


def table(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """A table of these keys of the rows; numbers to the right. Prints nothing for no rows but the header."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        shown.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        shown.add_row(*(Text(cell(row.get(column))) for column in columns))
    console().print(shown)


def cell(value: Any) -> str:
    """How a value looks in a table."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{cell(key)} {cell(found)}" for key, found in value.items()) or "-"
        case list():
            return ", ".join(cell(one) for one in value) or "-"
        case _:
            return printable(str(value), keep="")


def printable(text: str, keep: str = "\n\t") -> str:
    """What a model, a task's name or an agent says must not steer the terminal: all that is no printable character, but
    for `keep`, as an escape."""
    return "".join(char if char in keep or char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 group`, `2 groups`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
