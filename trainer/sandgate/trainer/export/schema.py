"""The Arrow schema of a trajectory, and what may differ in a file that is read.

Compatibility rule. The schema's metadata carry `sandgate.schema_version`, and every row carries it too.

What may change without a new version: a column is added, with a default that means what its absence meant. What needs
one: a column is removed or renamed; its type, shape, unit or meaning changes; a null becomes possible where none was.
A test compares the schema with golden/schema.json, and reads files of each kind below, so that neither happens unseen.

How readers treat what they find:

* A file of a newer version is refused (NewerRecord), before a row is looked at.
* Same or older version: a missing column of a field that has a default is filled with that default; unknown columns
  are ignored (a newer writer of the same version added them); order is free; wider or differently spelled types of the
  same values (large_list, int64, dictionary of strings: what other tools write back) are cast, never truncated.
* `masked` follows from `reward` and `failure_class`: it is worked out anew, whether it is there or not.
* Anything else is CorruptRecord and names the column: a missing column without default, a column that is there twice, a
  null in a column that has none, a value that does not fit.
* Metadata that a tool dropped are no error: the rows' own version is checked then.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.trajectory import DERIVED, FIRST_VERSION, SCHEMA_VERSION, Trajectory
from sandgate.trainer.export.values import dumps

VERSION_KEY = b"sandgate.schema_version"
ENCODING_KEY = b"sandgate.encoding"
JSON_ENCODING = {ENCODING_KEY: b"json"}

_STR, _INT, _JSON = pa.string(), pa.int32(), "json"
_STRS, _INTS, _DOUBLES = pa.list_(pa.string()), pa.list_(pa.int32()), pa.list_(pa.float64())


class ArrowColumn(NamedTuple):
    """What a reader in any language needs to know of a column, beside its meaning (the record's own docs)."""

    type: Any
    """Of Arrow; `json`: text, whose field metadata say so."""
    shape: str = ""
    """Empty: one value per row. P tokens of prompt, R of response, K turns."""
    unit: str = ""


COLUMNS: dict[str, ArrowColumn] = {
    "schema_version": ArrowColumn(_INT),
    "job": ArrowColumn(_STR),
    "uid": ArrowColumn(_STR),
    "session_id": ArrowColumn(_STR),
    "trajectory_id": ArrowColumn(_INT, unit="index"),
    "sample_index": ArrowColumn(_INT, unit="index"),
    "attempt": ArrowColumn(_INT, unit="index"),
    "prompt_ids": ArrowColumn(_INTS, "[P]", "token id"),
    "response_ids": ArrowColumn(_INTS, "[R]", "token id"),
    "response_logprobs": ArrowColumn(pa.list_(pa.float32()), "[R]", "nat"),
    "loss_mask": ArrowColumn(pa.list_(pa.int8()), "[R]", "0 or 1"),
    "versions": ArrowColumn(_INTS, "[R]", "policy version"),
    "turn_ids": ArrowColumn(_STRS, "[K]"),
    "turn_ends": ArrowColumn(_INTS, "[K]", "index of response_ids"),
    "reward": ArrowColumn(pa.float64(), unit="the task's"),
    "turn_rewards": ArrowColumn(_DOUBLES, "[K] or [0]", "the task's"),
    "reward_info": ArrowColumn(_JSON, "object"),
    "finish_reason": ArrowColumn(_STR),
    "fork_reason": ArrowColumn(_STR),
    "parent_turn": ArrowColumn(_STR),
    "role": ArrowColumn(_STR),
    "main": ArrowColumn(pa.bool_()),
    "failure_class": ArrowColumn(_STR),
    "failure_reason": ArrowColumn(_STR),
    "complete": ArrowColumn(pa.bool_()),
    "masked": ArrowColumn(pa.bool_()),
    "model": ArrowColumn(_STR),
    "renderer": ArrowColumn(_STR),
    "engine": ArrowColumn(_STR),
    "logprobs_mode": ArrowColumn(_STR),
    "sampling": ArrowColumn(_JSON, "object"),
    "turn_settings": ArrowColumn(_JSON, "[K] or [0] objects"),
    "tokenizer_digest": ArrowColumn(_STR),
    "multimodal": ArrowColumn(pa.binary(), "bytes"),
    "routed_experts": ArrowColumn(pa.binary(), "bytes"),
    "created_at": ArrowColumn(pa.timestamp("us", tz="UTC"), unit="microsecond since 1970"),
    "metadata": ArrowColumn(_JSON, "object"),
}
"""Order is the record's."""
TYPES: dict[str, Any] = {name: column.type for name, column in COLUMNS.items()}

NULLABLE = frozenset({"reward", "failure_class", "failure_reason", "multimodal", "routed_experts"})
JSON_COLUMNS = frozenset(name for name, kind in TYPES.items() if kind == _JSON)


def schema() -> Any:
    """pyarrow.Schema of the newest version, metadata included."""
    return _SCHEMA


def _field(name: str, kind: Any) -> Any:
    is_json = name in JSON_COLUMNS
    return pa.field(
        name,
        pa.string() if is_json else kind,
        nullable=name in NULLABLE,
        metadata=JSON_ENCODING if is_json else None,
    )


_SCHEMA = pa.schema(
    [_field(name, kind) for name, kind in TYPES.items()], metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()}
)


def check_version(found: Any) -> None:
    """Raises NewerRecord or CorruptRecord by the metadata of a pyarrow.Schema. Metadata that a tool dropped on the way
    are no error: each row carries its version too, and is checked when it is read."""
    said = (found.metadata or {}).get(VERSION_KEY)
    if said is None:
        return
    if not said.isdigit():
        raise CorruptRecord(f"{VERSION_KEY.decode()} is {said!r}, not a number")
    if int(said) > SCHEMA_VERSION:
        raise NewerRecord(seen=int(said), known=SCHEMA_VERSION)


def conform(batch: Any) -> Any:
    """A RecordBatch of our schema from one that is allowed to differ (see the module). Raises CorruptRecord.

    No copy where a column already has its type.
    """
    columns = {field.name: _column(batch, field) for field in _SCHEMA if field.name not in DERIVED}
    columns["masked"] = _masked(columns["reward"], columns["failure_class"])
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


def _masked(reward: Any, blame: Any) -> Any:
    """As `Trajectory.masked`."""
    others = pc.fill_null(pc.not_equal(blame, FailureClass.POLICY.value), False)
    return pc.or_(pc.is_null(reward), others)


def _column(batch: Any, want: Any) -> Any:
    at = batch.schema.get_all_field_indices(want.name)
    if len(at) > 1:
        raise CorruptRecord(f"column {want.name} appears {len(at)} times")
    if not at:
        return _default(want, batch.num_rows)
    found = batch.column(at[0])
    if found.type != want.type:
        try:
            found = found.cast(want.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CorruptRecord(f"column {want.name} is {found.type}, not {want.type}: {error}") from error
    if found.null_count and not want.nullable:
        raise CorruptRecord(f"column {want.name} has {found.null_count} nulls")
    return found


def _default(want: Any, rows: int) -> Any:
    if want.name not in DEFAULTS:
        raise CorruptRecord(f"column {want.name} is missing")
    value = pa.scalar(DEFAULTS[want.name], want.type)
    return pa.nulls(rows, want.type) if not value.is_valid else pa.repeat(value, rows)


def _defaults() -> dict[str, Any]:
    """Column -> what a missing one is filled with; only of fields that have a default."""
    found: dict[str, Any] = {}
    for field in fields(Trajectory):
        if field.default_factory is not MISSING:
            found[field.name] = dumps(field.default_factory(), field.name)
        elif field.default is not MISSING:
            found[field.name] = list(field.default) if isinstance(field.default, tuple) else field.default
        if field.name in found and field.name in JSON_COLUMNS and field.default is not MISSING:
            found[field.name] = dumps(found[field.name], field.name)
    return found | {"created_at": 0, "schema_version": FIRST_VERSION}


DEFAULTS = _defaults()
