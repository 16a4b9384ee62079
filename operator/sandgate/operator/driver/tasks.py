"""Reads a job's tasks from a local disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import Task, TasksSpec
from sandgate.contract.schema import bad, decode

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
            return unique(read_tasks(file, str(path)), "spec.tasks.file")
    except OSError as error:
        why = error.strerror or error  # the error names the file itself
        raise BadManifest(f"spec.tasks.file: {path}: {why}", field="spec.tasks.file") from error
    except UnicodeDecodeError as error:
        raise BadManifest(f"spec.tasks.file: {path}: {error}", field="spec.tasks.file") from error


def read_tasks(lines: Iterable[str], source: str) -> Iterator[Task]:
    """JSON lines -> tasks; blank lines are skipped. Raises BadManifest naming the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(line) > LINE_CHARS_MAX:
            raise bad("spec.tasks.file", f"{source}:{number}: longer than {LINE_CHARS_MAX} characters")
        try:
            yield decode(Task, json.loads(line))
        except BadManifest as error:
            raise BadManifest(f"spec.tasks.file: {source}:{number}: {error}", field=error.field) from None
        except (ValueError, RecursionError) as error:
            raise bad("spec.tasks.file", f"{source}:{number}: not JSON: {error}") from None


def unique(tasks: Iterable[Task], field: str) -> tuple[Task, ...]:
    """The tasks, if there is one at least and each uid is there once. Raises BadManifest."""
    found: dict[str, Task] = {}
    for task in tasks:
        if task.uid in found:
            raise bad(field, f"uid {task.uid!r} stands there twice")
        if len(found) >= TASKS_MAX:
            raise bad(field, f"has more than {TASKS_MAX} tasks")
        found[task.uid] = task
    if not found:
        raise bad(field, "holds no task")
    return tuple(found.values())
