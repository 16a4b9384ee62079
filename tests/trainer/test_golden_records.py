"""Files as they were written once are read as they were meant.

`python -m tests.trainer.test_golden_records` writes those that are not there; one that is there is never written again:
that is its worth."""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandgate.contract.errors import NewerRecord
from sandgate.contract.trajectory import DERIVED, SCHEMA_VERSION, Trajectory
from sandgate.trainer.export import arrow, packed_file
from sandgate.trainer.export.jsonl import read_jsonl, write_jsonl
from sandgate.trainer.export.packed import unpack
from sandgate.trainer.export.schema import DEFAULTS, VERSION_KEY, schema
from scripts.generators.packed import UNITS
from scripts.generators.records import docs
from tests.trainer.trajectories import exact, trajectory

GOLDEN = Path(__file__).parent / "golden" / "records"


def rows(version: int = SCHEMA_VERSION, *, roles: bool | None = None) -> list[Trajectory]:
    """Every column of that version says something in at least one row. `roles`: the columns for them are there."""
    told: dict[str, Any] = {}
    main: dict[str, Any] = {}
    if version > 1:
        told["turn_settings"] = ({}, {"engine": "vllm 0.25.1", "sampling": {"seed": 5}})
    if roles or (roles is None and version == SCHEMA_VERSION):
        main, told = {"role": "main", "main": True}, {**told, "role": "side"}
    return [
        trajectory(schema_version=version, **main),
        trajectory(
            1, schema_version=version, **told, trajectory_id=1, attempt=2, reward=-0.1,
            reward_info={"why": "wrong", "parts": [0.5, None]},
            finish_reason="length", fork_reason="compaction", parent_turn="a", failure_class="policy",
            failure_reason="TurnLimit", complete=False, model="tiny", renderer="renderers/qwen3@0.1.12",
            engine="vllm 0.25.0", logprobs_mode="processed_logprobs", sampling={"temperature": 0.7, "top_k": -1},
            tokenizer_digest="5f3a", multimodal=b"\x00\xff", routed_experts=b"\x01", metadata={"träger": "\ud83d"},
        ),
        trajectory(
            2, schema_version=version, reward=None, prompt_ids=array("i"), response_ids=array("i"),
            response_logprobs=array("f"),
            loss_mask=array("b"), versions=array("i"), turn_ids=(), turn_ends=(), turn_rewards=(),
        ),
    ]  # fmt: skip


def group(version: int = SCHEMA_VERSION, *, roles: bool | None = None) -> list[Trajectory]:
    """The rows, and a sibling of the first one, which sampled its first two tokens and then another."""
    three: dict[str, Any] = {
        "schema_version": version,
        "turn_ids": ("a",),
        "turn_ends": (3,),
        "turn_rewards": (),
        "versions": array("i", [7] * 3),
    }
    sibling = trajectory(
        3, response_ids=array("i", [10, 11, 6]), response_logprobs=array("f", [-0.1, -0.2, -2.5]),
        loss_mask=array("b", [1] * 3), **three,
    )  # fmt: skip
    return [*rows(version, roles=roles), sibling]


def bare(row: Trajectory, **changes: object) -> Trajectory:
    """With a default in every field that has one."""
    needed = set(Trajectory.__dataclass_fields__) - set(DEFAULTS) - DERIVED
    return Trajectory(**{name: getattr(row, name) for name in needed} | changes)


def current() -> pa.Table:
    return arrow.to_table(rows())


def later() -> pa.Table:
    """This version, with columns that are to come."""
    extra = {"entropy": pa.array([[0.5], None, []]), "spot": pa.array([{"a": 1}, None, None])}
    table = current()
    for name, column in extra.items():
        table = table.append_column(name, column)
    return table


def newer() -> pa.Table:
    return current().replace_schema_metadata({VERSION_KEY: b"9"})


def bare_rows(version: int) -> list[Trajectory]:
    return [bare(row, schema_version=version) for row in rows(version)]


def without_roles() -> list[Trajectory]:
    return rows(2, roles=False)


FILES: dict[str, Callable[[], list[Trajectory]]] = {
    "v0": lambda: bare_rows(0),
    "v1": lambda: rows(1),
    "v1-masked": lambda: rows(1),
    "v1-earlier": lambda: bare_rows(1),
    "v1-later": lambda: rows(1),
    "v2": without_roles,
    "v2-later": without_roles,
    "v2-roles": rows,
    "v2-roles-later": rows,
}
"""File -> what it says. v0: version 0 was never released; the file stands for any older version, and has only what
every version must have. -earlier: before its optional columns were added (v1: before `masked` was one); v2 is older
than `role` and `main`. -later: with columns that are to come. Those of older versions were written by their own
writers, and no writer of today makes them."""


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_is_read_as_it_was_meant(name: str) -> None:
    found = list(arrow.read_parquet(GOLDEN / f"{name}.parquet"))
    assert [exact(row) for row in found] == [exact(row) for row in FILES[name]()]


def test_a_newer_file_is_refused_whole() -> None:
    with pytest.raises(NewerRecord, match="schema 9"):
        next(arrow.read_parquet(GOLDEN / "newer.parquet"))


def test_todays_writer_writes_the_file_of_this_version(tmp_path: Path) -> None:
    """Column by column: a change of type or meaning would need another version."""
    arrow.write_parquet(tmp_path / "now.parquet", rows())
    golden, now = pq.read_table(GOLDEN / "v2-roles.parquet"), pq.read_table(tmp_path / "now.parquet")
    assert now.schema.equals(golden.schema, check_metadata=True)
    assert now.equals(golden)
    assert arrow.schema().metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_files_of_several_versions_are_merged(tmp_path: Path) -> None:
    files = [GOLDEN / f"{name}.parquet" for name in ("v1-later", "v1-earlier", "v1")]
    assert arrow.merge_parquet(files, tmp_path / "all.parquet").duplicates == 6
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "all.parquet")] == [
        exact(row) for row in rows(1)
    ]


def test_rows_of_two_versions_stand_in_one_file(tmp_path: Path) -> None:
    old = [trajectory(9, schema_version=1)]
    arrow.write_parquet(tmp_path / "old.parquet", old)
    arrow.merge_parquet([tmp_path / "old.parquet", GOLDEN / "v2-roles.parquet"], tmp_path / "all.parquet")
    found = list(arrow.read_parquet(tmp_path / "all.parquet"))
    assert [exact(row) for row in found] == [exact(row) for row in [*old, *rows()]]


@pytest.mark.parametrize(("name", "version"), [("v1", 1), ("v1-masked", 1), ("v2", 2), ("v2-roles", 2)])
def test_golden_json_lines_are_read_as_they_were_meant(name: str, version: int) -> None:
    assert [exact(row) for row in read_jsonl(GOLDEN / f"{name}.jsonl")] == [
        exact(row) for row in rows(version, roles="roles" in name)
    ]


PACKED = {"packed-v1": 1, "packed-v1-masked": 1, "packed-v1-record-v2": 2, "packed-v1-record-v2-roles": 2}
"""File -> version of its records."""


@pytest.mark.parametrize(("name", "version"), PACKED.items())
def test_a_golden_packed_file_gives_back_its_rows(name: str, version: int) -> None:
    (tree,) = packed_file.read_packed(GOLDEN / f"{name}.parquet")
    shared, images = [1, 2, 3, 10, 11, 4, 5, 12, 6], [1, 2, 3, 10, 11, 4, 5, 12]
    assert tree.input_ids.tolist() == shared + images
    assert [exact(row) for row in unpack(tree)] == [
        exact(row) for row in group(version, roles="roles" in name)
    ]


def test_todays_writer_writes_the_packed_file_of_this_version(tmp_path: Path) -> None:
    packed_file.write_packed(tmp_path / "now.parquet", group())
    golden, now = (
        pq.read_table(GOLDEN / "packed-v1-record-v2-roles.parquet"),
        pq.read_table(tmp_path / "now.parquet"),
    )
    assert now.schema.equals(golden.schema, check_metadata=True)
    assert now.equals(golden)


def test_every_column_has_a_meaning_and_every_number_a_unit() -> None:
    said = docs(Trajectory)
    assert not [name for name in schema().names if not said.get(name)]
    arrays = {name for name, kind in packed_file.TREE_COLUMNS.items() if pa.types.is_list(kind)}
    assert arrays == set(UNITS)


def write() -> Iterator[Path]:
    """Those that are not there."""
    GOLDEN.mkdir(exist_ok=True)
    writers: dict[str, Callable[[Path], object]] = {
        "v2-roles.parquet": functools.partial(arrow.write_parquet, trajectories=rows()),
        "v2-roles-later.parquet": functools.partial(pq.write_table, later()),
        "newer.parquet": functools.partial(pq.write_table, newer()),
        "v2-roles.jsonl": functools.partial(write_jsonl, trajectories=rows()),
        "packed-v1-record-v2-roles.parquet": functools.partial(
            packed_file.write_packed, trajectories=group()
        ),
    }
    for name, writer in writers.items():
        if not (GOLDEN / name).exists():
            writer(GOLDEN / name)
            yield GOLDEN / name


if __name__ == "__main__":
    print(*write(), sep="\n")
    sys.exit(0)
