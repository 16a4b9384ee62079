"""How a run looks while it goes on: bars on a terminal, lines in a log. Both on stderr: stdout is for the result."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sandgate.contract.errors import FailureReason
from sandgate.operator.drivers.local import (
    Counts,
    Draining,
    EngineReady,
    EngineStarting,
    Event,
    GatewayReady,
    Problem,
    ProcessRestarted,
    Resumed,
    SessionEnded,
)
from sandgate.trainer.cli.say import plural

LINES_EVERY_S = 10.0
"""Between two lines of counts in a log: a night of rollouts stays readable."""


class Display(Protocol):
    """Told everything, in order."""

    def tell(self, event: Event) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(*, quiet: bool) -> Display:
    """Bars if stderr is a terminal, lines if not; when `quiet`, only what a person must know."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    return Bars(console) if console.is_terminal and not quiet else Lines(console, quiet=quiet)


def line_of(event: Event) -> str | None:
    """What is told once in words; None for what only moves a bar."""
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
        case Draining(running=running):
            return f"stopping: {plural(running, 'session')} may end; Ctrl-C again aborts them"
        case Problem(text=text):
            return f"problem: {text}"
        case SessionEnded(failure_reason=FailureReason.ANSWER_WRONG, traceback=False):
            return None  # rollouts are often wrong: the summary counts them
        case SessionEnded(failure_reason=reason) if reason is not None:
            where = f"{event.session_id} (task {event.uid}, sample {event.sample}, attempt {event.attempt})"
            return f"{where}: {event.failure_class}/{reason} {event.detail}".rstrip()
        case _:
            return None


def counts_of(found: Counts) -> str:
    """How far the job is, in one line."""
    rest = f", {plural(found.failed, 'failure')}" if found.failed else ""
    rest += f", {plural(found.retries, 'retry', 'retries')}" if found.retries else ""
    return (
        f"{found.ended}/{found.total} sessions ({found.running} running{rest}), "
        f"{found.collected}/{found.groups} groups, {found.turns} turns, {found.tokens_per_s:,.0f} tokens/s, "
        f"{found.seconds:.0f} s"
    )


class Lines:
    """For logs and pipes."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.said_at = 0.0
        self.last: Counts | None = None

    def tell(self, event: Event) -> None:
        """Say it, unless it is soon after the last counts."""
        if isinstance(event, Counts):
            self.last = event
            if event.seconds - self.said_at >= LINES_EVERY_S:
                self._counts(event)
            return
        line = line_of(event)
        if line is not None and (not self.quiet or isinstance(event, Problem | Draining)):
            self.console.print(line, markup=False)

    def _counts(self, found: Counts) -> None:
        self.said_at, self.last = found.seconds, None
        if not self.quiet:
            self.console.print(counts_of(found), markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.last is not None:
            self._counts(self.last)


class Bars:
    """For people at a terminal: two bars that move, and above them what is told once."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", justify="right"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self.sessions = self.progress.add_task("sessions", total=None, note="")
        self.groups = self.progress.add_task("groups", total=None, note="")

    def tell(self, event: Event) -> None:
        """Move the bars, or say it above them."""
        if isinstance(event, Counts):
            note = f"{event.running} running"
            note += f", {event.failed} failed" if event.failed else ""
            self.progress.update(self.sessions, total=event.total, completed=event.ended, note=note)
            rate = f"{event.tokens_per_s:,.0f} tokens/s"
            self.progress.update(self.groups, total=event.groups, completed=event.collected, note=rate)
        elif (line := line_of(event)) is not None:
            self.progress.console.print(line, markup=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
