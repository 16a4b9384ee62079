"""The Arrow schema of a trajectory, and what may differ in a file that is read.

Compatibility rule. The schema's metadata carry `sandgate.schema_version`.

* A file of a newer version is refused (NewerRecord), before a row is looked at.
* Same or older version: a missing column of a field that has a default is filled with that default; unknown columns
  are ignored (a newer writer of the same version added them); wider or differently spelled types of the same values
  (large_list, int64, dictionary of strings: what other tools write back) are cast, never truncated.
* Anything else is CorruptRecord and names the column: a missing column without default, a null in a column that has
  none, a value that does not fit.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pyarrow as pa

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.trajectory import SCHEMA_VERSION, Trajectory
from sandgate.trainer.export.values import dumps

VERSION_KEY = b"sandgate.schema_version"
ENCODING_KEY = b"sandgate.encoding"
JSON_ENCODING = {ENCODING_KEY: b"json"}

_STR, _INT, _JSON = pa.string(), pa.int32(), "json"

TYPES: dict[str, Any] = {
    "schema_version": _INT,
    "job": _STR,
    "uid": _STR,
    "session_id": _STR,
    "trajectory_id": _INT,
    "sample_index": _INT,
    "attempt": _INT,
    "prompt_ids": pa.list_(pa.int32()),
    "response_ids": pa.list_(pa.int32()),
    "response_logprobs": pa.list_(pa.float32()),
    "loss_mask": pa.list_(pa.int8()),
    "versions": pa.list_(pa.int32()),
    "turn_ids": pa.list_(pa.string()),
    "turn_ends": pa.list_(pa.int32()),
    "reward": pa.float64(),
    "turn_rewards": pa.list_(pa.float64()),
    "reward_info": _JSON,
    "finish_reason": _STR,
    "fork_reason": _STR,
    "parent_turn": _STR,
    "failure_class": _STR,
    "failure_reason": _STR,
    "complete": pa.bool_(),
    "model": _STR,
    "renderer": _STR,
    "engine": _STR,
    "logprobs_mode": _STR,
    "sampling": _JSON,
    "tokenizer_digest": _STR,
    "multimodal": pa.binary(),
    "routed_experts": pa.binary(),
    "created_at": pa.timestamp("us", tz="UTC"),
    "metadata": _JSON,
}
"""Column -> Arrow type, `json` for text with field metadata that say so. Order is the record's."""

NULLABLE = frozenset({"reward", "failure_class", "failure_reason", "multimodal", "routed_experts"})
JSON_COLUMNS = frozenset(name for name, kind in TYPES.items() if kind == _JSON)


def schema() -> Any:
    """pyarrow.Schema of version 1, metadata included."""
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
    columns = [_column(batch, field) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


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
    return found | {"created_at": 0}


DEFAULTS = _defaults()
