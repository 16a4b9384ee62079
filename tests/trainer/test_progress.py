"""What a run tells while it goes on: lines for logs, bars for terminals."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.operator.local.job import (
    Counts,
    DrainStarted,
    EngineReady,
    EngineStarting,
    Event,
    GatewayReady,
    GroupCollected,
    Note,
    Problem,
    ProcessRestarted,
    Resumed,
    SessionEnded,
    SessionStarted,
    TrainerNews,
)
from sandgate.trainer.cli.progress import (
    Bars,
    Display,
    Lines,
    RunTally,
    Unfailing,
    about,
    counts_of,
    display,
    line_of,
)


def counts(seconds: float, *, ended: int = 1, failed: int = 0, retries: int = 0, running: int = 2) -> Counts:
    return Counts(total=8, running=running, ended=ended, failed=failed, retries=retries, collected=0, groups=2, turns=3,
                  sampled_tokens=99, tokens_per_s=1234.5, seconds=seconds)  # fmt: skip


def session(
    reason: FailureReason | None = None, detail: str = "", reward: float | None = None
) -> SessionEnded:
    return SessionEnded(session_id="s", uid="q1", sample=0, attempt=1, seconds=1.0, reward=reward, turns=1, tokens=1,
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
    (DrainStarted(running=1), "stopping: 1 session may end; Ctrl-C again aborts them"),
    (Note(text="no walls here"), "note: no walls here"),
    (Problem(text="disk is slow"), "problem: disk is slow"),
    (TrainerNews(text="a trainer is attached"), "a trainer is attached"),
    (SessionStarted(session_id="s", uid="q", sample=0, attempt=0), None),
    (session(), None),
    (
        session(FailureReason.EVICTED, "no memory"),
        "s (task q1, sample 0, attempt 1): infra/Evicted no memory",
    ),
    (GroupCollected(uid="q", trajectories=1, path=Path("p")), None),
    (Note(text="task a\x1b[2Jb: gone"), r"note: task a\x1b[2Jb: gone"),
]


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=lambda value: type(value).__name__)
def test_what_is_told_in_words(event: Event, line: str | None) -> None:
    assert line_of(event) == line


def test_counts_in_a_line() -> None:
    said = "1/8 sessions (2 running), 0/2 groups, 3 turns, 1,234 tokens/s, 12 s"
    assert counts_of(counts(12.0), RunTally()) == said
    assert "(2 running, 1 failure, 2 retries)" in counts_of(counts(1.0, failed=1, retries=2), RunTally())
    tally = tallied(session(reward=1.0), session(reward=0.5))
    assert "0/2 groups, 1 solved, 1 not, 3 turns" in counts_of(counts(12.0), tally)


def tallied(*events: Event) -> RunTally:
    tally = RunTally()
    for event in events:
        tally.tell(event)
    return tally


R = FailureReason
OUTCOMES: dict[str, tuple[list[Event], str]] = {
    "nothing ended": ([counts(1.0)], ""),
    "rewards": ([session(reward=1.0), session(reward=2.0), session(reward=0.0)], "2 solved, 1 not"),
    "wrong answers by exit code are said once": (
        [session(reward=1.0), session(R.ANSWER_WRONG, reward=0.0)], "1 solved, 1 AnswerWrong",
    ),
    "none is solved": ([session(reward=0.0)], "0 solved, 1 not"),
    "no rewards": ([session()], "1 not scored"),
    "a failure that has a reward": ([session(R.TURN_LIMIT, reward=1.0)], "1 TurnLimit"),
    "failures, the most frequent first": (
        [session(R.EVICTED), session(R.AGENT_EXIT), session(R.AGENT_EXIT)], "2 AgentExit, 1 Evicted",
    ),
    "more reasons than a line has room for": (
        [session(one) for one in (R.EVICTED, R.AGENT_EXIT, R.TURN_LIMIT, R.TOKEN_LIMIT, R.SESSION_TIMEOUT)],
        "1 Evicted, 1 AgentExit, 1 TurnLimit, 2 other failures",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "said"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes(events: list[Event], said: str) -> None:
    assert tallied(*events).outcomes() == said


LEFT: dict[str, tuple[list[Counts], float | None]] = {
    "the pace of this run": ([counts(10.0, ended=0), counts(18.0, ended=4)], 8.0),
    "not the pace of an earlier run": ([counts(10.0, ended=4), counts(14.0, ended=5)], None),
    "too few have ended": ([counts(10.0, ended=0), counts(14.0, ended=3)], None),
    "fewer have ended than run at once": (
        [counts(0.0, ended=0, running=6), counts(14.0, ended=5, running=3)], None,
    ),
    "nothing has ended": ([counts(10.0, ended=0), counts(99.0, ended=0)], None),
    "all have ended": ([counts(10.0, ended=0), counts(18.0, ended=8)], None),
    "nothing runs until a trainer does something": (
        [counts(10.0, ended=0), replace(counts(18.0, ended=4), held=True)], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "seconds"), LEFT.values(), ids=LEFT)
def test_the_time_that_is_left_is_told_when_it_can_be_known(
    seen: list[Counts], seconds: float | None
) -> None:
    assert tallied(*seen).left_s(seen[-1]) == seconds


def test_what_waits_for_the_trainer_says_so_where_the_rest_of_its_time_stands() -> None:
    held = replace(counts(18.0, ended=4, running=0), held=True)
    assert counts_of(held, tallied(counts(10.0, ended=0), held)).endswith(" 18 s, waits for the trainer")


ABOUT = {
    1.0: "5 s",
    12.0: "10 s",
    54.0: "55 s",
    60.0: "1 min",
    100.0: "2 min",
    3_200.0: "53 min",
    5_400.0: "1.5 h",
}


@pytest.mark.parametrize(("seconds", "said"), ABOUT.items())
def test_a_guess_is_told_as_exactly_as_it_is(seconds: float, said: str) -> None:
    assert about(seconds) == f"about {said} left"


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


@contextlib.contextmanager
def terminal(shown: bytearray) -> Iterator[TextIO]:
    """A real one, by a pty; `shown`: what it was sent, when the block is over."""
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, 80))

    def read() -> None:
        with (
            os.fdopen(leader, "rb", buffering=0) as pipe,
            contextlib.suppress(OSError),
        ):  # EIO: nobody writes any more
            while chunk := pipe.read(65536):
                shown.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as file:
        yield file
    reader.join()


def on_a_terminal(*events: Event) -> str:
    """What stderr is sent when it is a terminal."""
    shown = bytearray()
    with terminal(shown) as stderr, display_on(stderr) as found:
        assert isinstance(found, Unfailing)
        bars = found.shown
        assert isinstance(bars, Bars)
        for event in events:
            bars.tell(event)
            bars.live.refresh()
    return shown.decode()


@contextlib.contextmanager
def display_on(stderr: TextIO) -> Iterator[Display]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        patch.setenv("TERM", "xterm")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        with display(quiet=False) as shown:
            yield shown


def test_on_a_terminal_bars_move_and_words_stand_above_them() -> None:
    text = on_a_terminal(
        Problem(text="[red]disk"),
        session(reward=1.0),
        session(FailureReason.TURN_LIMIT),
        *(counts(float(second), ended=second, retries=1) for second in range(7)),
    )
    assert "problem: [red]disk" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    frame = plain[plain.rindex("sessions ━") :].splitlines()
    sessions, groups, outcomes = (" ".join(line.split()) for line in frame[:3])
    assert re.fullmatch(r"sessions [━╺╸]+ 6/8 2 running, 1 retry 0:00:\d\d", sessions)
    assert re.fullmatch(r"groups [━╺╸]+ 0/2 1,234 tokens/s, about 5 s left 0:00:\d\d", groups)
    assert outcomes == "1 solved, 1 TurnLimit"
    assert max(map(len, frame[:3])) <= 80
    last = frame[-1]
    assert last.startswith("6/8 sessions (2 running, 1 retry), 0/2 groups, 1 solved"), "it stays when bars go"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0, "the cursor is there again"


def test_an_interrupted_display_leaves_the_terminal_as_it_was() -> None:
    shown = bytearray()
    with terminal(shown) as stderr, pytest.raises(KeyboardInterrupt), display_on(stderr):
        raise KeyboardInterrupt
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1


@pytest.mark.parametrize("away", ["a pipe without a reader", "a full disk"])
def test_what_cannot_be_shown_ends_nothing(away: str) -> None:
    if away == "a full disk":
        stderr = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - closed below
    else:
        reader, writer = os.pipe()
        os.close(reader)
        stderr = os.fdopen(writer, "w", buffering=1)
    try:
        with display_on(stderr) as shown:
            for second in range(40):
                shown.tell(Problem(text="the disk is full"))
                shown.tell(counts(float(second), ended=1))
    finally:
        with contextlib.suppress(OSError):
            stderr.close()


def test_where_there_is_no_terminal_there_are_lines() -> None:
    found = display(quiet=False)
    assert isinstance(found, Unfailing)
    assert isinstance(found.shown, Lines)
