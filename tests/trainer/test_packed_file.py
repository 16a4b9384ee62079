"""Files of packed trees: everything comes back, savings are told, and what cannot be trusted is refused."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export import packed_file
from sandgate.trainer.export.packed import unpack
from sandgate.trainer.export.packed_file import Savings, read_packed, read_savings, write_packed
from sandgate.trainer.export.packing import pack_trees
from tests.trainer.test_packed import ROOM, ROWS, sampled
from tests.trainer.trajectories import exact, trajectory


def group(uid: str = "q1") -> list[Trajectory]:
    """Two siblings that share a prompt of three."""
    return [sampled([10, 11], uid=uid), sampled([12], number=1, uid=uid)]


@settings(max_examples=30)  # a file each; test_packed.py looks longer at the same law
@given(rows=ROWS, room=ROOM)
def test_a_file_gives_back_every_trajectory(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Trajectory], room: int
) -> None:
    path = tmp_path_factory.mktemp("packed") / "t.parquet"
    saved = write_packed(path, rows, max_tokens=room)
    assert [exact(row) for tree in read_packed(path) for row in unpack(tree)] == [exact(row) for row in rows]
    assert saved == read_savings(path)
    assert (saved.trajectories, saved.tokens) == (
        len(rows),
        sum(len(row.prompt_ids) + len(row.response_ids) for row in rows),
    )


def test_every_field_of_the_record_survives(tmp_path: Path) -> None:
    row = trajectory(
        reward_info={"why": "\ud83d"}, sampling={"temperature": 0.5}, metadata={"a": [1, None]}, parent_turn="t",
        fork_reason="compaction", failure_class="policy", failure_reason="TurnLimit", complete=False, model="m",
        renderer="r", engine="e", logprobs_mode="raw", tokenizer_digest="d", multimodal=b"i", routed_experts=b"x",
        finish_reason="length", attempt=2,
    )  # fmt: skip
    write_packed(tmp_path / "t", [row])
    (tree,) = read_packed(tmp_path / "t")
    assert [exact(one) for one in unpack(tree)] == [exact(row)]


def test_savings_are_in_the_files_metadata(tmp_path: Path) -> None:
    assert write_packed(tmp_path / "t", group()) == Savings(2, 1, tokens=9, packed_tokens=6)
    told = json.loads(pq.read_metadata(tmp_path / "t").metadata[b"sandgate.savings"])
    assert told == {"trajectories": 2, "trees": 1, "tokens": 9, "packed_tokens": 6, "saved": 0.333333}


def test_an_advantage_is_a_slot_for_the_trainer() -> None:
    (tree,) = pack_trees(group())
    assert [leaf.advantage for leaf in tree.leaves] == [None, None]
    filled = replace(tree, leaves=tuple(replace(leaf, advantage=0.5) for leaf in tree.leaves))
    (found,) = packed_file.from_batch(packed_file.to_batch(filled))
    assert [leaf.advantage for leaf in found.leaves] == [0.5, 0.5]


def table(*trees: Any) -> pa.Table:
    return pa.Table.from_batches([packed_file.to_batch(tree) for tree in trees or pack_trees(group())])


def in_leaf(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[pa.Table], pa.Table]:
    """The file with something else for every leaf; `change` gets the leaf's columns by name."""

    def changed(found: pa.Table) -> pa.Table:
        batch = pa.RecordBatch.from_struct_array(found["leaves"].combine_chunks().values)
        columns = change(dict(zip(batch.schema.names, batch.columns, strict=True)))
        struct = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
        return put("leaves", pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), struct))(found)

    return changed


def put(name: str, column: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda found: found.set_column(found.column_names.index(name), name, column)


READABLE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a column more": lambda found: found.append_column("theirs", pa.nulls(1, pa.int8())),
    "a leaf's column more": in_leaf("theirs", lambda columns: columns | {"theirs": pa.array([1, 2])}),
    "wider types": lambda found: put("input_ids", found["input_ids"].cast(pa.large_list(pa.int64())))(found),
    "a leaf without a column that has a default": in_leaf(
        "engine", lambda columns: {name: value for name, value in columns.items() if name != "engine"}
    ),
}


@pytest.mark.parametrize("change", READABLE.values(), ids=READABLE)
def test_what_may_differ_is_read(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(table()), tmp_path / "t")
    assert [exact(row) for tree in read_packed(tmp_path / "t") for row in unpack(tree)] == [
        exact(row) for row in group()
    ]


def version(said: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda found: found.replace_schema_metadata({packed_file.VERSION_KEY: said})


REFUSED: dict[str, tuple[Callable[[pa.Table], pa.Table], type[Exception], str]] = {
    "a newer file": (version(b"2"), NewerRecord, "schema 2"),
    "a file of something else": (version(b""), CorruptRecord, "no file of packed trees"),
    "no parents": (lambda found: found.drop_columns(["parents"]), CorruptRecord, "column parents is missing"),
    "a null": (put("uid", pa.array([None], pa.string())), CorruptRecord, "column uid has 1 nulls"),
    "a null id": (put("input_ids", pa.array([[1, None]])), CorruptRecord, "column input_ids has nulls"),
    "text for ids": (put("input_ids", pa.array(["1 2"])), CorruptRecord, "column input_ids is string"),
    "leaves of another kind": (put("leaves", pa.array([[1]])), CorruptRecord, "not a list of structs"),
    "a leaf without its segment": (
        in_leaf("segment", lambda columns: {n: v for n, v in columns.items() if n != "segment"}),
        CorruptRecord, "column segment is missing"),
    "a leaf without its session": (
        in_leaf("session_id", lambda columns: {n: v for n, v in columns.items() if n != "session_id"}),
        CorruptRecord, "column session_id is missing"),
    "a newer record in a leaf": (
        in_leaf("schema_version", lambda columns: columns | {"schema_version": pa.array([3, 3], pa.int32())}),
        NewerRecord, "schema 3"),
    "a tree that does not hold together": (put("starts", pa.array([[0, 9, 5]], pa.list_(pa.int32()))),
                                           CorruptRecord, "do not divide"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trusted_is_refused(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], error: type[Exception], why: str
) -> None:
    pq.write_table(change(table()), tmp_path / "t")
    with pytest.raises(error, match=why):
        list(read_packed(tmp_path / "t"))


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Any:
        yield from group()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_packed(tmp_path / "t", rows())
    assert list(tmp_path.iterdir()) == []


def test_no_trajectories_make_a_readable_file(tmp_path: Path) -> None:
    assert write_packed(tmp_path / "t", []) == Savings() == read_savings(tmp_path / "t")
    assert list(read_packed(tmp_path / "t")) == []
    assert Savings().saved == 0.0


def test_groups_that_come_apart_are_packed_apart_and_nothing_is_lost(tmp_path: Path) -> None:
    rows = [group("a")[0], group("b")[0], group("a")[1]]
    assert write_packed(tmp_path / "t", rows).trees == 3
    assert [exact(row) for tree in read_packed(tmp_path / "t") for row in unpack(tree)] == [
        exact(row) for row in rows
    ]


def test_ids_of_a_large_row_come_back(tmp_path: Path) -> None:
    row = trajectory(prompt_ids=array("i", range(200_000)))
    write_packed(tmp_path / "t", [row])
    (tree,) = read_packed(tmp_path / "t")
    assert tree.input_ids[:200_000].tolist() == list(range(200_000))


GOLDEN = Path(__file__).parent / "golden" / "records" / "packed-v1.parquet"


@given(at=st.integers(0, GOLDEN.stat().st_size - 1), bit=st.integers(0, 7))
def test_a_file_with_a_flipped_bit_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    raw = bytearray(GOLDEN.read_bytes())
    raw[at] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "t"
    path.write_bytes(raw)
    with contextlib.suppress(CorruptRecord, NewerRecord):  # never any other exception
        for tree in read_packed(path):
            list(unpack(tree))


SAVINGS: dict[str, bytes] = {"no JSON": b"{", "no object": b"[]", "a number less": b'{"tokens": 3}'}


@pytest.mark.parametrize("said", [*SAVINGS.values(), b""], ids=[*SAVINGS, "nothing"])
def test_savings_that_cannot_be_read_are_refused(tmp_path: Path, said: bytes) -> None:
    with pq.ParquetWriter(tmp_path / "t", packed_file.SCHEMA) as out:
        out.write_table(table())
        out.add_key_value_metadata({packed_file.SAVINGS_KEY: said})
    with pytest.raises(CorruptRecord, match=r"sandgate\.savings"):
        read_savings(tmp_path / "t")
