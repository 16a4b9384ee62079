"""Reads a job's tasks from a local disk."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import Task, TasksSpec
from sandgate.contract.manifest_decoder import bad, decode, once, says

TASKS_MAX = 10_000_000
"""Of one job."""
LINE_CHARS_MAX = 4 << 20
"""Of one task; a task is a prompt and a little data."""


def load_tasks(tasks: TasksSpec, manifest_dir: Path) -> tuple[Task, ...]:
    """All tasks of a job, in order; none for a queue, whose tasks come later. Raises BadManifest (also for a uid that
    stands there twice), Unsupported."""
    if tasks.queue is not None:
        return ()
    if tasks.inline is not None:
        return unique(tasks.inline, "spec.tasks.inline")
    if tasks.file is None:
        raise Unsupported(
            "spec.tasks: without a cluster, tasks are inline, in a file, or pushed (queue)",
            field="spec.tasks",
        )
    path = manifest_dir / tasks.file
    try:
        with path.open(encoding="utf-8") as file:
            return read_tasks(file, str(path), "spec.tasks.file")
    except OSError as error:
        why = error.strerror or error  # the error names the file itself
        raise BadManifest(f"spec.tasks.file: {path}: {why}", field="spec.tasks.file") from error
    except UnicodeDecodeError as error:
        raise bad("spec.tasks.file", f"{path}:{_line_of_no_text(path)}: not UTF-8 text") from error


def _line_of_no_text(path: Path) -> int:
    """The first line that is not UTF-8: a decoder that reads ahead cannot say."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def read_tasks(lines: TextIO, source: str, field: str) -> tuple[Task, ...]:
    """JSON lines -> tasks, one at least; blank lines are skipped, as is a byte order mark. Raises BadManifest naming
    the line, also of a uid that an earlier line has. Its field is the manifest's, `field`: a task's own stands in the
    text."""
    at = array("Q")

    def twice(uid: str, place: int) -> str:
        return f"{source}:{at[-1]}: uid: {uid!r} stands there twice: line {at[place]} has it too"

    return _unique(_read(lines, source, field, at), field, twice)


def _read(lines: TextIO, source: str, field: str, at: array[int]) -> Iterator[Task]:
    """`at`: gets the line of each task; 8 bytes, where a second dict of a job's uids takes 75."""
    for number, line in enumerate(iter(lambda: lines.readline(LINE_CHARS_MAX + 1), ""), 1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        if len(text) > LINE_CHARS_MAX:
            raise bad(field, f"{source}:{number}: longer than {LINE_CHARS_MAX} characters")
        try:
            task = _task(json.loads(text, object_pairs_hook=once))
        except BadManifest as error:
            raise bad(field, f"{source}:{number}: {error}") from None
        except (ValueError, RecursionError) as error:
            why = f"not JSON: {error}"
            if "\0" in text:  # UTF-16 has one beside each letter
                why = "holds NUL characters; is it UTF-8 text?"
            raise bad(field, f"{source}:{number}: {why}") from None
        at.append(number)
        yield task


def _task(said: Any) -> Task:
    if not isinstance(said, dict):
        raise BadManifest(f"must be an object, not {says(said)}")
    return decode(Task, said)


def unique(tasks: Iterable[Task], field: str) -> tuple[Task, ...]:
    """The tasks, if there is one at least and each uid is there once. Raises BadManifest."""
    return _unique(tasks, field, lambda uid, _: f"uid {uid!r} stands there twice")


def _unique(tasks: Iterable[Task], field: str, twice: Callable[[str, int], str]) -> tuple[Task, ...]:
    """`twice`: the words for a uid, and the place among the tasks where it stood first."""
    found: dict[str, Task] = {}
    for task in tasks:
        if task.uid in found:
            raise bad(field, twice(task.uid, list(found).index(task.uid)))
        if len(found) >= TASKS_MAX:
            raise bad(field, f"has more than {TASKS_MAX} tasks")
        found[task.uid] = task
    if not found:
        raise bad(field, "holds no task")
    return tuple(found.values())
