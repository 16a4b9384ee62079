"""Progress of a run: bars on a terminal, lines in a log. Both go to stderr: stdout is for the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sandgate.contract.failure_reasons import FailureReason
from sandgate.operator.local.job import (
    Counts,
    DrainStarted,
    EngineReady,
    EngineStarting,
    Event,
    GatewayReady,
    Note,
    Problem,
    ProcessRestarted,
    Resumed,
    SessionEnded,
    TrainerNews,
)
from sandgate.trainer.cli.output import plural, printable
from sandgate.trainer.runs.summary import SOLVED

LINES_EVERY_S = 10.0
"""Between two lines of counts in a log: a night of rollouts stays readable."""
WAVE = 4
"""Sessions that must have ended, at least, before the time that is left is guessed; and as many as run at once: the
first to end are the short ones."""
BAR_WIDTH = 20
"""With what stands beside it, it fits into 80 columns."""
REASONS_MAX = 3
"""Reasons of failures that a line names."""


class Display(Protocol):
    """Told everything, in order."""

    def tell(self, event: Event) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(*, quiet: bool) -> Display:
    """Bars if stderr is a terminal, lines if not; when `quiet`, only what a person must know."""
    console = ProgressConsole(stderr=True, highlight=False, soft_wrap=True)
    return Unfailing(Bars(console) if console.is_terminal and not quiet else Lines(console, quiet=quiet))


class ProgressConsole(Console):
    """Falls silent when nobody reads it any more. (Rich's own ends the process: in a callback of an event loop that
    ends nothing, and hangs everything.)"""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Unfailing:
    """What is shown of a run has no say in it: a display that cannot write (a full disk, a pipe without a reader) is
    told nothing more."""

    def __init__(self, shown: Display) -> None:
        self.shown, self.gone = shown, False

    def tell(self, event: Event) -> None:
        """As long as that works."""
        if not self.gone:
            with self._or_gone():
                self.shown.tell(event)

    @contextmanager
    def _or_gone(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: the file was closed, or cannot spell a character
            self.gone = True

    def __enter__(self) -> Self:
        with self._or_gone():
            self.shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.gone:
            with self._or_gone():
                self.shown.__exit__(kind, error, trace)


KINDS: dict[type, str] = {Note: "note: ", TrainerNews: "", Problem: "problem: "}
"""How what is told in words begins."""


def line_of(event: Event) -> str | None:
    """What is told once in words; None for what only moves a bar."""
    line = _line_of(event)
    return None if line is None else printable(line)


def _line_of(event: Event) -> str | None:
    match event:
        case EngineStarting(log=log, restarts=0):
            return f"engine is starting, log in {log}"
        case EngineStarting(log=log, restarts=restarts):
            return f"engine is starting again ({plural(restarts, 'restart')}), log in {log}"
        case EngineReady(urls=urls, seconds=seconds):
            return f"engine answers after {seconds:.1f} s: {', '.join(urls)}"
        case GatewayReady(name=name, origin=origin):
            return f"gateway {name} listens on {origin}"
        case ProcessRestarted(name=name, why=why, restarts=restarts):
            return f"{name} {why}; {plural(restarts, 'restart')}"
        case Resumed(ended=ended, lost=lost, collected=collected):
            again = f"; {plural(lost, 'session')} that it cut short will run again" if lost else ""
            return f"going on: {plural(ended, 'sample')} and {plural(collected, 'group')} are done{again}"
        case DrainStarted(running=running):
            return f"stopping: {plural(running, 'session')} may end; Ctrl-C again aborts them"
        case Note(text=text) | TrainerNews(text=text) | Problem(text=text):
            return f"{KINDS[type(event)]}{text}"
        case SessionEnded(failure_reason=FailureReason.ANSWER_WRONG, traceback=False):
            return None  # rollouts are often wrong: the summary counts them
        case SessionEnded(failure_reason=reason) if reason is not None:
            where = f"{event.session_id} (task {event.uid}, sample {event.sample}, attempt {event.attempt})"
            return f"{where}: {event.failure_class}/{reason} {event.detail}".rstrip()
        case _:
            return None


@dataclass(slots=True)
class RunTally:
    """What became of the sessions of this run, and how long the rest will take."""

    solved: int = 0
    unsolved: int = 0
    unscored: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Reason -> sessions, attempts that were tried again included."""
    first: Counts | None = None
    most: int = 0
    """Sessions that ran at once."""

    def tell(self, event: Event) -> None:
        """Count it."""
        if isinstance(event, Counts):
            self.first = self.first or event
            self.most = max(self.most, event.running)
        elif isinstance(event, SessionEnded):
            if event.failure_reason is not None:
                self.failures[event.failure_reason.value] += 1
            elif event.reward is None:
                self.unscored += 1
            elif event.reward >= SOLVED:
                self.solved += 1
            else:
                self.unsolved += 1

    def outcomes(self) -> str:
        """`7 solved, 3 not, 1 TurnLimit`; empty while nothing ended. Where exit codes are rewards those that are not
        solved are `AnswerWrong`, so that no `not` is said instead of `0 not`."""
        parts = []
        if self.solved or self.unsolved:
            parts.append(f"{self.solved:,} solved")
        if self.unsolved:
            parts.append(f"{self.unsolved:,} not")
        if self.unscored:
            parts.append(f"{self.unscored:,} not scored")
        parts += [f"{count:,} {reason}" for reason, count in self.failures.most_common(REASONS_MAX)]
        if rest := self.failures.total() - sum(n for _, n in self.failures.most_common(REASONS_MAX)):
            parts.append(plural(rest, "other failure"))
        return ", ".join(parts)

    def left_s(self, now: Counts) -> float | None:
        """Seconds until the last session ends, at the pace of this run; None while that would be a guess, or nothing
        runs until a trainer does something."""
        if self.first is None or now.ended >= now.total or now.held:
            return None
        ended, seconds = now.ended - self.first.ended, now.seconds - self.first.seconds
        if ended < max(WAVE, self.most) or seconds <= 0:
            return None
        return (now.total - now.ended) * seconds / ended


def about(seconds: float) -> str:
    """A guess, as exact as it is: `about 40 s left`, `about 12 min left`, `about 3.5 h left`."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s left"
    if seconds < 55 * 60:
        return f"about {max(1, round(seconds / 60))} min left"
    return f"about {seconds / 3600:.1f} h left"


def counts_of(found: Counts, tally: RunTally) -> str:
    """How far the job is, in one line."""
    rest = f", {plural(found.failed, 'failure')}" if found.failed else ""
    rest += f", {plural(found.retries, 'retry', 'retries')}" if found.retries else ""
    words = [
        f"{found.ended}/{found.total} sessions ({found.running} running{rest})",
        f"{found.collected}/{found.groups} groups",
        *filter(None, [tally.outcomes()]),
        f"{found.turns} turns",
        f"{found.tokens_per_s:,.0f} tokens/s",
        f"{found.seconds:.0f} s",
    ]
    return ", ".join(filter(None, [*words, rest_of(found, tally)]))


def rest_of(found: Counts, tally: RunTally) -> str:
    """How long it will take still, or what it waits for; empty while that would be a guess."""
    left = tally.left_s(found)
    return "waits for the trainer" if found.held else "" if left is None else about(left)


class Lines:
    """For logs and pipes."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.said_at = 0.0
        self.last: Counts | None = None
        self.tally = RunTally()

    def tell(self, event: Event) -> None:
        """Say it, unless it is soon after the last counts."""
        self.tally.tell(event)
        if isinstance(event, Counts):
            self.last = event
            if event.seconds - self.said_at >= LINES_EVERY_S:
                self._counts(event)
            return
        line = line_of(event)
        if line is not None and (not self.quiet or isinstance(event, Problem | DrainStarted)):
            self.console.print(line, markup=False)

    def _counts(self, found: Counts) -> None:
        self.said_at, self.last = found.seconds, None
        if not self.quiet:
            self.console.print(counts_of(found, self.tally), markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.last is not None:
            self._counts(self.last)


class Bars:
    """For people at a terminal: two bars that move, below them what became of the sessions, and above them what is told
    once."""

    def __init__(self, console: Console) -> None:
        self.tally = RunTally()
        self.progress = Progress(
            TextColumn("{task.description}", justify="right"),
            BarColumn(BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self.outcomes = Text("", "dim")
        # Transient: the last line of counts stands for it.
        self.live = Live(Group(self.progress, self.outcomes), console=console, transient=True)
        self.sessions = self.progress.add_task("sessions", total=None, note="")
        self.groups = self.progress.add_task("groups", total=None, note="")
        self.last: Counts | None = None

    def tell(self, event: Event) -> None:
        """Move the bars, or say it above them."""
        self.tally.tell(event)
        if isinstance(event, Counts):
            self.last = event
            note = f"{event.running} running"
            note += f", {plural(event.retries, 'retry', 'retries')}" if event.retries else ""
            self.progress.update(self.sessions, total=event.total, completed=event.ended, note=note)
            rate = ", ".join(
                filter(None, [f"{event.tokens_per_s:,.0f} tokens/s", rest_of(event, self.tally)])
            )
            self.progress.update(self.groups, total=event.groups, completed=event.collected, note=rate)
            self.outcomes.plain = self.tally.outcomes()
        elif (line := line_of(event)) is not None:
            self.live.console.print(line, markup=False)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()
        if self.last is not None:
            self.live.console.print(counts_of(self.last, self.tally), markup=False)
