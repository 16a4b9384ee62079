"""Trajectories through Arrow tables, streams and Parquet files come back to the bit, or are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Conflict, CorruptRecord, InvalidBody, NewerRecord
from sandgate.contract.trajectory import DERIVED, FIRST_VERSION, Trajectory
from sandgate.gateway.delivery import arrow as delivery
from sandgate.trainer.export import arrow, parquet, tables
from sandgate.trainer.export.schema import DEFAULTS, VERSION_KEY
from sandgate.trainer.export.values import BINARY
from tests.trainer.trajectories import exact, trajectories, trajectory

GOLDEN = Path(__file__).parent / "golden" / "schema.json"


def described(found: pa.Schema) -> dict[str, Any]:
    """The schema as JSON: what a reader in another language relies on."""
    return {
        "metadata": {key.decode(): value.decode() for key, value in found.metadata.items()},
        "fields": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            | ({"json": True} if field.metadata else {})
            for field in found
        ],
    }


def test_the_schema_is_what_api_md_says() -> None:
    assert described(arrow.schema()) == json.loads(GOLDEN.read_text())


def test_every_field_of_the_record_is_a_column() -> None:
    assert arrow.schema().names == list(Trajectory.__dataclass_fields__)


@given(rows=st.lists(trajectories(), max_size=4))
def test_a_table_gives_back_what_went_in(rows: list[Trajectory]) -> None:
    assert [exact(row) for row in arrow.from_table(arrow.to_table(rows))] == [exact(row) for row in rows]


@given(rows=st.lists(trajectories(), max_size=4))
def test_a_stream_gives_back_what_went_in(rows: list[Trajectory]) -> None:
    assert [exact(row) for row in arrow.from_ipc(arrow.to_ipc(rows))] == [exact(row) for row in rows]


@given(rows=st.lists(trajectories(), max_size=4))
def test_a_parquet_file_gives_back_what_went_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "t.parquet"
    assert arrow.write_parquet(path, rows) == len(rows) == arrow.count_parquet(path)
    assert [exact(row) for row in arrow.read_parquet(path)] == [exact(row) for row in rows]


@given(rows=st.lists(trajectories(), min_size=1, max_size=6), data=st.data())
def test_a_slice_of_a_table_gives_its_own_rows(rows: list[Trajectory], data: st.DataObject) -> None:
    """Offsets of a slice do not begin at 0."""
    start = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows)))
    found = arrow.from_table(arrow.to_table(rows).slice(start, count))
    assert [exact(row) for row in found] == [exact(row) for row in rows[start : start + count]]


def test_one_row_shares_memory_with_its_arrays() -> None:
    row = trajectory()
    column = tables.pack([row]).column("response_ids")
    assert column.values.buffers()[1].address == row.response_ids.buffer_info()[0]


def test_input_is_consumed_as_batches_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by a batch, not by the input."""
    monkeypatch.setattr(tables, "BATCH_TOKENS", 16)  # each row has 8
    taken = 0

    def source() -> Iterator[Trajectory]:
        nonlocal taken
        for number in range(10):
            taken += 1
            yield trajectory(number)

    batches = tables.to_batches(source())
    assert (next(batches).num_rows, taken) == (2, 2)
    assert sum(batch.num_rows for batch in batches) == 8


PICTURES: dict[str, tuple[list[int], list[int]]] = {
    "as many as there is room for": ([4, 4, 4, 4, 4], [2, 2, 1]),
    "none at all": ([0] * 5, [5]),
    "one that alone is larger": ([1, 99, 1, 1], [1, 1, 2]),
    "small ones before a large one": ([1, 1, 8, 1], [2, 1, 1]),
}


@pytest.mark.parametrize(("sizes", "batches"), PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("name", BINARY)
def test_a_batch_has_bounded_bytes(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: list[int], batches: list[int]
) -> None:
    """A column of more than 2 GiB cannot be, and a reader holds a whole batch."""
    for module in (tables, delivery):
        monkeypatch.setattr(module, "BATCH_BYTES", 8)
    rows = [trajectory(at, **{name: b"x" * size or None}) for at, size in enumerate(sizes)]
    assert [batch.num_rows for batch in arrow.to_batches(rows)] == batches
    assert [batch.num_rows for batch in delivery.record_batches(rows)] == batches
    assert [exact(row) for row in arrow.from_table(arrow.to_table(rows))] == [exact(row) for row in rows]


def test_a_reader_decodes_bounded_bytes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a file whose writer made larger row groups."""
    rows = [trajectory(at, multimodal=bytes([at]) * 50_000) for at in range(12)]
    arrow.write_parquet(tmp_path / "t", rows)
    monkeypatch.setattr(parquet, "READ_BYTES", 250_000)
    assert parquet.row_groups(tmp_path / "t")[0][0] == 12, "one row group"
    assert [batch.num_rows for batch in parquet.read_batches(tmp_path / "t")] == [4, 4, 4]
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "t")] == [exact(row) for row in rows]
    monkeypatch.setattr(parquet, "READ_BYTES", 1)
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "t")] == [exact(row) for row in rows]


def test_what_needs_no_pictures_does_not_read_them(tmp_path: Path) -> None:
    picture = bytes(range(256)) * 100
    arrow.write_parquet(tmp_path / "t", [trajectory(multimodal=picture, routed_experts=b"e")])
    light = [exact(trajectory())]
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "t", binary=False)] == light
    file = (tmp_path / "t").read_bytes()
    where = (
        pq.ParquetFile(tmp_path / "t").metadata.row_group(0).column(arrow.schema().names.index("multimodal"))
    )
    at = where.data_page_offset if where.dictionary_page_offset is None else where.dictionary_page_offset
    (tmp_path / "t").write_bytes(file[:at] + b"\xff" * 100 + file[at + 100 :])
    with pytest.raises(CorruptRecord):
        list(arrow.read_parquet(tmp_path / "t"))
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "t", binary=False)] == light


def test_no_trajectories_make_a_readable_file(tmp_path: Path) -> None:
    assert arrow.write_parquet(tmp_path / "none.parquet", []) == 0
    assert list(arrow.read_parquet(tmp_path / "none.parquet")) == []


def with_version(version: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({VERSION_KEY: version})


def as_other_tools_write(table: pa.Table) -> pa.Table:
    """Large lists, int64, dictionaries, no metadata, another order, a column more: pandas, Polars and friends."""
    wider = {
        pa.list_(pa.int32()): pa.large_list(pa.int64()),
        pa.string(): pa.dictionary(pa.int32(), pa.string()),
    }
    columns = {
        name: table[name].cast(wider.get(table[name].type, table[name].type)) for name in table.column_names
    }
    return pa.table(dict(reversed(columns.items())) | {"theirs": pa.nulls(table.num_rows, pa.int8())})


READABLE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a tool dropped the metadata": lambda table: table.replace_schema_metadata(None),
    "an older version": with_version(b"0"),
    "other tools widened types, reordered and added a column": as_other_tools_write,
}


@pytest.mark.parametrize("change", READABLE.values(), ids=READABLE)
def test_what_may_differ_is_read(change: Callable[[pa.Table], pa.Table]) -> None:
    rows = [trajectory(0), trajectory(1, reward=None)]
    assert [exact(row) for row in arrow.from_table(change(arrow.to_table(rows)))] == [
        exact(row) for row in rows
    ]


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_missing_optional_column_is_its_default(name: str) -> None:
    """Such a file was written before the field existed."""
    table = arrow.to_table([trajectory()]).drop_columns([name])
    (found,) = arrow.from_table(table)
    fresh = {key: value for key, value in exact(trajectory()).items() if key != name}
    needed = set(Trajectory.__dataclass_fields__) - set(DEFAULTS) - DERIVED
    bare = Trajectory(schema_version=FIRST_VERSION, **{key: getattr(trajectory(), key) for key in needed})
    changed = {name: exact(bare)[name]} | ({"masked": "True"} if name == "reward" else {})
    assert exact(found) == fresh | changed


@pytest.mark.parametrize("name", sorted(set(Trajectory.__dataclass_fields__) - set(DEFAULTS) - DERIVED))
def test_a_missing_required_column_is_named(name: str) -> None:
    with pytest.raises(CorruptRecord, match=f"column {name} is missing"):
        list(arrow.from_table(arrow.to_table([trajectory()]).drop_columns([name])))


SAID = {
    "there is no such column": lambda table: table.drop_columns(["masked"]),
    "the column is stale": lambda table: with_masked(table, [True, False, False, True]),
    "the column is empty": lambda table: with_masked(table, [None] * 4),
}


def with_masked(table: pa.Table, values: list[bool | None]) -> pa.Table:
    return table.drop_columns(["masked"]).append_column("masked", pa.array(values, pa.bool_()))


@pytest.mark.parametrize("change", SAID.values(), ids=SAID)
def test_what_is_masked_follows_from_reward_and_blame_whatever_a_file_says(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table]
) -> None:
    rows = [
        trajectory(0),
        trajectory(1, reward=None),
        trajectory(2, failure_class="agent", reward=0.0),
        trajectory(3, failure_class="policy", reward=0.0),
    ]
    assert arrow.to_table(rows).column("masked").to_pylist() == [False, True, True, False]
    changed = change(arrow.to_table(rows))
    assert [row.masked for row in arrow.from_table(changed)] == [False, True, True, False]
    pq.write_table(changed, tmp_path / "old")
    arrow.merge_parquet([tmp_path / "old"], tmp_path / "new")
    assert pq.read_table(tmp_path / "new").column("masked").to_pylist() == [False, True, True, False]


def replaced(name: str, values: Any, kind: Any = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index(name)
        column = pa.array(values, kind or table.schema.field(name).type)
        return table.set_column(at, pa.field(name, column.type), column)

    return change


REFUSED: dict[str, tuple[Callable[[pa.Table], pa.Table], type[Exception], str]] = {
    "a newer file": (with_version(b"3"), NewerRecord, "schema 3"),
    "a newer row in a file without metadata": (replaced("schema_version", [3]), NewerRecord, "schema 3"),
    "a version that is no number": (with_version(b"new"), CorruptRecord, "not a number"),
    "a null where there is none": (replaced("uid", [None]), CorruptRecord, "column uid has 1 nulls"),
    "a null inside a list": (replaced("versions", [[1, None, 1, 1, 1]]), CorruptRecord, "column versions has nulls"),
    "an id over int32": (
        replaced("response_ids", [[2**31] * 5], pa.list_(pa.int64())), CorruptRecord, "column response_ids is",
    ),
    "text for ids": (replaced("prompt_ids", ["1 2"], pa.string()), CorruptRecord, "column prompt_ids is string"),
    "fewer logprobs than ids": (replaced("response_logprobs", [[0.0]]), CorruptRecord, "response_logprobs has 1"),
    "metadata that are not JSON": (replaced("metadata", ["{"]), CorruptRecord, "metadata is not JSON"),
    "NaN in JSON": (replaced("sampling", ['{"temperature":NaN}']), CorruptRecord, "NaN is not JSON"),
    "a column twice": (
        lambda table: table.append_column("job", pa.array(["x"])), CorruptRecord, "column job appears 2 times",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trusted_is_refused(
    change: Callable[[pa.Table], pa.Table], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        list(arrow.from_table(change(arrow.to_table([trajectory()]))))


UNWRITABLE: dict[str, tuple[str, Any]] = {
    "ids of another width": ("prompt_ids", array("q", [1, 2, 3])),
    "ids that are a list": ("prompt_ids", [1, 2, 3]),
    "a mask of another type": ("loss_mask", array("i", [1, 1, 0, 0, 1])),
    "an index over int32": ("sample_index", 2**31),
    "half a surrogate pair in a name": ("uid", "\ud800"),
    "metadata with NaN": ("metadata", {"x": float("nan")}),
    "metadata that are no JSON": ("metadata", {"x": object()}),
    "a time that is none": ("created_at", float("nan")),
}


@pytest.mark.parametrize(("field", "value"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_cannot_be_written_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidBody) as caught:
        arrow.write_parquet(tmp_path / "t.parquet", [trajectory(**{field: value})])
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_half_a_surrogate_pair_survives_in_json() -> None:
    """Agents do send it, and JSON has an escape for it."""
    (found,) = arrow.from_ipc(arrow.to_ipc([trajectory(metadata={"said": "\ud83d"})]))
    assert found.metadata == {"said": "\ud83d"}


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut in the middle": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "something else": lambda raw: b"hello" * 100,
    "a bit flipped in the data": lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "t.parquet"
    ids = array("i", range(5000))
    zeros: dict[str, Any] = {
        "response_logprobs": array("f", [0.0] * 5000),
        "loss_mask": array("b", [0] * 5000),
    }
    arrow.write_parquet(path, [trajectory(response_ids=ids, versions=ids, turn_ends=(1, 2), **zeros)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptRecord, match=r"t\.parquet is not a Parquet file"):
        list(arrow.read_parquet(path))


@given(cut=st.integers(0, 400), junk=st.binary(max_size=40))
def test_any_bytes_are_a_stream_or_refused(cut: int, junk: bytes) -> None:
    raw = arrow.to_ipc([trajectory()])
    try:
        found = list(arrow.from_ipc(raw[: len(raw) - cut] + junk))
    except (CorruptRecord, NewerRecord):
        return
    assert [exact(row) for row in found] in ([exact(trajectory())], [])


def failing_after(rows: int) -> Iterator[Trajectory]:
    yield from (trajectory(number) for number in range(rows))
    raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [True, False], ids=["over a file", "new"])
def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "t.parquet"
    if existing:
        arrow.write_parquet(path, [trajectory(9)])
    with pytest.raises(KeyboardInterrupt):
        arrow.write_parquet(path, failing_after(3))
    assert [file.name for file in tmp_path.iterdir()] == (["t.parquet"] if existing else [])
    if existing:
        assert [row.sample_index for row in arrow.read_parquet(path)] == [9]


KILLED = """
import os, sys
from sandgate.trainer.export import arrow
from tests.trainer.trajectories import trajectory
def rows():
    yield from map(trajectory, range(5))
    os.kill(os.getpid(), 9)
arrow.write_parquet(sys.argv[1], rows())
"""


def test_a_killed_process_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """SIGKILL in the middle: a hidden .tmp may stay, the name is never half a file."""
    path = tmp_path / "t.parquet"
    arrow.write_parquet(path, [trajectory(9)])
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    assert [row.sample_index for row in arrow.read_parquet(path)] == [9]
    assert all(file.name == "t.parquet" or file.name.startswith(".t.parquet.") for file in tmp_path.iterdir())


def test_a_merge_keeps_each_trajectory_once_and_the_order(tmp_path: Path) -> None:
    """Hand-off is at least once: parts overlap."""
    for name, numbers in {"a": [0, 1, 1], "b": [1, 2], "c": []}.items():
        arrow.write_parquet(tmp_path / name, [trajectory(number) for number in numbers])
    merged = arrow.merge_parquet([tmp_path / name for name in "abc"], tmp_path / "a")
    assert (merged.rows, merged.duplicates) == (3, 2)
    assert [exact(row) for row in arrow.read_parquet(tmp_path / "a")] == [
        exact(trajectory(n)) for n in range(3)
    ]


@pytest.mark.parametrize(
    "change", [{"attempt": 1}, {"prompt_ids": array("i", [1, 2, 4])}], ids=["attempt", "ids"]
)
def test_a_merge_refuses_two_rows_of_one_name_that_differ(tmp_path: Path, change: dict[str, Any]) -> None:
    arrow.write_parquet(tmp_path / "a", [trajectory()])
    arrow.write_parquet(tmp_path / "b", [trajectory(**change)])
    with pytest.raises(Conflict, match="shop-q1-0 trajectory 0 differs"):
        arrow.merge_parquet([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_merge_of_many_small_parts_has_few_row_groups(tmp_path: Path) -> None:
    parts = [tmp_path / f"{number}" for number in range(20)]
    for number, part in enumerate(parts):
        arrow.write_parquet(part, [trajectory(number)])
    arrow.merge_parquet(parts, tmp_path / "out")
    assert pq.ParquetFile(tmp_path / "out").num_row_groups == 1
