"""A journal on a full volume: what empties it is still written, and then everything else is again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandgate.contract.errors import JournalUnavailable
from sandgate.gateway.journal import rows
from sandgate.gateway.journal.commit_batch import CommitRequest, first_in_need
from sandgate.gateway.journal.records import RETIRED, Acked, Sealed
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal import disks
from tests.gateway.journal.places import Clock
from tests.gateway.journal.samples import EVERY_KIND, turn

ROOM = 8 << 20
DISK = "64m"

CASES = {
    "what lets a journal shrink comes first": ("a! b c!", "a c", "b"),
    "a seal behind a turn of its session waits with it": ("a a! b!", "b", "a a"),
    "the process's own records rest on nothing": ("- -!", "-", "-"),
}


@pytest.mark.parametrize(("queued", "vital", "others"), CASES.values(), ids=CASES)
def test_first_in_need(queued: str, vital: str, others: str) -> None:
    jobs = [
        CommitRequest(one.rstrip("!").replace("-", ""), (b"record",), vital=one.endswith("!"))
        for one in queued.split()
    ]
    out = first_in_need(jobs)
    assert tuple(" ".join(job.session or "-" for job in half) for half in out) == (vital, others)


async def filled(store: SqliteStore) -> list[str]:
    """Sessions of two large turns each, until the disk is full."""
    names: list[str] = []
    while True:
        name = f"s{len(names)}"
        try:
            await store.append(name, turn("a", tokens=20_000), turn("b", tokens=20_000))
        except JournalUnavailable:
            return names
        names.append(name)


async def retire(store: SqliteStore, names: Sequence[str]) -> None:
    for name in names:
        await store.retire([name], {RETIRED + name: EVERY_KIND["retired"]})


async def test_a_full_volume_takes_what_empties_it_and_then_everything(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", DISK) as disk:
        clock = Clock()
        async with await SqliteStore.open(disk / "j", now=clock, room=ROOM) as store:
            names = await filled(store)
            with pytest.raises(JournalUnavailable):
                await store.append("new", turn("c", tokens=20_000))
            await store.append("", Acked(at=1.0, lease="l", sessions=(names[0],)))
            await store.append(names[0], Sealed(at=1.0))
            half = len(names) // 2
            await retire(store, names[:half])
            clock.seconds += rows.RETRY_S
            await store.append("new", turn("c", tokens=20_000))
            assert store.status().healthy
            assert (disk / "j.room").stat().st_blocks * 512 >= ROOM
            here = {name for _, name, _ in store.scan()}
            assert here == {*(RETIRED + name for name in names[:half]), *names[half:], "new", ""}
            assert len(await filled(store)) > half // 2, "its space is of use again"


async def test_a_session_larger_than_the_room_is_retired_from_a_full_volume(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", DISK) as disk:
        clock = Clock()
        async with await SqliteStore.open(disk / "j", now=clock, room=ROOM) as store:
            with contextlib.suppress(JournalUnavailable):
                while True:
                    await store.append("large", turn("a", tokens=100_000))
            await retire(store, ["large"])
            clock.seconds += rows.RETRY_S
            await store.append("new", turn("c", tokens=20_000))


async def test_a_gateway_that_was_killed_on_a_full_volume_begins_and_empties_it(tmp_path: Path) -> None:
    """The -wal and -shm that a kill leaves stay on the disk."""
    with disks.small_disk(tmp_path / "disk", DISK) as disk:
        clock = Clock()
        async with await SqliteStore.open(disk / "j", now=clock, room=ROOM) as store:
            names = await filled(store)
            left = {path.name: path.read_bytes() for path in disk.iterdir()}
        for name, data in left.items():
            (disk / name).write_bytes(data)
        disks.fill(disk / "ballast")
        (disk / "j.room").unlink(missing_ok=True)
        (disk / "ballast").rename(disk / "j.room")  # whatever is left is its room
        async with await SqliteStore.open(disk / "j", now=clock, room=ROOM) as store:
            with pytest.raises(JournalUnavailable):
                await store.append("new", turn("c", tokens=20_000))
            await retire(store, names[: len(names) // 2])
            clock.seconds += rows.RETRY_S
            await store.append("new", turn("c", tokens=20_000))


async def test_while_the_room_is_missing_only_what_empties_the_volume_is_written(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", DISK) as disk:
        clock = Clock()
        async with await SqliteStore.open(disk / "j", now=clock, room=ROOM) as store:
            await filled(store)
            await store.append("", Acked(at=1.0, lease="l", sessions=("s0",)))
            for number in range(20):
                clock.seconds += rows.RETRY_S
                with pytest.raises(JournalUnavailable, match="full"):
                    await store.append("new", turn("c", tokens=20_000))
                await store.append("", Acked(at=1.0, lease=f"l{number}", sessions=("s0",)))
            assert not store.status().healthy


async def test_a_journal_that_sets_nothing_aside_gives_back_what_an_earlier_life_did(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "j", room=ROOM) as store:
        await store.append("s", turn("a"))
    assert (tmp_path / "j.room").exists()
    async with await SqliteStore.open(tmp_path / "j") as store:
        assert not (tmp_path / "j.room").exists()
        assert [name for _, name, _ in store.scan()] == ["s"]
