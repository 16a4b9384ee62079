"""Real Ray: trajectories of files and of leases as typed data sets, and whole groups at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandgate.contract.errors import NewerRecord, NotFound
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer import testing
from sandgate.trainer.export import parquet
from sandgate.trainer.export.arrow import from_table, schema, to_table, write_parquet
from sandgate.trainer.ray.dataset import from_trajectories, leased, map_groups, read_trajectories
from sandgate.trainer.runs import folder
from tests.trainer.verl.rows import row

pytestmark = pytest.mark.usefixtures("quiet_cluster")


@pytest.fixture(scope="module")
def quiet_cluster(ray_cluster: None) -> None:
    """Without progress bars."""
    import ray.data  # type: ignore[import-not-found]

    ray.data.DataContext.get_current().enable_progress_bars = False


def rows(groups: int = 6) -> list[Trajectory]:
    """Groups of three, the second session with two trajectories; first all samples 0, then all 1: no group together."""
    found = [
        row(sample, uid=f"q{at}", session_id=f"s-{at}-{sample}", reward=float(sample))
        for sample in range(3)
        for at in range(groups)
    ]
    extra = row(1, 1, uid="q0", session_id="s-0-1", reward=None)
    return [*found, extra]


def keys(found: Any) -> list[tuple[str, int]]:
    return [(one.session_id, one.trajectory_id) for one in found]


def every(dataset: Any) -> list[Trajectory]:
    """Its rows as trajectories."""
    return [one for batch in dataset.iter_batches(batch_format="pyarrow") for one in from_table(batch)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two: one of several row groups, one that another tool wrote, which lacks a column and has one more."""
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("sandgate.trainer.export.tables.BATCH_ROWS", 4)
    known = rows()
    write_parquet(tmp_path / "ours.parquet", known[:10])
    theirs = to_table(known[10:]).drop_columns(["engine"]).append_column("theirs", pa.nulls(9, pa.int8()))
    pq.write_table(theirs, tmp_path / "theirs.parquet")
    assert len(parquet.row_groups(tmp_path / "ours.parquet")) == 3
    return [tmp_path / "ours.parquet", tmp_path / "theirs.parquet"]


def test_files_are_read_with_their_types_by_our_rule(files: list[Path]) -> None:
    dataset = read_trajectories(files, override_num_blocks=4)
    assert dataset.schema().base_schema.equals(schema())
    assert dataset.count() == 19
    found = every(dataset)
    assert sorted(keys(found)) == sorted(keys(rows()))
    assert {one.engine for one in found} == {""}
    assert dataset.filter(lambda one: one["reward"] == 1.0).count() == 6
    assert found[0].response_ids.tolist() == [10, 11, 4, 5, 12]


def test_a_runs_directory_is_read(files: list[Path]) -> None:
    files[0].rename(files[0].with_name("trajectories.parquet"))
    assert read_trajectories(files[0].parent).count() == 10


def test_a_group_that_was_written_anew_since_is_read_once(files: list[Path]) -> None:
    out = files[0].parent
    os.utime(files[0].rename(out / folder.TRAJECTORIES), (1_000, 1_000))
    held = parquet.read_parquet(out / folder.TRAJECTORIES)
    anew = next(held)
    path = folder.group_file(out, anew.job, anew.uid)
    path.parent.mkdir()
    write_parquet(path, [anew])
    others = [one for one in held if one.uid != anew.uid]
    dataset = read_trajectories(out)
    assert dataset.count() == 1 + len(others)
    assert sorted(keys(every(dataset))) == sorted(keys([anew, *others]))


def test_what_cannot_be_read_is_refused_before_anything_runs(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_trajectories(tmp_path / "nowhere")
    newer = to_table(rows()).replace_schema_metadata({b"sandgate.schema_version": b"9"})
    pq.write_table(newer, tmp_path / "newer.parquet")
    with pytest.raises(NewerRecord):
        read_trajectories([files[0], tmp_path / "newer.parquet"])


def test_an_empty_file_has_the_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "none.parquet", [])
    dataset = read_trajectories(tmp_path / "none.parquet")
    assert dataset.count() == 0
    assert dataset.schema().names == schema().names


def best() -> Callable[[list[Trajectory]], dict[str, list[Any]]]:
    """Made here, so that it travels by value: workers cannot import this file."""

    def numbers(group: list[Trajectory]) -> dict[str, list[Any]]:
        return {
            "uid": [group[0].uid],
            "rows": [len(group)],
            "best": [max(one.reward or 0.0 for one in group)],
        }

    return numbers


def test_a_function_sees_whole_groups_wherever_their_rows_lie(files: list[Path]) -> None:
    found = map_groups(read_trajectories(files), best(), num_partitions=2).take_all()
    assert sorted(found, key=lambda one: str(one["uid"])) == [
        {"uid": f"q{at}", "rows": 4 if at == 0 else 3, "best": 2.0} for at in range(6)
    ]


def test_sessions_without_a_task_are_groups_of_their_own() -> None:
    alone = [row(0, uid="", session_id=name, reward=float(at)) for at, name in enumerate("ab")]
    found = map_groups(from_trajectories([*alone, *rows(1)]), best(), num_partitions=2).take_all()
    assert sorted((one["uid"], one["rows"], one["best"]) for one in found) == [
        ("", 1, 0.0), ("", 1, 1.0), ("q0", 4, 2.0),
    ]  # fmt: skip


def test_trajectories_out_of_groups_are_typed_and_groups_are_in_order(files: list[Path]) -> None:
    def without_the_worst(group: list[Trajectory]) -> list[Trajectory]:
        assert [one.sample_index for one in group] == sorted(one.sample_index for one in group)
        return group[1:]

    found = map_groups(read_trajectories(files), without_the_worst, num_partitions=2)
    assert found.schema().names == schema().names
    assert sorted(keys(every(found))) == sorted(keys(one for one in rows() if one.sample_index))


async def one_session(running: testing.RunningGateway, uid: str, sample: int) -> None:
    session = await running.client.create_session(uid=uid, sample_index=sample, group_size=2, job="shop")
    body = {"model": running.model, "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient(trust_env=False) as http:
        key = {"authorization": f"Bearer {session.api_key}"}
        (await http.post(f"{session.base_url}/chat/completions", json=body, headers=key)).raise_for_status()
    await running.client.finalize(session.session_id, reward=float(sample))


async def test_leased_groups_are_given_back_when_the_block_fails_and_acknowledged_when_not() -> None:
    async with testing.gateway(lambda ids, number: "hello") as running:
        for uid in ("a", "b", "c"):
            for sample in range(2):
                await one_session(running, uid, sample)
        async with running.client.groups(job="shop", idle_s=0.0) as groups:
            with pytest.raises(RuntimeError, match="out of memory"):
                async with leased(groups, 2):
                    raise RuntimeError("out of memory")
            async with leased(groups, 2) as batch:
                found = await asyncio.to_thread(every, batch.dataset)
            async with leased(groups, 5) as rest:
                last = await asyncio.to_thread(every, rest.dataset)
        async with running.client.groups(job="shop", idle_s=0.0) as groups, leased(groups, 1) as none:
            assert (none.groups, none.dataset.count()) == ((), 0)
        committed = [one["committed"] async for one in running.client.sessions()]
    assert sorted(one.uid for one in [*found, *last]) == ["a", "a", "b", "b", "c", "c"]
    assert (len(batch.groups), len(rest.groups)) == (2, 1)
    assert committed == [True] * 6
