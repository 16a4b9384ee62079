"""Trajectory <-> Arrow, Parquet and Arrow IPC: the neutral form, typed exactly as in docs/reference/records.md.

Compatibility: newer files are refused, missing optional columns are filled (the rule is `export.schema`'s).
"""

from __future__ import annotations

from sandgate.trainer.export.parquet import Merged as Merged
from sandgate.trainer.export.parquet import count_parquet as count_parquet
from sandgate.trainer.export.parquet import groups_in_parquet as groups_in_parquet
from sandgate.trainer.export.parquet import merge_parquet as merge_parquet
from sandgate.trainer.export.parquet import read_parquet as read_parquet
from sandgate.trainer.export.parquet import samples_in_parquet as samples_in_parquet
from sandgate.trainer.export.parquet import write_parquet as write_parquet
from sandgate.trainer.export.schema import schema as schema
from sandgate.trainer.export.tables import from_ipc as from_ipc
from sandgate.trainer.export.tables import from_table as from_table
from sandgate.trainer.export.tables import to_batches as to_batches
from sandgate.trainer.export.tables import to_ipc as to_ipc
from sandgate.trainer.export.tables import to_table as to_table
