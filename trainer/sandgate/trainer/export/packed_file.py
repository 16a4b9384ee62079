"""Packed trees in Parquet files: the schema, and what may differ in a file that is read.

Compatibility rule. It is the trajectory record's (records.md), with a version of its own in the file's metadata,
`sandgate.packed_version`: a newer file is refused, unknown columns are ignored, a column that is missing or cannot be
cast is CorruptRecord and is named. The fields of `leaves` that come from the record follow the record's own version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.trajectory import ARRAY_FIELDS, Trajectory
from sandgate.trainer.export import tables
from sandgate.trainer.export.files import replacing
from sandgate.trainer.export.packed import Leaf, PackedTree
from sandgate.trainer.export.packing import TREE_TOKENS, pack_trees
from sandgate.trainer.export.parquet import opened, write_groups, writer
from sandgate.trainer.export.schema import schema
from sandgate.trainer.export.values import dumps, loads

PACKED_VERSION = 1
VERSION_KEY = b"sandgate.packed_version"
SAVINGS_KEY = b"sandgate.savings"

INT32S = pa.list_(pa.int32())
TREE_COLUMNS = {
    "job": pa.string(),
    "uid": pa.string(),
    "input_ids": INT32S,
    "position_ids": INT32S,
    "loss_mask": pa.list_(pa.int8()),
    "logprobs": pa.list_(pa.float32()),
    "versions": INT32S,
    "starts": INT32S,
    "parents": INT32S,
}
ARRAYS = {name: kind for name, kind in TREE_COLUMNS.items() if kind != pa.string()}
ENCODINGS = {"logprobs.list.element": "BYTE_STREAM_SPLIT"}
"""Floats of one magnitude share their exponent bytes: grouped by byte they compress."""
LEAF_COLUMNS = {
    "prompt_tokens": pa.int32(),
    "segment": pa.int32(),
    "trained": INT32S,
    "advantage": pa.float32(),
}
NULLABLE = frozenset({"advantage"})
RECORD_COLUMNS = tuple(name for name in schema().names if name not in ARRAY_FIELDS)
"""Of the trajectory record, for each leaf: all but the token arrays."""


@dataclass(frozen=True, slots=True)
class Savings:
    """What packing saved."""

    trajectories: int = 0
    trees: int = 0
    tokens: int = 0
    """Of the trajectories, each by itself."""
    packed_tokens: int = 0
    """Stored."""

    @property
    def saved(self) -> float:
        """Part of the tokens that need not be stored, nor computed; 0..1."""
        return 1 - self.packed_tokens / self.tokens if self.tokens else 0.0

    def __add__(self, tree: PackedTree) -> Savings:
        tokens = sum(len(tree.indices(leaf)) for leaf in tree.leaves)
        return Savings(
            self.trajectories + len(tree.leaves),
            self.trees + 1,
            self.tokens + tokens,
            self.packed_tokens + len(tree.input_ids),
        )


def _leaf_type() -> Any:
    record = [schema().field(name) for name in RECORD_COLUMNS]
    own = [pa.field(name, kind, nullable=name in NULLABLE) for name, kind in LEAF_COLUMNS.items()]
    return pa.struct(record + own)


LEAVES = pa.list_(pa.field("element", _leaf_type(), nullable=False))
SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in (TREE_COLUMNS | {"leaves": LEAVES}).items()],
    metadata={VERSION_KEY: str(PACKED_VERSION).encode()},
)


def write_packed(
    path: str | os.PathLike[str],
    trajectories: Iterable[Trajectory],
    *,
    max_tokens: int = TREE_TOKENS,
    atomic: bool = True,
) -> Savings:
    """Stream trajectories to a Parquet file of packed trees (see `packing.pack_trees`), whole or not at all; what was
    saved, which stands in the file's metadata too (`sandgate.savings`, JSON). Raises InvalidBody, OSError."""
    found = Savings()

    def batches() -> Iterator[Any]:
        nonlocal found
        for tree in pack_trees(trajectories, max_tokens=max_tokens):
            found += tree
            yield to_batch(tree)

    with replacing(path, atomic=atomic) as target, writer(target, SCHEMA, (), ENCODINGS) as out:
        sum(write_groups(out, batches(), SCHEMA))
        said = asdict(found) | {"saved": round(found.saved, 6)}
        out.add_key_value_metadata({SAVINGS_KEY: dumps(said, "savings").encode()})
    return found


def read_packed(path: str | os.PathLike[str]) -> Iterator[PackedTree]:
    """Packed trees in the file's order, one row group in memory at a time.

    Raises OSError, NewerRecord, CorruptRecord."""
    with opened(path, _check_version) as file:
        for batch in file.iter_batches(batch_size=1):
            yield from from_batch(batch)


def read_savings(path: str | os.PathLike[str]) -> Savings:
    """What the writer of the file saved. Raises OSError, CorruptRecord."""
    with opened(path, _check_version) as file:
        said = loads(file.metadata.metadata.get(SAVINGS_KEY, b""), SAVINGS_KEY.decode())
        try:
            return Savings(**{name: int(said[name]) for name in Savings.__dataclass_fields__})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRecord(f"{SAVINGS_KEY.decode()} are not numbers: {error!r}") from error


def _check_version(found: Any) -> None:
    said = (found.metadata or {}).get(VERSION_KEY, b"")
    if not said.isdigit():
        raise CorruptRecord(f"{VERSION_KEY.decode()} is {said!r}, not a number: no file of packed trees")
    if int(said) > PACKED_VERSION:
        raise NewerRecord(seen=int(said), known=PACKED_VERSION)


def to_batch(tree: PackedTree) -> Any:
    """A RecordBatch of one row. Raises InvalidBody."""
    columns = [pa.array([tree.job]), pa.array([tree.uid])]
    for name, kind in ARRAYS.items():
        flat = pa.array(getattr(tree, name), kind.value_type)
        columns.append(pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat))
    records = tables.pack([leaf.record for leaf in tree.leaves])
    own = [
        pa.array([getattr(leaf, name) for leaf in tree.leaves], kind) for name, kind in LEAF_COLUMNS.items()
    ]
    struct = pa.StructArray.from_arrays(
        [*(records.column(name) for name in RECORD_COLUMNS), *own], fields=list(LEAVES.value_type)
    )
    columns.append(pa.ListArray.from_arrays(pa.array([0, len(struct)], pa.int32()), struct, type=LEAVES))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def from_batch(batch: Any) -> Iterator[PackedTree]:
    """Rows of a RecordBatch as packed trees; their arrays share its memory. Raises NewerRecord, CorruptRecord."""
    columns = {name: _column(batch, name, kind) for name, kind in TREE_COLUMNS.items()}
    leaves = _column(batch, "leaves")
    if not (pa.types.is_list(leaves.type) and pa.types.is_struct(leaves.type.value_type)):
        raise CorruptRecord(f"column leaves is {leaves.type}, not a list of structs")
    for row in range(batch.num_rows):
        yield PackedTree(
            job=columns["job"][row].as_py(),
            uid=columns["uid"][row].as_py(),
            leaves=_leaves(pa.RecordBatch.from_struct_array(leaves[row].values)),
            **{name: _numbers(name, columns[name][row].values) for name in ARRAYS},
        )


def _column(batch: Any, name: str, kind: Any = None) -> Any:
    """Its column of this name, as `kind`."""
    at = batch.schema.get_all_field_indices(name)
    if len(at) != 1:
        raise CorruptRecord(f"column {name} appears {len(at)} times" if at else f"column {name} is missing")
    found = batch.column(at[0])
    try:
        found = found if kind is None else found.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptRecord(f"column {name} is {found.type}, not {kind}: {error}") from error
    if found.null_count and name not in NULLABLE:
        raise CorruptRecord(f"column {name} has {found.null_count} nulls")
    return found


def _numbers(name: str, values: Any) -> Any:
    if values.null_count:
        raise CorruptRecord(f"column {name} has nulls inside its lists")
    return np.asarray(values)


def _leaves(batch: Any) -> tuple[Leaf, ...]:
    """Rows of one tree's structs."""
    prompts, segments, trained, advantages = (
        _column(batch, name, kind).to_pylist() for name, kind in LEAF_COLUMNS.items()
    )
    rows = zip(_records(batch), prompts, segments, trained, advantages, strict=True)
    return tuple(
        Leaf(record, prompt, segment, tuple(trains), advantage)
        for record, prompt, segment, trains, advantage in rows
    )


def _records(batch: Any) -> Iterator[Trajectory]:
    """With empty token arrays, which the tree has."""
    known = [name for name in batch.schema.names if name in RECORD_COLUMNS]
    nothing = [pa.repeat(pa.scalar([], schema().field(name).type), batch.num_rows) for name in ARRAY_FIELDS]
    columns = [*(batch.column(name) for name in known), *nothing]
    return tables.unpack(pa.RecordBatch.from_arrays(columns, names=[*known, *ARRAY_FIELDS]))
