"""The shop's errands as verl's data sets: `python make_data.py FOLDER` writes train.parquet and test.parquet there.

`reward_model` and the errand's own columns are for the verifier; an agent sees its prompt alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TASKS = Path(__file__).parent.parent / "shop" / "tasks.jsonl"
TEST = 16
"""Errands that are not trained on."""


def main(folder: Path) -> None:
    rows = []
    for number, line in enumerate(TASKS.read_text().splitlines()):
        task = json.loads(line)
        rows.append(
            {
                "data_source": "shop",
                "prompt": [{"role": "user", "content": task["prompt"]}],
                "reward_model": {"style": "rule", "ground_truth": task["prompt"]},
                "extra_info": {"index": number},
                **task["data"],
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows[TEST:]), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:TEST]), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
