"""Who trains on a local run, and what the run waits for at its end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandgate.contract.attach import RunInfo, RunState
from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.job import TrainerSpec
from sandgate.operator.local.attendance import Attendance, Seen, look, waits

PATIENCE = TrainerSpec(heartbeat_seconds=10, collect_seconds=60)
HERE, DEAD = Seen(True, 100.0), Seen(False, 100.0)


def seen(*trainers: Seen, owed: int = 0, leased: int = 0, progress_at: float = 100.0) -> Attendance:
    files = {f"{number}-x": one for number, one in enumerate(trainers)}
    return Attendance(trainers=files, owed=owed, leased=leased, progress_at=progress_at)


HEARD = Attendance(heard_at=100.0, owed=1)

WAITS: dict[str, tuple[Attendance, float, bool, str]] = {
    "nobody was ever there": (seen(owed=3), 100.0, False, ""),
    "a trainer that has not acknowledged": (
        seen(HERE, owed=3),
        159.0,
        False,
        "everything ended; the run waits for the trainer (3 groups not acknowledged), Ctrl-C ends it without",
    ),
    "one that acknowledged nothing for collectSeconds": (seen(HERE, owed=3), 160.0, False, ""),
    "one that acknowledged something since": (
        seen(HERE, owed=1, progress_at=120.0),
        160.0,
        False,
        "everything ended; the run waits for the trainer (1 group not acknowledged), Ctrl-C ends it without",
    ),
    "one that has everything may still publish weights": (
        seen(HERE),
        110.0,
        False,
        "the trainer has all groups; the run ends when it leaves",
    ),
    "one that has everything and never leaves": (seen(HERE), 160.0, False, ""),
    "one that died may come back": (
        seen(DEAD, owed=2),
        109.0,
        False,
        "the trainer may come back within 10 s (2 groups not acknowledged); Ctrl-C ends the run",
    ),
    "one that died long ago": (seen(DEAD, owed=2), 110.0, False, ""),
    "one that died with nothing left for it": (seen(DEAD), 101.0, False, ""),
    "one that is only heard": (
        HEARD,
        109.0,
        False,
        "the trainer may come back within 10 s (1 group not acknowledged); Ctrl-C ends the run",
    ),
    "one that was heard": (HEARD, 110.0, False, ""),
    "told to stop, with a group on a lease": (
        seen(HERE, owed=2, leased=1),
        129.0,
        True,
        "a trainer has 30 s to acknowledge what it works on; Ctrl-C again ends the run at once",
    ),
    "told to stop, and that took too long": (seen(HERE, owed=2, leased=1), 130.0, True, ""),
    "told to stop, with nothing on a lease": (seen(HERE, owed=2), 100.0, True, ""),
    "told to stop, with a lease of one that died": (seen(DEAD, owed=2, leased=1), 100.0, True, ""),
}


@pytest.mark.parametrize(("there", "now", "drained", "why"), WAITS.values(), ids=WAITS)
def test_what_a_run_waits_for(there: Attendance, now: float, drained: bool, why: str) -> None:
    assert waits(there, PATIENCE, now, over_at=100.0, drained=drained) == why


EXPECTED: dict[str, tuple[Attendance, float, bool]] = {
    "nobody": (seen(), 0.0, False),
    "one that lives, however silent": (seen(HERE), 1e9, True),
    "one that died a moment ago": (seen(DEAD), 109.0, True),
    "one that died": (seen(DEAD), 110.0, False),
    "one that is heard": (HEARD, 109.0, True),
    "one that was heard": (HEARD, 110.0, False),
}


@pytest.mark.parametrize(("there", "now", "expected"), EXPECTED.values(), ids=EXPECTED)
def test_is_a_trainer_expected(there: Attendance, now: float, expected: bool) -> None:
    assert there.expected(PATIENCE, now) is expected


@contextmanager
def locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def test_a_trainers_file_says_whether_it_lives_and_what_it_had(tmp_path: Path) -> None:
    for name in ("1-a", "2-b", ".3-c"):
        (tmp_path / name).write_text(f"l-{name}\nl-0\n")
        os.utime(tmp_path / name, (50.0, 50.0))
    with locked(tmp_path / "1-a"):
        assert dict(look(tmp_path)) == {
            "1-a": Seen(True, 50.0, ("l-1-a", "l-0")),
            "2-b": Seen(False, 50.0, ("l-2-b", "l-0")),
        }
    assert not dict(look(tmp_path))["1-a"].held


SAID = RunInfo(
    job="shop", state=RunState.RUNNING, gateways={"g": "http://127.0.0.1:1"}, engines=("http://e",), owed=3
)


def test_what_a_run_says_is_read_as_it_was_said() -> None:
    assert RunInfo.of(SAID.text()) == SAID


def test_a_run_of_before_that_does_not_say_what_is_missing_is_read() -> None:
    assert RunInfo.of(SAID.text().replace(' "missing": 0,\n', "")) == SAID


BROKEN: dict[str, tuple[str, type[Exception]]] = {
    "a newer version's": (SAID.text().replace('"format": 1', '"format": 2'), NewerRecord),
    "half a file": (SAID.text()[:40], CorruptRecord),
    "a list": ("[]", CorruptRecord),
    "without its gateways": (SAID.text().replace("gateways", "doors"), CorruptRecord),
    "another state": (SAID.text().replace("running", "walking"), CorruptRecord),
}


@pytest.mark.parametrize(("text", "error"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_understood_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        RunInfo.of(text)
