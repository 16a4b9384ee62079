"""`sandgate export`: writes a run's trajectories as Parquet, Arrow, JSON lines, packed trees or tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sandgate.contract.errors import BadRequest, InvalidBody, NotFound
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.operator.local.fresh import is_own
from sandgate.trainer.cli import output
from sandgate.trainer.runs import folder
from sandgate.trainer.runs.finished import RESULT


class Format(StrEnum):
    """What trajectories can be written as."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    ARROW = "arrow"
    PACKED = "packed"
    DATAPROTO = "dataproto"
    AREAL = "areal"
    TRL = "trl"


SUFFIX = {
    Format.PARQUET: ".exported.parquet",  # not the run's own, by which it knows that it is complete
    Format.PACKED: ".packed.parquet",
    Format.DATAPROTO: ".dataproto.pkl",
    Format.AREAL: ".areal.pt",
    Format.TRL: ".trl.parquet",
}
"""Where it is not the format's name."""
Rows = Iterator[Trajectory]


def _parquet(target: Path, rows: Rows) -> dict[str, Json]:
    from sandgate.trainer.export.parquet import write_parquet  # they load Arrow, or more

    return {"trajectories": write_parquet(target, rows)}


def _jsonl(target: Path, rows: Rows) -> dict[str, Json]:
    from sandgate.trainer.export.jsonl import write_jsonl

    return {"trajectories": write_jsonl(target, rows)}


def _arrow(target: Path, rows: Rows) -> dict[str, Json]:
    from sandgate.trainer.export.ipc import write_arrow

    return {"trajectories": write_arrow(target, rows)}


def _trl(target: Path, rows: Rows) -> dict[str, Json]:
    from sandgate.trainer.export.trl import write_trl

    return {"trajectories": write_trl(target, rows)}


def _areal(target: Path, rows: Rows) -> dict[str, Json]:
    from sandgate.trainer.cli.tensor_files import write_areal

    written, left_out = write_areal(target, rows)
    return {"trajectories": written, "left_out": dict(left_out)}


def _packed(target: Path, rows: Rows, **options: int) -> dict[str, Json]:
    from sandgate.trainer.export.packed_file import write_packed
    from sandgate.trainer.export.packing import TREE_TOKENS

    found = write_packed(target, rows, max_tokens=options.get("max_tokens", TREE_TOKENS))
    return {
        "trajectories": found.trajectories,
        "trees": found.trees,
        "tokens": found.tokens,
        "packed_tokens": found.packed_tokens,
        "saved": round(found.saved, 4),
    }


def _dataproto(target: Path, rows: Rows, **options: int) -> dict[str, Json]:
    from sandgate.trainer.cli.tensor_files import write_dataproto

    written, too_long = write_dataproto(target, rows, **options)
    return {"trajectories": written, "too_long": too_long}


WRITERS: dict[Format, Callable[..., dict[str, Json]]] = {
    Format.PARQUET: _parquet,
    Format.JSONL: _jsonl,
    Format.ARROW: _arrow,
    Format.TRL: _trl,
    Format.AREAL: _areal,
    Format.PACKED: _packed,
    Format.DATAPROTO: _dataproto,
}
OPTIONS = {
    "max_tokens": Format.PACKED,
    "prompt_length": Format.DATAPROTO,
    "response_length": Format.DATAPROTO,
    "pad_token_id": Format.DATAPROTO,
}
"""Option -> the only format that it means something to."""


def export(
    out: output.OutDir,
    format: Annotated[Format, typer.Option("--format", help="File format.")] = Format.PARQUET,  # noqa: A002
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; default: in DIR, with the name of the format.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="packed: stored tokens of one packed row.")
    ] = None,
    prompt_length: Annotated[
        int | None, typer.Option("--prompt-length", help="dataproto: tokens; default the longest.")
    ] = None,
    response_length: Annotated[
        int | None, typer.Option("--response-length", help="dataproto: tokens; default the longest.")
    ] = None,
    pad_token_id: Annotated[
        int | None, typer.Option("--pad-token-id", help="dataproto: id of padding; default 0.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Write the trajectories of a run (DIR, or a Parquet file) in another format. The file is whole or not there."""
    options = _options(
        format,
        max_tokens=max_tokens,
        prompt_length=prompt_length,
        response_length=response_length,
        pad_token_id=pad_token_id,
    )
    target = to or (out if out.is_file() else out / folder.TRAJECTORIES).with_suffix(
        SUFFIX.get(format, f".{format}")
    )
    _check(target)
    if to and not to.parent.exists():
        raise BadRequest(f"{to.parent}: no such folder; make it first, or give another", field="--to")
    seen: set[str] = set()
    found = _noting(folder.trajectories(out), seen)
    told = WRITERS[format](target, found, **options)
    left = left_out(out, seen)
    told |= {"missing": left.rows, "missing_groups": left.groups}
    if left.rows:
        typer.echo(f"warning: {left.says(out)}", err=True)
    if json:
        output.as_json({"path": str(target), "format": str(format)} | told)
    else:
        count = output.plural(int(told["trajectories"]), "trajectory", "trajectories")
        typer.echo(f"{count} -> {target}{_more(told)}")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the journals of a run have and its files have not."""

    rows: int = 0
    groups: int = 0
    there: int = 0
    """Of these groups, how many have a file: it came after it was looked for, or is to be written anew."""

    def says(self, out: Path) -> str:
        """One line, and what to do."""
        missing = self.groups - self.there
        whose = [
            f"{output.plural(count, 'whole group')} {of}"
            for count, of in (
                (missing, "whose file is missing"),
                (self.there, "whose file has been written since, or is to be written anew"),
            )
            if count
        ]
        first = "export again; " if self.there else ""
        return (
            f"the journals in {out} have {output.plural(self.rows, 'trajectory', 'trajectories')} more, of"
            f" {' and '.join(whose)}; {first}`sandgate run` with --out {out} writes it again"
        )


def left_out(out: Path, seen: Set[str]) -> LeftOut:
    """Rows of sessions that are in whole groups and not in `seen`. Groups that are not whole yet have no file, and a
    Parquet file alone has no journal."""
    from sandgate.gateway import offline

    if not out.is_dir():
        return LeftOut()
    try:
        lost = {one: group for one, group in offline.counting(out).items() if one not in seen}
    except NotFound:
        return LeftOut()
    rows = {session: count for session in lost if (count := offline.rows_of(out, session))}
    groups = {lost[session] for session in rows}
    there = sum(folder.group_file(out, *group).is_file() for group in groups)
    return LeftOut(sum(rows.values()), len(groups), there)


def _noting(rows: Rows, seen: set[str]) -> Rows:
    for row in rows:
        seen.add(row.session_id)
        yield row


def _check(target: Path) -> None:
    """Refuses a file that a run needs, and a folder that is none. Raises BadRequest."""
    if is_own(target, also=(folder.ORIGIN, RESULT)):
        raise BadRequest(f"{target}: a run's own file; give another name", field="--to")
    if target.is_dir():
        raise BadRequest(f"{target}: a directory; give a file's name", field="--to")


def _options(format: Format, **given: int | None) -> dict[str, int]:  # noqa: A002
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if OPTIONS[name] is not format:
            raise InvalidBody(f"only --format {OPTIONS[name]} has it", field=f"--{name.replace('_', '-')}")
    return found


def _more(told: dict[str, Any]) -> str:
    if "saved" in told:
        return (
            f": {told['tokens']:,} tokens as {told['packed_tokens']:,} in {output.plural(told['trees'], 'tree')},"
            f" {told['saved']:.1%} saved"
        )
    if told.get("left_out"):
        whys = ", ".join(f"{why} {count}" for why, count in sorted(told["left_out"].items()))
        return f"; left out, as they teach nothing: {whys}"
    return f"; {told['too_long']} over the lengths, masked" if told.get("too_long") else ""
