"""`sandgate export` in verl's environment: what it writes is verl's own, torch's own, and a data set."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-not-found]
from typer.testing import CliRunner
from verl import DataProto  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import (  # type: ignore[import-not-found]
    compute_grpo_outcome_advantage,
)

from sandgate.trainer.areal import to_tensor_dict
from sandgate.trainer.cli.command import app
from sandgate.trainer.export.arrow import read_parquet, write_parquet
from sandgate.trainer.export.trl import to_rollout
from tests.trainer.verl.rows import row, short


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "trajectories.parquet", [row(0), short(1), row(2, reward=0.0)])
    return tmp_path


def export(run: Path, form: str, *options: object) -> dict[str, Any]:
    said = CliRunner().invoke(app, ["export", str(run), "--format", form, "--json", *map(str, options)])
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_a_dataproto_is_verls_own_and_its_advantages_are_computed(run: Path) -> None:
    told = export(run, "dataproto", "--pad-token-id", 99)
    assert told == {
        "path": str(run / "trajectories.dataproto.pkl"), "format": "dataproto", "trajectories": 3, "too_long": 0,
        "missing": 0, "missing_groups": 0,
    }  # fmt: skip
    found = DataProto.load_from_disk(told["path"])
    assert found.batch["input_ids"].tolist()[1] == [99, 1, 2, 20, 21, 99, 99, 99]
    assert len(DataProto.concat([found, found])) == 6
    assert [len(part) for part in found.chunk(3)] == [1, 1, 1]
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=found.batch["rm_scores"],
        response_mask=found.batch["response_mask"],
        index=found.non_tensor_batch["uid"],
    )
    assert advantages[0, 0] > 0 > advantages[1, 0]


def test_rows_over_the_lengths_are_masked_whole_and_counted(run: Path) -> None:
    told = export(run, "dataproto", "--prompt-length", 2, "--response-length", 4)
    assert told["too_long"] == 2
    batch = DataProto.load_from_disk(told["path"]).batch
    assert batch["prompts"].tolist() == [[0, 1], [1, 2], [0, 1]]
    assert [bool(sum(mask)) for mask in batch["response_mask"].tolist()] == [False, True, False]


def test_areals_tensor_dict_holds_each_rows_own(run: Path) -> None:
    told = export(run, "areal")
    found = torch.load(told["path"], weights_only=True)
    for at, one in enumerate(read_parquet(run / "trajectories.parquet")):
        for name, column in to_tensor_dict(one).items():
            assert found[name].dtype == column.dtype
            there = found[name][at : at + 1]
            assert torch.equal(there[:, : column.shape[1]] if column.ndim == 2 else there, column), name


def test_trls_columns_are_a_data_set_and_a_slice_of_it_is_the_dict(run: Path) -> None:
    told = export(run, "trl")
    rows = Dataset.from_parquet(told["path"], cache_dir=str(run / "cache"))
    assert rows[:] == to_rollout(read_parquet(run / "trajectories.parquet"))
    assert rows.features["completion_ids"].feature.dtype == "int32"
    assert rows[:2]["env_mask"] == [[1, 1, 0, 0, 1], [1, 1]]


def test_nothing_is_written_where_a_row_cannot_be(run: Path) -> None:
    write_parquet(run / "trajectories.parquet", [row(multimodal=b"image", prompt_ids=array("i", [1]))])
    for form in ("areal", "trl"):
        said = CliRunner().invoke(app, ["export", str(run), "--format", form])
        assert (said.exit_code, "images" in said.output) == (2, True), said.output
    assert [file.name for file in run.iterdir()] == ["trajectories.parquet"]
