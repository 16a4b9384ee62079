"""Without a trainer whole groups become files, and are committed once they are durable there."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandgate.contract.errors import BadManifest, Conflict, InvalidBody, JournalUnavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionOutcome
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.config import OutputConfig
from sandgate.gateway.delivery import file_output, parquet, storage
from sandgate.gateway.delivery.parquet import to_parquet
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Rewarded
from sandgate.trainer.export.arrow import read_parquet, write_parquet
from tests.gateway.journal.disks import cut_power, ext4_image, mounted
from tests.gateway.test_arrow_leases import row
from tests.support.gateway import Running, admin_key, eventually, gateway, within

Written = dict[str, list[str]]
"""File name -> the sessions of its rows."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_output, "POLL_S", 0.02)
    monkeypatch.setattr(file_output, "RETRY_S", 0.02)
    monkeypatch.setattr(file_output, "RETRY_MAX_S", 0.02)


@asynccontextmanager
async def serving(
    url: Path | str, disk: MemoryDisk | None = None
) -> AsyncIterator[tuple[Running, GatewayClient]]:
    store = MemoryStore(disk)
    async with (
        gateway(
            lambda ids, number: f"answer {number}", store=store, output=OutputConfig(parquet=str(url))
        ) as g,
        GatewayClient(g.origin, admin_key(), deadline_s=0.0) as admin,
    ):
        yield g, admin
    await store.aclose()


async def ended(g: Running, uid: str, index: int = 0, size: int = 1) -> str:
    """A session of a turn."""
    name = f"{uid}-{index}"
    agent = await g.session(session_id=name, uid=uid, sample_index=index, group_size=size)
    await agent.ask("hi")
    await g.finalize(agent)
    return name


async def committed(admin: GatewayClient, *names: str) -> None:
    """Returns when they are."""
    cursor = 0
    left = set(names)
    async with asyncio.timeout(20):
        while left:
            seen = await admin.events(cursor, wait_s=20.0)
            cursor = seen.cursor
            left -= {name for name, state in seen.sessions if state == "committed"}


def block(folder: Path) -> None:
    """Nothing can be written there any more."""
    folder.rmdir()
    folder.write_text("no folder")


async def trouble(g: Running, words: str) -> None:
    """Returns when the status says so."""
    said = g.core.writing
    assert said is not None
    await eventually(lambda: words in str(said()["problem"]), words)


def files(folder: Path) -> Written:
    return {one.name: [row.session_id for row in read_parquet(one)] for one in sorted(folder.iterdir())}


async def test_a_group_is_a_file_once_it_is_whole_and_then_it_is_committed(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    async with serving(folder) as (g, admin):
        first = await ended(g, "q", 0, size=2)
        await committed(admin, await ended(g, "r"))
        assert list(files(folder).values()) == [["r-0"]], "q is not whole"
        second = await ended(g, "q", 1, size=2)
        await committed(admin, first, second)
        assert sorted(files(folder).values()) == [["q-0", "q-1"], ["r-0"]]
        assert (await admin.status())["output"] == {"groups": 2, "problem": "", "stuck": {}}
        (row, *_) = read_parquet(next(folder.glob("*-r-*.parquet")))
        assert (row.job, row.uid, len(row.response_ids) == len(row.versions) > 0) == ("shop-job", "r", True)


async def test_a_group_that_its_driver_closed_is_whole(tmp_path: Path) -> None:
    async with serving(tmp_path / "out") as (g, admin):
        name = await ended(g, "q", 0, size=3)
        await admin.close_group("q")
        await committed(admin, name)
        assert list(files(tmp_path / "out").values()) == [[name]]


async def test_a_lost_group_is_no_file_and_nobodys(tmp_path: Path) -> None:
    async with serving(tmp_path / "out") as (g, admin):
        agent = await g.session(session_id="lost-0", uid="lost", sample_index=0, group_size=2)
        await agent.ask("hi")
        await admin.finalize("lost-0", SessionOutcome(failure_reason=FailureReason.NODE_LOST))
        await admin.close_group("lost")
        await committed(admin, await ended(g, "q"))
        assert list(files(tmp_path / "out").values()) == [["q-0"]]
        assert not (await admin.get("lost-0")).committed
        assert not g.core.sessions.book.whole


async def test_samples_that_came_later_have_a_file_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path / "out") as (g, admin):
        await committed(admin, await ended(g, "q", 0, size=1))
        await committed(admin, await ended(g, "q", 1, size=2))
        assert sorted(files(tmp_path / "out").values()) == [["q-0"], ["q-1"]]


async def test_no_file_loses_rows_to_a_later_session_of_its_task(tmp_path: Path) -> None:
    """Not to one that came when the first was retired, and not to one that stands for the same sample."""
    disk, folder = MemoryDisk(), tmp_path / "out"
    async with serving(folder, disk) as (g, admin):
        await committed(admin, await ended(g, "q", 0))
        assert await g.core.sessions.retire(-1.0) == 1
        await committed(admin, await ended(g, "q", 1))
        (name,) = await once_more(g, "q")
        await committed(admin, name)
        assert sorted(files(folder).values()) == [["q-0"], ["q-1"], [name]]
        assert await g.core.sessions.retire(-1.0) == 2
    async with serving(folder, disk) as (g, admin):
        names = [*await once_more(g, "q"), *await once_more(g, "q")]
        await committed(admin, *names)
        assert sorted(files(folder).values()) == sorted([["q-0"], ["q-1"], [name], *([one] for one in names)])


async def test_no_file_is_written_over_because_its_bucket_refuses_everything_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it does, what is there looks as if it were not."""
    from fsspec.implementations.memory import MemoryFileSystem

    def refuses(self: MemoryFileSystem, *args: Any, **settings: Any) -> Any:
        raise PermissionError(13, "ACCESS_DENIED")

    shelf = storage.storage("memory://refuses/folder")
    async with serving("memory://refuses/folder") as (g, admin):
        await committed(admin, await ended(g, "q", 0))
        assert await g.core.sessions.retire(-1.0) == 1
        with monkeypatch.context() as denied:
            denied.setattr(MemoryFileSystem, "info", refuses)
            denied.setattr(MemoryFileSystem, "open", refuses)
            names = await once_more(g, "q")
            await trouble(g, "ACCESS_DENIED")
        await committed(admin, *names)
    found = MemoryFileSystem().ls("/refuses/folder", detail=False)
    data = [shelf.read(one.rpartition("/")[2]) for one in found]
    held = [parquet.sessions_in(one) for one in data if one is not None]
    assert sorted(held, key=sorted) == sorted([frozenset(["q-0"]), frozenset(names)], key=sorted)


async def once_more(g: Running, uid: str) -> list[str]:
    """A session of the task's sample 1, whoever else is."""
    agent = await g.session(uid=uid, sample_index=1)
    await agent.ask("hi")
    await g.finalize(agent)
    return [agent.id]


HELD: dict[str, tuple[Any, frozenset[str]]] = {
    "of sessions": (lambda: to_parquet([row(session_id="a"), row(session_id="b")]), frozenset("ab")),
    "without a row": (lambda: to_parquet([]), frozenset()),
    "of somebody else": (lambda: _table({"x": [1]}), frozenset({""})),
    "that was cut": (lambda: to_parquet([row(session_id="a")])[:-9], frozenset()),
    "of text": (lambda: b"hello", frozenset()),
}


@pytest.mark.parametrize(("data", "sessions"), HELD.values(), ids=HELD)
def test_a_file_says_whose_rows_it_has(data: Any, sessions: frozenset[str]) -> None:
    assert parquet.sessions_in(data()) == sessions


def _table(columns: dict[str, list[int]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


async def test_a_trainer_that_asks_is_told_where_they_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as (g, admin):
        await committed(admin, await ended(g, "q"))
        with pytest.raises(Conflict, match=r"spec\.output\.parquet"):
            await admin.lease(max_groups=1, ttl_s=60.0)


async def test_a_store_that_is_away_holds_up_everything_and_loses_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "out"
    async with serving(blocked) as (g, admin):
        block(blocked)
        names = [await ended(g, uid) for uid in "qrs"]
        await trouble(g, "FileExistsError")
        assert [(await admin.get(name)).committed for name in names] == [False] * 3
        blocked.unlink()
        await committed(admin, *names)
        assert sorted(files(blocked).values()) == [[name] for name in names]
        assert (await admin.status())["output"] == {"groups": 3, "problem": "", "stuck": {}}


async def test_a_group_that_somebody_was_given_meanwhile_holds_up_no_other(tmp_path: Path) -> None:
    """An AReaL trainer asks for its session itself."""
    async with serving(tmp_path / "out") as (g, admin):
        block(tmp_path / "out")
        name = await ended(g, "a")
        await eventually(lambda: bool(g.core.sessions.book.leases), "it is leased")
        await g.core.leasing.hand_over(g.core.sessions.live[name], "areal")
        (tmp_path / "out").unlink()
        await committed(admin, await ended(g, "b"))
        status = (await g.admin.get("/v1/status")).json()
    assert status["output"]["problem"] == ""


async def test_a_store_that_does_not_answer_is_told_before_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow waits for minutes for one that takes a connection and says nothing."""
    monkeypatch.setattr(file_output, "SILENT_S", 0.02)
    answers = threading.Event()
    put = storage.LocalFolder.put

    def late(self: storage.LocalFolder, name: str, data: bytes) -> None:
        assert answers.wait(20)
        put(self, name, data)

    monkeypatch.setattr(storage.LocalFolder, "put", late)
    async with serving(tmp_path / "out") as (g, admin):
        name = await ended(g, "q")
        await trouble(g, "the store has not answered for")
        answers.set()
        await committed(admin, name)
        assert (await admin.status())["output"] == {"groups": 1, "problem": "", "stuck": {}}


async def test_a_journal_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    disk, folder = MemoryDisk(), tmp_path / "out"
    async with serving(folder, disk) as (g, admin):
        block(folder)
        names = [await ended(g, uid) for uid in "qr"]
        await trouble(g, "FileExistsError")
        disk.failure = "database or disk is full"
        folder.unlink()
        await trouble(g, "disk is full")
        disk.failure = ""
        await committed(admin, *names)
        assert sorted(files(folder).values()) == [[name] for name in names]


async def test_a_session_whose_records_are_not_seen_is_no_empty_file(tmp_path: Path) -> None:
    """It ended, so they are somewhere: a standby that lags lacks them."""
    disk, folder = MemoryDisk(), tmp_path / "out"
    async with serving(folder, disk) as (g, admin):
        first = await ended(g, "q", 0, size=2)
        held = [row for row in disk.rows if row[1] == first]
        disk.rows[:] = [row for row in disk.rows if row[1] != first]
        second = await ended(g, "q", 1, size=2)
        await trouble(g, f"does not show the end of session {first}")
        with pytest.raises(JournalUnavailable):
            g.core.sessions.restored(g.core.sessions.get(first))
        assert files(folder) == {}
        disk.rows += held
        await committed(admin, first, second)
        assert list(files(folder).values()) == [[first, second]]


MOMENTS: dict[str, tuple[bool, str]] = {
    "before the file was written": (True, "FileExistsError"),
    "after it was written, before that was durable in the journal": (False, "disk is full"),
}


@pytest.mark.parametrize(("blocked", "words"), MOMENTS.values(), ids=MOMENTS)
async def test_a_gateway_that_ends(
    tmp_path: Path, blocked: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one writes what is missing at once, and the group is there once."""
    disk, folder = MemoryDisk(), tmp_path / "out"
    put = storage.LocalFolder.put

    def then_full(self: storage.LocalFolder, name: str, data: bytes) -> None:
        put(self, name, data)
        disk.failure = "database or disk is full"

    if not blocked:
        monkeypatch.setattr(storage.LocalFolder, "put", then_full)
    async with serving(folder, disk) as (g, _):
        if blocked:
            block(folder)
        name = await ended(g, "q")
        await trouble(g, words)
    assert blocked or list(files(folder).values()) == [[name]]
    if blocked:
        folder.unlink()
    monkeypatch.setattr(storage.LocalFolder, "put", put)
    disk.failure = ""
    async with serving(folder, disk) as (g, admin):
        await committed(admin, name)
        assert list(files(folder).values()) == [[name]]
    async with serving(folder, disk) as (g, admin):
        await committed(admin, await ended(g, "r"))
        assert (await admin.status())["output"] == {"groups": 1, "problem": "", "stuck": {}}, (
            "q is not written again"
        )


async def test_a_group_that_has_no_place_in_a_file_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(rows: Iterable[Trajectory]) -> bytes:
        held = list(rows)
        if held[0].uid == "q":
            raise InvalidBody("reward_info does not fit", field="reward_info")
        return to_parquet(held)

    monkeypatch.setattr(parquet, "to_parquet", refuses)
    async with serving(tmp_path / "out") as (g, admin):
        bad = await ended(g, "q")
        await committed(admin, await ended(g, "r"))
        said = (await admin.status())["output"]
        assert list(said.pop("stuck").values()) == ["InvalidBody: reward_info does not fit"]
        assert said == {"groups": 1, "problem": ""}
        assert not (await admin.get(bad)).committed


async def test_a_session_whose_rows_cannot_be_made_stays_in_the_journal(tmp_path: Path) -> None:
    """Its runbook says to keep that; a file of its group without it is written, and acknowledged."""
    disk, folder = MemoryDisk(), tmp_path / "out"
    async with serving(folder, disk) as (g, admin):
        agent = await g.session(session_id="q-0", uid="q", group_size=2)
        await agent.ask("hi")
        spoilt = Rewarded(at=1.0, turn=None, reward=float("inf"))  # as an older gateway took it
        await g.core.sessions.record(g.core.sessions.get("q-0"), spoilt)
        await g.admin.post("/v1/sessions/q-0/finalize", json={"trajectories": False})
        await committed(admin, "q-0", await ended(g, "q", 1, size=2), await ended(g, "r"))
        assert sorted(files(folder).values()) == [["q-1"], ["r-0"]]
        assert list((await admin.status())["left_out"]) == ["q-0"]
        assert await g.core.sessions.retire(-1.0) == 1, "r"
    async with serving(folder, disk) as (g, _):
        assert await g.core.sessions.retire(-1.0) == 0
        assert g.core.sessions.live.keys() == {"q-0", "q-1"}


async def test_an_error_that_no_step_expects_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for the task that writes."""
    named, met = file_output.file_name, asyncio.Event()

    def spoilt(book: Any, sessions: Any) -> str:
        if "q-0" in sessions:
            met.set()
            raise KeyError("a bug of ours")
        return named(book, sessions)

    monkeypatch.setattr(file_output, "file_name", spoilt)
    async with serving(tmp_path / "out") as (g, admin):
        await ended(g, "q")
        await within(met)
        await committed(admin, await ended(g, "r"))
        assert list(files(tmp_path / "out").values()) == [["r-0"]]
        assert (await admin.status())["output"]["groups"] == 1
    assert "KeyError: 'a bug of ours'" in caplog.text


def test_a_file_is_encoded_as_trainers_encode_it(tmp_path: Path) -> None:
    """For other sizes and other readers it would be another format."""
    rows = [row(session_id=f"s{number}") for number in range(3)]
    write_parquet(tmp_path / "trainers", rows)

    def told(file: Any) -> list[tuple[Any, ...]]:
        columns = pq.ParquetFile(file).metadata.row_group(0)
        every = (columns.column(at) for at in range(columns.num_columns))
        return [(one.path_in_schema, one.compression, one.encodings) for one in every]

    ours = io.BytesIO(to_parquet(rows))
    assert told(ours) == told(tmp_path / "trainers")
    assert pq.read_table(ours) == pq.read_table(tmp_path / "trainers")


def test_a_file_and_the_folders_made_for_it_survive_a_power_cut(tmp_path: Path) -> None:
    image = ext4_image(tmp_path / "image")
    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk:
        storage.LocalFolder(disk / "made" / "here").put("q.parquet", b"first")
        storage.LocalFolder(disk / "made" / "here").put("q.parquet", b"second")
        cut_power(disk)
    with mounted(tmp_path / "again", "-o", "loop", str(image)) as disk:
        assert {one.name: one.read_bytes() for one in (disk / "made" / "here").iterdir()} == {
            "q.parquet": b"second"
        }


async def test_a_folder_that_cannot_be_written_is_refused_at_the_first_start(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no folder")
    with pytest.raises(BadManifest, match=r"cannot write to .*/out/below: .*/out: is no folder") as error:
        async with serving(tmp_path / "out" / "below"):
            pass
    assert error.value.field == "output.parquet"


async def test_a_gateway_that_goes_on_waits_for_its_folder(tmp_path: Path) -> None:
    disk, folder = MemoryDisk(), tmp_path / "out"
    async with serving(folder, disk) as (g, admin):
        block(folder)
        name = await ended(g, "q")
    async with serving(folder, disk) as (g, admin):
        await trouble(g, "FileExistsError")
        folder.unlink()
        await committed(admin, name)


LOCAL: dict[str, str] = {
    "a path": "{}/a b",
    "a URL": "file://{}/a%20b",
    "a URL with a blank": "file://{}/a b",
}


@pytest.mark.parametrize("url", LOCAL.values(), ids=LOCAL)
def test_a_folder_of_this_machine_is_made_and_tried_and_nothing_is_left(tmp_path: Path, url: str) -> None:
    where = url.format(tmp_path)
    storage.check(where)
    storage.check_folder(where)
    assert list((tmp_path / "a b").iterdir()) == []
    storage.storage(where).put("q.parquet", b"rows")
    assert (tmp_path / "a b" / "q.parquet").read_bytes() == b"rows"


async def test_what_only_fsspec_knows_is_written_by_it() -> None:
    import fsspec

    async with serving("memory://bucket/folder") as (g, admin):
        await committed(admin, await ended(g, "q"))
    memory = fsspec.filesystem("memory")
    (found,) = memory.ls("/bucket/folder", detail=False)
    with memory.open(found) as file:
        assert file.read(4) == b"PAR1"
