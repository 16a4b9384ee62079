"""A folder that is used again: nothing is mixed in it, each row can name its manifest, what is deleted comes back."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.operator.local import resuming
from sandgate.operator.local.job import SessionStarted
from sandgate.operator.local.resuming import Recipe
from sandgate.operator.plan.frozen_fields import task_digest
from tests.operator.rig import MODEL, Rig, job, rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def content(out: Path) -> dict[str, bytes]:
    """What a refusal must leave as it is."""
    kept = ("*.json", "*.parquet", "groups/*.parquet", "manifests/*.json")
    return {str(path): path.read_bytes() for pattern in kept for path in out.glob(pattern)}


async def refused(up: Rig, wanted: RolloutJob) -> str:
    """In one line, and before anything is started or changed."""
    before = content(up.out)
    with pytest.raises(Conflict) as caught:
        await up.run(wanted)
    assert up.events == []
    assert content(up.out) == before
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("give this job a folder of its own (--out), or start over with --fresh")
    return str(caught.value)


async def test_what_would_mix_rows_is_refused_by_field_all_at_once(up: Rig) -> None:
    first = job("a 1 tea", "b 2 tea", sampling={"temperature": 1.0})
    assert (await up.run(first)).complete
    said = await refused(
        up,
        job(
            "a 9 kiwi",
            "c 3 tea",
            sampling={"temperature": 0.2},
            reward={"source": "exitCode"},
            limits={"turns": 7},
        ),
    )
    for words in (
        "spec.sampling.temperature 1 (now 0.2)",
        'spec.reward.source "agent" (now "exitCode")',
        "spec.limits.turns unset (now 7)",
        "another prompt or data of task a",
        "task b no longer among the tasks",
    ):
        assert words in said
    assert (await up.run(first)).complete, "the folder is as good as before"


async def test_what_makes_the_same_rows_goes_on(up: Rig) -> None:
    assert (await up.run(job("a 1 tea", sampling={"temperature": 1.0}))).complete
    again = job(
        "b 2 tea",
        "a 1 tea",
        sampling={"temperature": 1, "topP": None},
        parallelism=1,
        gateway={"replicas": 2},
        group={"retry": {"infra": 0}},
        engine={"endpoints": ["http://127.0.0.1:10"]},
        activeDeadlineSeconds=500,
    )
    result = await up.run(again)
    assert result.complete
    assert [one.uid for one in up.of(SessionStarted)] == ["b"]
    assert [row.uid for row in up.rows()] == ["b", "a"]


async def test_every_row_names_its_manifest_and_its_task(up: Rig) -> None:
    wanted = job("a 1 tea", groupSize=2, sampling={"temperature": 0.5})
    await up.run(wanted)
    digests = set()
    for row in up.rows():
        digests.add(row.metadata["manifest"])
        assert wanted.spec.tasks.inline is not None
        assert row.metadata["task"] == task_digest(wanted.spec.tasks.inline[0])
    (digest,) = digests
    said = json.loads((up.out / "manifests" / f"{digest}.json").read_text())
    assert decode(RolloutJob, said["manifest"]) == wanted


async def test_while_there_is_no_row_anything_may_be_mended(up: Rig) -> None:
    wrong = job(
        "a 1 tea", "gone 2 tea", model={"name": "shop", "tokenizer": str(MODEL)}, agent=agent("pythonx")
    )
    first = await up.run(wrong)
    assert (first.complete, first.trajectories is not None) == (False, True)
    second = await up.run(job("a 9 kiwi", sampling={"temperature": 0.2}), retry_failed=True)
    assert second.complete
    assert [(row.uid, row.attempt) for row in up.rows()] == [("a", 1)]
    assert {row.metadata["manifest"] for row in up.rows()} == {
        path.stem for path in (up.out / "manifests").glob("*.json") if "pythonx" not in path.read_text()
    }


def agent(*command: str, **container: Any) -> dict[str, Any]:
    return {
        "backend": "Process",
        "template": {"spec": {"containers": [{"command": list(command), **container}]}},
    }


async def test_a_folder_of_a_version_that_kept_less_goes_on_and_is_guarded(
    up: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit 490fd5d left job.json, and nothing in the sessions."""
    first = job("a 1 tea", sampling={"temperature": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "metadata", lambda self, task: {})
        assert (await up.run(first)).complete
    assert up.rows()[0].metadata == {}

    def as_it_was() -> None:
        (up.out / "made.json").unlink()
        shutil.rmtree(up.out / "manifests")

    as_it_was()
    assert "spec.sampling.temperature 1 (now 0.2)" in await refused(
        up, job("a 1 tea", sampling={"temperature": 0.2})
    )
    assert "another prompt or data of task a" in await refused(
        up, job("a 2 tea", sampling={"temperature": 1.0})
    )
    result = await up.run(job("a 1 tea", "b 2 tea", sampling={"temperature": 1.0}))
    assert result.complete
    assert [sorted(row.metadata) for row in up.rows()] == [[], ["manifest", "task"]]
    said = await refused(up, job("a 1 tea", "b 2 tea", sampling={"temperature": 0.3}))
    assert said.count("spec.sampling.temperature 1 (now 0.3)") == 1


async def test_a_folder_whose_manifests_name_a_pool_goes_on(up: Rig) -> None:
    """Commit bd89231 wrote `agent.pool`, a field that is gone, into every manifest that it kept."""
    first = job("a 1 tea")
    assert (await up.run(first)).complete

    def with_pool(path: Path, *under: str) -> None:
        said = json.loads(path.read_text())
        manifest = said[under[0]] if under else said
        manifest["spec"]["agent"]["pool"] = {"size": 0}
        path.write_text(json.dumps(said))

    with_pool(up.out / "job.json")
    (kept,) = (up.out / "manifests").glob("*.json")
    with_pool(kept, "manifest")
    assert (await up.run(job("a 1 tea", "b 2 tea"))).complete
    assert sorted(row.uid for row in up.rows()) == ["a", "b"]


async def test_a_tokenizer_may_move_and_not_change(up: Rig) -> None:
    there = up.folder / "there"
    shutil.copytree(MODEL, there)

    def at(path: Path) -> RolloutJob:
        return job("a 1 tea", model={"name": "shop", "tokenizer": str(path), "maxModelLen": 4096})

    assert (await up.run(at(MODEL))).complete
    assert (await up.run(at(there))).complete
    assert up.of(SessionStarted) == []
    template = there / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert "spec.model.tokenizer with other files" in await refused(up, at(there))


async def test_a_tasks_file_may_grow_and_its_tasks_not_change(up: Rig) -> None:
    path = up.folder / "tasks.jsonl"

    def write(**prompts: str) -> None:
        path.write_text(
            "".join(json.dumps({"uid": uid, "prompt": text}) + "\n" for uid, text in prompts.items())
        )

    wanted = job("x", tasks={"file": str(path)})
    write(a="a 1 tea")
    assert (await up.run(wanted)).complete
    write(b="b 2 tea", a="a 1 tea")
    assert (await up.run(wanted)).complete
    assert [one.uid for one in up.of(SessionStarted)] == ["b"]
    write(b="b 2 tea", a="a 1 coffee")
    assert "another prompt or data of task a" in await refused(up, wanted)


async def test_what_is_deleted_of_the_output_is_written_again(up: Rig) -> None:
    wanted = job("a 1 tea", "b 2 tea", "c 3 tea", groupSize=2)
    assert (await up.run(wanted)).complete
    rows = up.rows()
    files = sorted((up.out / "groups").glob("*.parquet"))
    for path in (files[0], files[2], up.out / "trajectories.parquet"):
        path.unlink()
    again = await up.run(wanted)
    assert again.complete
    assert up.of(SessionStarted) == []
    assert up.rows() == rows
    assert sorted((up.out / "groups").glob("*.parquet")) == files


async def test_a_journal_that_is_gone_is_not_sampled_again_in_silence(up: Rig) -> None:
    wanted = job("a 1 tea", "b 2 tea", gateway={"replicas": 2})
    assert (await up.run(wanted)).complete
    for path in up.out.glob("gateway-1.sqlite*"):
        path.unlink()
    assert "gateway-1.sqlite is gone" in await refused(up, wanted)
    for path in up.out.glob("gateway-0.sqlite*"):
        path.unlink()
    assert "gateway-0.sqlite, gateway-1.sqlite are gone" in await refused(up, wanted)


async def test_an_emptied_journal_is_not_taken_for_a_new_one(up: Rig) -> None:
    """SQLite would make it anew, and all would be sampled again; with another manifest, beside rows of the first."""
    wanted = job("a 1 tea")
    assert (await up.run(wanted)).complete
    (up.out / "gateway-0.sqlite").write_bytes(b"")
    (up.out / "result.json").unlink(missing_ok=True)
    assert "gateway-0.sqlite is gone" in await refused(up, wanted)


async def test_a_manifest_that_is_gone_or_damaged_is_no_leave_to_mix(up: Rig) -> None:
    wanted = job("a 1 tea")
    assert (await up.run(wanted)).complete
    other = job("a 1 tea", sampling={"temperature": 0.2})
    for path in (up.out / "manifests").glob("*.json"):
        path.write_text("{}")
    assert "cannot be read" in await refused(up, other)
    (up.out / "job.json").write_text("[")
    assert "job.json cannot be read" in await refused(up, wanted)


def ill(patch: pytest.MonkeyPatch, file: Path, number: int = errno.EIO) -> None:
    """The file cannot be read as text; where journals are looked for, all are opened."""
    real = io.open

    def fails(path: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        if path == file and mode == "r":
            raise OSError(number, os.strerror(number))  # without its name, as a read does
        return real(path, mode, *args, **more)

    patch.setattr(io, "open", fails)


async def test_what_cannot_be_read_now_is_not_taken_for_nothing(
    up: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be written back so: which groups lack rows would be forgotten, and they would be taken for whole."""
    wanted, other = job("a 1 tea"), job("a 1 tea", sampling={"temperature": 0.2})
    assert (await up.run(wanted)).complete
    resuming.reopen(up.out, ["a"])
    before = content(up.out)
    (kept,) = (up.out / "manifests").iterdir()
    for file, run in ((up.out / "made.json", wanted), (up.out / "job.json", wanted), (kept, other)):
        with monkeypatch.context() as patch:
            ill(patch, file)
            with pytest.raises(Unavailable) as caught:
                await up.run(run)
        assert str(caught.value) == f"{file}: cannot be read now (Input/output error); try again"
        assert content(up.out) == before
    assert (await up.run(wanted)).complete


def test_a_note_is_not_written_over_what_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.reopen(tmp_path, ["a"])
    notes: tuple[Callable[[], object], ...] = (
        lambda: resuming.stands(tmp_path, 2),
        lambda: resuming.reopen(tmp_path, ["b"]),
        lambda: resuming.reopened(tmp_path),
        lambda: resuming.still_there(tmp_path, 0),
    )
    for note in notes:
        with monkeypatch.context() as patch:
            ill(patch, tmp_path / "made.json", errno.EMFILE)
            with pytest.raises(Unavailable, match=r"made\.json: cannot be read now \(Too many open files\)"):
                note()
    assert resuming.reopened(tmp_path) == {"a"}
