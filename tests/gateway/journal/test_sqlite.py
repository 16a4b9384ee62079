"""What only the SQLite journal promises: group commit, files, versions, and real faults of processes and disks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import queue
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from sandgate.contract.errors import Conflict, CorruptRecord, JournalUnavailable, NewerRecord
from sandgate.gateway.journal import rows
from sandgate.gateway.journal.commit_batch import CommitBatch, CommitRequest
from sandgate.gateway.journal.group_commit import NotWritten, Writer
from sandgate.gateway.journal.records import RETIRED, TurnCommitted, encode
from sandgate.gateway.journal.sqlite import BUSY_MS, SqliteStore, _File, _open
from sandgate.gateway.journal.store import StoreStatus
from sandgate.gateway.journal.wal_damage import frames_kept
from tests.gateway.journal import disks
from tests.gateway.journal.places import Clock, OnDisk
from tests.gateway.journal.retiring_writer import SAMPLES, TURNS
from tests.gateway.journal.samples import turn

ROOT = Path(__file__).parents[3]
WRITER = Path(__file__).with_name("writer.py")
RETIRING_WRITER = Path(__file__).with_name("retiring_writer.py")


def names(store: SqliteStore, session: str | None = None) -> list[str]:
    return [record.turn for _, _, record in store.scan(session) if isinstance(record, TurnCommitted)]


async def test_many_callers_share_few_transactions(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "j") as store:
        with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as other:
            other.execute(
                "BEGIN IMMEDIATE"
            )  # the writer waits for us with its first group; the rest queues up
            calls = [asyncio.ensure_future(store.append(f"s{n}", turn(f"t{n}"))) for n in range(300)]
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
        await asyncio.gather(*calls)
        assert store.transactions <= 2
        assert names(store) == [f"t{n}" for n in range(300)]


async def test_a_burst_is_cut_into_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandgate.gateway.journal.group_commit.GROUP_BYTES_MAX", 4000)
    async with await SqliteStore.open(tmp_path / "j") as store:
        await asyncio.gather(*(store.append("s", turn(f"t{n}")) for n in range(100)))
        assert store.transactions >= 10
        assert names(store) == [f"t{n}" for n in range(100)]


async def test_a_journal_that_another_program_locks_is_unavailable_not_lost(tmp_path: Path) -> None:
    clock = Clock()
    async with await SqliteStore.open(tmp_path / "j", now=clock) as store:
        with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalUnavailable, match="locked"):
                await store.append("s", turn("a"))  # after SQLite's own 5 s of patience
            other.execute("ROLLBACK")
        clock.seconds += rows.RETRY_S
        await store.append("s", turn("b"))
        assert names(store) == ["b"]


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "j") as store:
        await store.append("s", turn("a"))
        modes = modes_in(tmp_path)
    assert modes == {"j": 0o600, "j-wal": 0o600, "j-shm": 0o600, "j.lock": 0o600}


async def test_retired_bytes_go_back_to_the_file_system(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "j") as store:
        for number in range(8):
            await store.append(f"s{number}", turn("x", tokens=50_000))
        await store.retire([f"s{number}" for number in range(1, 8)])
    assert (tmp_path / "j").stat().st_size < 2 * 8 * 50_000


# --- versions and foreign files


async def make(path: Path, *turns: str) -> None:
    async with await SqliteStore.open(path) as store:
        for name in turns:
            await store.append("s", turn(name))


def sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()


FOREIGN = {
    "a newer schema": ("UPDATE meta SET value = '2' WHERE key = 'schema'", NewerRecord, "schema 2"),
    "no schema": ("DELETE FROM meta", CorruptRecord, "does not say its schema"),
    "a schema that is no number": ("UPDATE meta SET value = 'x'", CorruptRecord, "does not say its schema"),
    "another program's database": ("PRAGMA application_id = 1", CorruptRecord, "not a journal"),
    "a record of a newer version": (
        "INSERT INTO records VALUES (2, 's', x'00', 0)",  # its checksum is wrong, too: cut, never misread
        None,
        "",
    ),
}


@pytest.mark.parametrize(("statement", "error", "text"), FOREIGN.values(), ids=FOREIGN)
async def test_what_is_not_ours_is_refused(
    tmp_path: Path, statement: str, error: type[Exception] | None, text: str
) -> None:
    await make(tmp_path / "j", "a")
    sql(tmp_path / "j", statement)
    before = (tmp_path / "j").read_bytes()
    if error is None:
        async with await SqliteStore.open(tmp_path / "j") as store:
            assert (names(store), store.status().cut) == (["a"], 1)
        return
    with pytest.raises(error, match=text):
        await SqliteStore.open(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == before, "refused, and left as it was"


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"not a database, but long enough to have a header" * 100)
    with pytest.raises(CorruptRecord, match="not a database"):
        await SqliteStore.open(tmp_path / "j")


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="No such file or directory"):
        await SqliteStore.open(tmp_path / "nowhere" / "j")


async def test_a_record_that_was_moved_is_damage(tmp_path: Path) -> None:
    await make(tmp_path / "j", "a", "b", "c")
    for old, new in ((1, 0), (2, 1), (0, 2)):
        sql(tmp_path / "j", f"UPDATE records SET seq = {new} WHERE seq = {old}")
    with pytest.raises(CorruptRecord, match="record 1: "):
        await SqliteStore.open(tmp_path / "j")


async def test_pages_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    await make(tmp_path / "j", *(f"t{n}" for n in range(200)))
    raw = bytearray((tmp_path / "j").read_bytes())
    middle = len(raw) // 2 // 4096 * 4096
    raw[middle : middle + 64] = os.urandom(64)
    (tmp_path / "j").write_bytes(raw)
    with pytest.raises(CorruptRecord):
        await SqliteStore.open(tmp_path / "j")


async def test_an_index_that_is_damaged_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make(tmp_path / "j", "a", "b")
    raw = (tmp_path / "j").read_bytes()
    at = raw.rindex(b"s\x02")  # an index entry: the session's name, then the sequence
    (tmp_path / "j").write_bytes(raw[:at] + b"z" + raw[at + 1 :])
    async with await SqliteStore.open(tmp_path / "j") as store:
        assert names(store, "s") == ["a", "b"]
    assert "its index was damaged" in caplog.text


# --- the writer by itself


def test_what_was_queued_before_a_failure_was_known_is_refused(tmp_path: Path) -> None:
    """No thread: the loop has not run yet when the second group is taken."""
    told: list[CommitBatch] = []
    disk = OnDisk(tmp_path)
    writer = Writer(_File(disk.path, _open(disk.path), lock=-1), queue.SimpleQueue(), told.append)
    record = (encode(turn("a")),)
    with disk.broken():
        failed = writer.attempt([CommitRequest("s", record)])
    assert (failed.epoch, len(failed.refused)) == (1, 1)
    behind = writer.attempt([CommitRequest("s", record), CommitRequest("t", record, sync=False)])
    assert [job.session for job in behind.refused] == ["s"]
    assert (behind.error, behind.kept) == ("queued behind a write that failed", 1)
    after = writer.attempt([CommitRequest("u", record, epoch=1)])
    assert [job.session for job in after.done] == ["t", "u"]
    writer.jobs.put(None)
    writer.run()
    assert told[-1].last


def request(name: str, tokens: int = 3) -> CommitRequest:
    return CommitRequest("s", (encode(turn(name, tokens=tokens)),))


def refuse(disk: OnDisk, file: _File, job: CommitRequest) -> None:
    """As by an fsync that fails: its frames are in the -wal, behind the good end, and do not count."""
    folder = disk.path.with_name("copy")
    copy = files_copied(disk.path, folder)
    good_end = 32 + frames_kept(Path(f"{disk.path}-shm").read_bytes()) * (24 + 4096)
    other = _File(copy, _open(copy), lock=-1)
    other.commit([job])
    frames = Path(f"{copy}-wal").read_bytes()[good_end:]
    other.close()
    shutil.rmtree(folder)
    with disk.broken(), pytest.raises(NotWritten):
        file.commit([job])
    with open(f"{disk.path}-wal", "r+b") as log:
        log.seek(good_end)
        log.write(frames)


def files_copied(path: Path, folder: Path) -> Path:
    """The journal as a kill leaves it."""
    folder.mkdir()
    for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        shutil.copy(one, folder)
    return folder / path.name


async def found_by_the_next_start(disk: OnDisk) -> tuple[list[str], int]:
    """Turns of the journal that a kill leaves now, and how many it says are lost."""
    folder = disk.path.with_name("killed")
    async with await SqliteStore.open(files_copied(disk.path, folder)) as store:
        found = names(store), store.status().cut
    shutil.rmtree(folder)
    return found


async def test_commits_that_were_refused_are_not_told_as_lost_by_the_next_start(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    file = _File(disk.path, _open(disk.path), lock=-1)
    file.commit([request("t0")])
    refuse(disk, file, request("large", 30_000))
    refuse(disk, file, request("middle", 9_000))
    file.commit([request("t1")])
    assert await found_by_the_next_start(disk) == (["t0", "t1"], 0)
    file.commit([request("t2")])
    assert await found_by_the_next_start(disk) == (["t0", "t1", "t2"], 0)
    file.close()


async def test_refused_commits_behind_a_reader_are_cut_when_it_is_gone_and_nobody_waits_for_it(
    tmp_path: Path,
) -> None:
    disk = OnDisk(tmp_path)
    file = _File(disk.path, _open(disk.path), lock=-1)
    file.commit([request("t0")])
    with closing(sqlite3.connect(disk.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM records").fetchall()
        refuse(disk, file, request("large", 30_000))
        refuse(disk, file, request("middle", 9_000))
        began = time.monotonic()
        file.commit([request("t1")])
        assert time.monotonic() - began < BUSY_MS / 1000
    assert file.db.execute("PRAGMA busy_timeout").fetchone() == (BUSY_MS,)
    assert (await found_by_the_next_start(disk))[0] == ["t0", "t1"]
    file.commit([request("t2")])
    assert await found_by_the_next_start(disk) == (["t0", "t1", "t2"], 0)
    file.close()


# --- processes


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom sandgate.gateway.journal.sqlite import SqliteStore\n"
        "async def main():\n  try:\n    await SqliteStore.open(sys.argv[1])\n  except Exception as e:\n"
        "    print(type(e).__name__, e)\nasyncio.run(main())"
    )
    async with await SqliteStore.open(tmp_path / "j") as store:
        out = subprocess.run(  # noqa: ASYNC221 - nothing else runs on this loop
            (sys.executable, "-c", code, str(tmp_path / "j")), capture_output=True, text=True, check=True
        )
        assert out.stdout == f"{Conflict.__name__} journal j is in use by another process\n"
        await store.append("s", turn("a"))


LOCKS: dict[str, tuple[int, type[Exception], str]] = {
    "another process has it": (errno.EWOULDBLOCK, Conflict, "in use by another process"),
    "a file system without locks": (errno.ENOLCK, JournalUnavailable, "cannot be locked: No locks available"),
    "one whose server does not know them": (errno.EOPNOTSUPP, JournalUnavailable, "not supported"),
}


@pytest.mark.parametrize(("number", "kind", "words"), LOCKS.values(), ids=LOCKS)
async def test_a_lock_that_cannot_be_had_says_why(
    tmp_path: Path, number: int, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file system here lacks locks."""

    def refuses(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(kind, match=words):
        await SqliteStore.open(tmp_path / "j")


def start_writer(path: Path, prefix: str, writer: Path = WRITER) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, str(writer), str(path), prefix),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))},
    )


def told_until_killed(path: Path, prefix: str, lines: int, writer: Path = WRITER) -> list[str]:
    """What a writer was told is durable before kill -9 hit it, some time after it had been told `lines`."""
    with start_writer(path, prefix, writer) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
        assert process.wait() == -signal.SIGKILL
    assert all(line.startswith(prefix) for line in told), f"the writer ended by itself: {told}"
    return [line.strip() for line in told if line.endswith("\n")]


@pytest.mark.slow
async def test_kill_nine_never_loses_what_was_told(tmp_path: Path) -> None:
    told: list[str] = []
    for round_ in range(20):
        told += told_until_killed(tmp_path / "j", f"r{round_}", 3 + 7 * round_)
        async with await SqliteStore.open(tmp_path / "j") as store:  # the lock went with the process
            found = names(store)
            assert set(told) <= set(found), f"lost in round {round_}: {sorted(set(told) - set(found))}"
            assert store.status() == StoreStatus(healthy=True, records=len(found), cut=0)
            for session in ("s0", "s1", "s2", "s3"):
                mine = [name for name in names(store, session) if name.startswith(f"r{round_}.")]
                assert mine == [f"r{round_}.{session}.{n}" for n in range(len(mine))], "a hole in a session"
    assert len(told) > 20 * 3


@pytest.mark.slow
async def test_kill_nine_in_a_retirement_leaves_the_whole_group_or_none_of_it(tmp_path: Path) -> None:
    for round_ in range(12):
        told = told_until_killed(tmp_path / "j", f"r{round_}", 1 + 2 * round_, RETIRING_WRITER)
        async with await SqliteStore.open(tmp_path / "j") as store:
            here: dict[str, Counter[str]] = defaultdict(Counter)
            for _, name, record in store.scan():
                here[name.removeprefix(RETIRED).rpartition(".")[0]][type(record).__name__] += 1
            lines = {group for group, kinds in here.items() if kinds == {"Retired": SAMPLES}}
            assert set(told) <= lines, "told as retired, and not"
            for group in here.keys() - lines:
                assert set(here[group]) == {"TurnCommitted"}, f"half of {group} is gone: {here[group]}"
                if f"{group.partition('.')[0]}.{int(group.partition('.')[2]) + 1}" in here:
                    assert here[group]["TurnCommitted"] == SAMPLES * TURNS
            assert store.status().cut == 0


# --- disks


async def write_on(store: SqliteStore, told: list[str]) -> None:
    """Until it is refused."""
    while True:
        name = f"t{len(told)}"
        await store.append("s", turn(name, tokens=500))
        told.append(name)


async def test_a_full_disk_refuses_turns_keeps_what_it_has_and_recovers(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk") as disk:
        (disk / "ballast").write_bytes(bytes(400_000))
        clock, told = Clock(), list[str]()
        async with await SqliteStore.open(disk / "j", now=clock) as store:
            with pytest.raises(JournalUnavailable, match="full") as caught:
                await write_on(store, told)
            assert caught.value.retry_after == rows.RETRY_S
            assert not store.status().healthy
            assert names(store) == told
            clock.seconds += rows.RETRY_S
            with pytest.raises(JournalUnavailable, match="full"):
                await store.append("s", turn("again", tokens=500))
            (disk / "ballast").unlink()
            clock.seconds += rows.RETRY_S
            await store.append("s", turn("after", tokens=500))
            assert store.status().healthy
        async with await SqliteStore.open(disk / "j") as store:
            assert names(store) == [*told, "after"]


async def test_a_journal_is_not_made_on_a_full_disk(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk") as disk:
        disks.fill(disk / "ballast")
        with pytest.raises(JournalUnavailable, match=r"full|No space"):
            await SqliteStore.open(disk / "j")
        (disk / "ballast").unlink()
        await make(disk / "j", "a")


@pytest.mark.parametrize(("fault", "made"), [("EINVAL", True), ("EBADF", True), ("EIO", False)])
async def test_a_file_system_that_cannot_sync_folders_holds_a_journal_and_one_that_fails_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, made: bool
) -> None:
    number = getattr(errno, fault)

    def fsync(_: int) -> None:  # SQLite's own do not come by here
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fsync)
    if made:
        await make(tmp_path / "j", "a")
    else:
        with pytest.raises(JournalUnavailable, match="Input/output error"):
            await make(tmp_path / "j", "a")


async def test_a_read_only_disk_is_unavailable_and_loses_nothing(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk") as disk:
        await make(disk / "j", "a")
        disks.run("mount", "-o", "remount,ro", str(disk))
        with pytest.raises(JournalUnavailable, match="Read-only file system"):
            await SqliteStore.open(disk / "j")
        disks.run("mount", "-o", "remount,rw", str(disk))
        async with await SqliteStore.open(disk / "j") as store:
            assert names(store) == ["a"]


async def test_a_power_cut_loses_nothing_that_was_told(tmp_path: Path) -> None:
    image, told = disks.ext4_image(tmp_path / "image"), list[str]()
    with disks.mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk:
        store = await SqliteStore.open(disk / "j")
        for number in range(30):
            await store.append("s", turn(f"t{number}", tokens=500))
            told.append(f"t{number}")
        disks.cut_power(disk)
        with pytest.raises(JournalUnavailable):
            await store.append("s", turn("too late"))
        assert not store.status().healthy
        await store.aclose()
    with disks.mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk:
        async with await SqliteStore.open(disk / "j") as store:
            assert names(store) == told


async def test_a_write_ahead_log_cut_anywhere_leaves_a_head_of_the_journal(tmp_path: Path) -> None:
    written = [f"t{n}" for n in range(12)]
    async with await SqliteStore.open(tmp_path / "j") as store:
        for name in written:
            await store.append("s", turn(name, tokens=400))
        wal = (tmp_path / "j-wal").read_bytes()
        main = (tmp_path / "j").read_bytes()
    lengths = set[int]()
    for number, size in enumerate(range(len(wal), 0, -3001)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "j").write_bytes(main)
        (folder / "j-wal").write_bytes(wal[:size])
        async with await SqliteStore.open(folder / "j") as store:
            found = names(store)
            assert found == written[: len(found)], "a head, without holes"
            await store.append("s", turn("more"))
        lengths.add(len(found))
        shutil.rmtree(folder)
    assert max(lengths) == len(written)
    assert len(lengths) > 5, "the cuts hit different records"


async def test_a_record_that_was_under_way_is_no_loss(tmp_path: Path) -> None:
    """Killed between the two writes of a frame: its header says commit, its page is not there."""
    async with await SqliteStore.open(tmp_path / "j") as store:
        await store.append("s", turn("told"))
        told_bytes = (tmp_path / "j-wal").stat().st_size
        await store.append("s", turn("under way"))
        wal = (tmp_path / "j-wal").read_bytes()
        main = (tmp_path / "j").read_bytes()
    frame = 24 + 4096
    assert (len(wal) - told_bytes) % frame == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "j").write_bytes(main)
    (copy / "j-wal").write_bytes(wal[: len(wal) - frame + 24])
    async with await SqliteStore.open(copy / "j") as store:
        assert names(store) == ["told"]
        assert store.status() == StoreStatus(healthy=True, records=1, cut=0)


async def test_a_flipped_byte_in_the_write_ahead_log_ends_it_there(tmp_path: Path) -> None:
    written = [f"t{n}" for n in range(6)]
    async with await SqliteStore.open(tmp_path / "j") as store:
        for name in written:
            await store.append("s", turn(name, tokens=400))
        wal = bytearray((tmp_path / "j-wal").read_bytes())
        main = (tmp_path / "j").read_bytes()
    wal[wal.index(b"<t4>")] ^= 0xFF
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "j").write_bytes(main)
    (copy / "j-wal").write_bytes(wal)
    async with await SqliteStore.open(copy / "j") as store:
        assert names(store) == written[:4]
        assert store.status().cut == 1, "t4 is gone for sure; t5 might have been under way"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_is_written_just_as_the_writer_dies_is_refused_and_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "j")

    def bug(jobs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store._backend, "commit", bug)
    (writer,) = (one for one in threading.enumerate() if one.name.startswith("journal "))
    first = asyncio.ensure_future(store.append("s", turn("a")))
    asyncio.get_running_loop().call_soon(writer.join, 20)  # the loop cannot be told yet
    late = asyncio.ensure_future(store.append("s", turn("b")))
    async with asyncio.timeout(10):
        said = await asyncio.gather(first, late, return_exceptions=True)
    assert [type(one) for one in said] == [JournalUnavailable] * 2
    await store.aclose()
