"""What a run tells while it goes on: lines for logs, bars for terminals."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sandgate.contract.errors import FailureClass, FailureReason
from sandgate.operator.drivers.local import (
    Counts,
    Draining,
    EngineReady,
    EngineStarting,
    Event,
    GatewayReady,
    GroupCollected,
    Problem,
    ProcessRestarted,
    Resumed,
    SessionEnded,
    SessionStarted,
    TrainerNews,
)
from sandgate.trainer.cli.progress import Bars, Lines, counts_of, line_of


def counts(seconds: float, *, ended: int = 1, failed: int = 0, retries: int = 0) -> Counts:
    return Counts(total=8, running=2, ended=ended, failed=failed, retries=retries, collected=0, groups=2, turns=3,
                  sampled_tokens=99, tokens_per_s=1234.5, seconds=seconds)  # fmt: skip


def session(reason: FailureReason | None = None, detail: str = "") -> SessionEnded:
    return SessionEnded(session_id="s", uid="q1", sample=0, attempt=1, seconds=1.0, reward=None, turns=1, tokens=1,
                        sampled_tokens=1, forks={}, failure_class=FailureClass.INFRA if reason else None,
                        failure_reason=reason, detail=detail)  # fmt: skip


EVENTS: list[tuple[Event, str | None]] = [
    (EngineStarting(log=Path("e.log")), "engine is starting, log in e.log"),
    (EngineStarting(log=Path("e.log"), restarts=1), "engine is starting again (1 restart), log in e.log"),
    (EngineReady(urls=("http://e",), seconds=2.34), "engine answers after 2.3 s: http://e"),
    (GatewayReady(name="g-0", origin="http://g"), "gateway g-0 listens on http://g"),
    (ProcessRestarted(name="g-0", why="was killed", restarts=2), "g-0 was killed; 2 restarts"),
    (Resumed(ended=3, lost=0, collected=1), "going on: 3 samples and 1 group are done"),
    (
        Resumed(ended=1, lost=2, collected=0),
        "going on: 1 sample and 0 groups are done; 2 sessions that it cut short will run again",
    ),
    (Draining(running=1), "stopping: 1 session may end; Ctrl-C again aborts them"),
    (Problem(text="disk is slow"), "problem: disk is slow"),
    (TrainerNews(text="a trainer is attached"), "a trainer is attached"),
    (SessionStarted(session_id="s", uid="q", sample=0, attempt=0), None),
    (session(), None),
    (
        session(FailureReason.EVICTED, "no memory"),
        "s (task q1, sample 0, attempt 1): infra/Evicted no memory",
    ),
    (GroupCollected(uid="q", trajectories=1, path=Path("p")), None),
]


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=lambda value: type(value).__name__)
def test_what_is_told_in_words(event: Event, line: str | None) -> None:
    assert line_of(event) == line


def test_counts_in_a_line() -> None:
    assert counts_of(counts(12.0)) == "1/8 sessions (2 running), 0/2 groups, 3 turns, 1,234 tokens/s, 12 s"
    assert "(2 running, 1 failure, 2 retries)" in counts_of(counts(1.0, failed=1, retries=2))


def lines(*events: Event, quiet: bool = False) -> list[str]:
    out = io.StringIO()
    with Lines(Console(file=out, width=200), quiet=quiet) as shown:
        for event in events:
            shown.tell(event)
    return out.getvalue().splitlines()


def test_a_log_gets_counts_now_and_then_and_the_last_ones() -> None:
    found = lines(*(counts(float(second), ended=second) for second in range(25)))
    assert [line.split("/")[0] for line in found] == ["10", "20", "24"]


def test_the_last_counts_are_not_said_twice() -> None:
    assert len(lines(counts(10.0))) == 1


def test_quiet_says_only_what_a_person_must_know() -> None:
    told = [event for event, _ in EVENTS] + [counts(100.0)]
    assert [line.split(":")[0] for line in lines(*told, quiet=True)] == ["stopping", "problem"]


def test_brackets_in_a_name_are_not_markup() -> None:
    assert lines(Problem(text="[bold]x[/nope]")) == ["problem: [bold]x[/nope]"]


def test_bars_move_and_words_stand_above_them() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=True, width=120, highlight=False)) as shown:
        shown.tell(Problem(text="[red]disk"))
        shown.tell(counts(1.0, ended=3, failed=1))
    text = out.getvalue()
    assert "problem: [red]disk" in text
    for part in ("sessions", "3/8", "2 running, 1 failed", "0/2", "1,234 tokens/s"):
        assert part in text
