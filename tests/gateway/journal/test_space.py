"""A volume that becomes tight is shared: who has more of it than his share is refused, so that the others go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.journal.space import UNKNOWN, Space
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.journal.store import Store
from tests.gateway.journal import disks
from tests.gateway.journal.samples import turn

MIB = 1 << 20
SIZE, ROOM = 1024, 32
"""MiB of a default volume, and of what is set aside in it."""
CAP = 256
"""MiB that a session may have by default."""

CASES = {
    # MiB free, of the session, of each large session -> whether it is refused
    "nobody while there is room": (128, 256, (256, 256, 256), False),
    "who has more than a quarter of what is free, once that is little": (127, 32, (256, 256, 256), True),
    "not who has less": (127, 31, (256, 256, 256), False),
    "the smaller share of those that come later": (40, 11, (256, 256, 256, 200), True),
    "nobody who has little, even on a full volume": (0, 4, (256, 256, 256, 224), False),
    "on a full volume who has more than a little": (0, 5, (256, 256, 256, 224), True),
    "nobody where small sessions wait for their trainer": (0, 20, (), False),
    "nobody where one large session is not why it is full": (20, 60, (60,), False),
    "who is why": (100, 60, (60,), True),
    "who is alone on it, at its end and not before": (127, 865, (865,), True),
}


@pytest.mark.parametrize(("free", "own", "large", "refused"), CASES.values(), ids=CASES)
def test_who_is_refused(free: int, own: int, large: tuple[int, ...], refused: bool) -> None:
    space = Space(free * MIB, SIZE * MIB)
    assert space.refuses(own * MIB, [one * MIB for one in large]) is refused


@pytest.mark.parametrize("space", [UNKNOWN, Space(1.0, nan)])
def test_where_nobody_knows_what_is_left_nobody_is_refused(space: Space) -> None:
    assert not space.tight
    assert not space.large < 1e18
    assert not space.refuses(1 << 60, [1 << 60])


@dataclass
class Volume:
    """A volume in MiB, and who has what of it."""

    free: float = SIZE - ROOM
    had: dict[str, float] = field(default_factory=dict)

    def write(self, who: str, size: float) -> bool:
        """Whether it could, as a gateway does it: asked with what is to be written, then written."""
        own = self.had.get(who, 0.0)
        space = Space(self.free * MIB, SIZE * MIB)
        large = [int(one * MIB) for one in self.had.values() if one * MIB > space.large]
        if own >= CAP or space.refuses(int((own + size) * MIB), large) or size > self.free:
            return False
        self.free -= size
        self.had[who] = own + size
        return True


@given(
    order=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.1, 1.0, 7.9, 64.0])), max_size=200),
    sessions=st.integers(1, 40),
)
def test_seven_that_write_all_they_can_leave_the_others_room(
    order: list[tuple[int, float]], sessions: int
) -> None:
    """Whatever the order, however large the pieces, and whether they end meanwhile or not (what they wrote stays)."""
    volume, steps = Volume(), [*order, *((who, 64.0) for who in range(7) for _ in range(4))]
    written = 0
    for at, (who, size) in enumerate(steps):
        if who < 7:
            while volume.write(f"greedy {who}", size):
                pass
        if at % 5 == 0 and written < 40:  # 40 MiB in all, 1 MiB at most of each
            written += 1
            assert volume.write(f"other {written % 40}", 1.0), "the others go on"
    for other in range(sessions if written < 40 else 0):
        if written < 40:
            written += 1
            assert volume.write(f"later {other}", 1.0), "and so do those that come later"


def test_how_many_it_takes_to_fill_a_default_volume() -> None:
    """As docs/journals.md says. Four, were there no shares."""
    volume, count = Volume(), 0
    while volume.write(f"greedy {count}", 0.25):
        while volume.write(f"greedy {count}", 0.25):
            pass
        count += 1
    assert count == 18


def test_a_volume_that_fills_with_what_is_not_acknowledged_refuses_nobody_for_it() -> None:
    """Sessions of 10 to 30 MiB, and no trainer: they are told that it is full, and nothing else."""
    volume = Volume()
    for number in range(60):
        size = 10 + 10 * (number % 3)
        for _ in range(size):
            assert volume.write(f"s{number}", 1.0) or volume.free < 1
    assert volume.free < 1


async def test_what_waits_for_the_disk_is_not_free(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", "64m") as disk:
        async with await SqliteStore.open(disk / "j", room=8 << 20) as store:
            before = store.space
            assert before.size == 64 << 20
            assert 50 << 20 < before.free <= 56 << 20, "the room is not, either"
            await store.append("s", turn("a", tokens=100_000), sync=False)
            assert before.free - store.space.free > 800_000


async def test_what_was_retired_is_free_though_the_file_keeps_it(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", "128m") as disk:
        async with await SqliteStore.open(disk / "j", room=8 << 20) as store:
            while not store.space.tight:
                await store.append("large", turn("a", tokens=100_000))
            await store.retire(["large"])
            disks.fill(disk / "ballast")  # what the file gave back, bit by bit, is another's now
            await store.append("s", turn("a"))
            assert store.space.free > 48 << 20


async def test_a_disk_in_memory_is_full_when_it_is() -> None:
    disk = MemoryDisk(size=10_000)
    store: Store = MemoryStore(disk)
    assert MemoryStore().space is UNKNOWN
    await store.append("s", turn("a", tokens=100))
    assert 0 < store.space.free < 10_000 == store.space.size
    with pytest.raises(Exception, match="full"):
        await store.append("s", turn("b", tokens=2_000))
    await store.append("s", Sealed(at=1.0))
