"""Decides whether a manifest may resume in a folder: rows there must be as this manifest would make them.

`manifests/DIGEST.json` holds each manifest that rows may have been made with; `made.json` says which of them, and which
tasks, the folder was last used with, so that an unchanged job is admitted without a look into its journals.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.errors import BadManifest, Conflict, NotFound, SandgateError, Unavailable
from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.kinds import Json
from sandgate.contract.manifest_decoder import decode, encode
from sandgate.contract.session import SessionState
from sandgate.operator.local.files import replace
from sandgate.operator.plan import frozen_fields
from sandgate.operator.plan.frozen_fields import Made, Part

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "config.json",
)
"""All that a gateway reads of a model folder."""
MADE, MANIFESTS = "made.json", "manifests"
JOURNAL = re.compile(r"gateway-(\d+)\.sqlite")
WRITTEN = ("groups/[!.]*.parquet", "trajectories.parquet")
"""Rows that a journal gave."""
HELP = "give this job a folder of its own (--out), or start over with --fresh"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What rows are made with from now on."""

    manifest: str
    """Digest of the deciding part: the name of `manifests/DIGEST.json`."""
    tasks: Mapping[str, str]
    """uid -> digest of its prompt and data; empty where others bring the tasks."""

    def metadata(self, task: Task) -> dict[str, Json]:
        """What each session's record says of it."""
        return {
            "manifest": self.manifest,
            "task": self.tasks.get(task.uid) or frozen_fields.task_digest(task),
        }


def admit(root: Path, job: RolloutJob, base: Path, tasks: Sequence[Task]) -> Recipe:
    """Let the job use the folder, and note what it makes rows with. `base`: what its relative paths begin at; `tasks`:
    none where others bring them. Raises Conflict naming every field that would make other rows than there are, and
    Unavailable where a file of the folder cannot be read now."""
    part = _part_of(job, base)
    recipe = _recipe(part, tasks)
    before = _before(root)
    if before is not None:
        _complete(root, before.made)
        _refuse(root, before, job, base, part, recipe)
    (root / MANIFESTS).mkdir(exist_ok=True)
    kept = _manifest(root, recipe.manifest)
    if not kept.exists():
        said = {"manifest": encode(job), "deciding": part}
        replace(kept, json.dumps(said, ensure_ascii=False, indent=1))
    old = before.made if before is not None else {}
    known = frozen_fields.tasks_digest(recipe.tasks) if tasks else str(old.get("tasks", ""))
    _note(root, {**old, "manifest": recipe.manifest, "tasks": known})
    return recipe


def fits(root: Path, job: RolloutJob, base: Path, tasks: Sequence[Task]) -> None:
    """Would `admit` let the job use the folder? Raises Conflict as it does, and writes nothing."""
    before = _before(root)
    if before is not None:
        part = _part_of(job, base)
        _complete(root, before.made)
        _refuse(root, before, job, base, part, _recipe(part, tasks))


def stands(root: Path, gateways: int) -> None:
    """So many gateways have their journals now: from now on they belong to the folder."""
    _note(root, _object(root / MADE) | {"gateways": gateways})


def still_there(root: Path, index: int) -> None:
    """To be asked before a gateway is started again. Raises Unavailable if the journal that it had is gone: an empty
    one would be made, and whoever waits for what it held would wait for ever."""
    if index < _gateways(_object(root / MADE)) and not (root / f"gateway-{index}.sqlite").exists():
        raise Unavailable(f"{root}: {_gone([index])}")


def reopened(root: Path) -> frozenset[str]:
    """Groups that `reopen` named and that were not written since."""
    found = _object(root / MADE).get("reopened")
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def reopen(root: Path, uids: Iterable[str]) -> None:
    """The files of these groups, and of no others, will lack rows until they are written again."""
    _note(root, _object(root / MADE) | {"reopened": sorted(uids)})


def tokenizer_digest(model: Path) -> str:
    """Of what a gateway reads in a model folder; the folder's path where it holds no tokenizer."""
    if not (model / "tokenizer.json").is_file():
        return str(model)
    sum_ = hashlib.sha256()
    for pattern in TOKENIZER_FILES:
        for path in sorted(model.glob(pattern)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            sum_.update(f"{path.relative_to(model)} {content}\n".encode())
    return f"sha256:{sum_.hexdigest()[: frozen_fields.DIGEST_CHARS]}"


@dataclass(frozen=True, slots=True)
class _Before:
    """What the last run into a folder was of."""

    job: RolloutJob
    made: Mapping[str, Json]
    """Of made.json; empty if a version without it made the folder."""


def _before(root: Path) -> _Before | None:
    try:
        said = json.loads(_text(root / "job.json"))
        return _Before(_understood(said), _object(root / MADE))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, BadManifest) as error:
        raise Conflict(
            f"{root}: its job.json cannot be read ({error}), so nobody can tell what its rows are; {HELP}"
        ) from error


def _understood(manifest: dict[str, Any]) -> RolloutJob:
    """A manifest that a run wrote down, of an earlier version too: those wrote `agent.pool` into each, and no row
    differs by it. Raises BadManifest."""
    with suppress(AttributeError, KeyError, TypeError):  # decode says what is wrong with it
        manifest["spec"]["agent"].pop("pool", None)
    return decode(RolloutJob, manifest, stored=True)


def _complete(root: Path, made: Mapping[str, Json]) -> None:
    """Raises Conflict if journals are gone: what they held would silently be sampled again."""
    written = any(True for pattern in WRITTEN for _ in root.glob(pattern))
    indices = {
        int(found[1])
        for path in root.glob("gateway-*")
        # An empty one would be made anew: right where nothing was sampled yet.
        if (found := JOURNAL.fullmatch(path.name)) and (path.stat().st_size or not written)
    }
    wanted = max(_gateways(made), max(indices, default=-1) + 1)
    if not wanted and written:
        wanted = 1
    if gone := [index for index in range(wanted) if index not in indices]:
        raise Conflict(f"{root}: {_gone(gone)}")


def _gateways(made: Mapping[str, Json]) -> int:
    """How many have their journals in the folder."""
    told = made.get("gateways", 0)
    return told if isinstance(told, int) else 0


def _gone(indices: Sequence[int]) -> str:
    names, verb = (
        ", ".join(f"gateway-{index}.sqlite" for index in indices),
        "is" if len(indices) == 1 else "are",
    )
    return f"{names} {verb} gone, and with it what was sampled; put it back, or {HELP}"


def _refuse(root: Path, before: _Before, job: RolloutJob, base: Path, part: Part, recipe: Recipe) -> None:
    """Raises Conflict naming all that changed."""
    wrong = frozen_fields.fixed_changes(before.job, job)
    if wrong:
        raise Conflict(f"{root}: holds a run of {'; '.join(wrong)}; {HELP}")
    was = _part_of(before.job, base)
    same = before.made.get("manifest", frozen_fields.digest(was)) == recipe.manifest
    if same and (not recipe.tasks or before.made.get("tasks") == frozen_fields.tasks_digest(recipe.tasks)):
        return
    try:
        made = set(_rows(root, job.metadata.name))
    except SandgateError as error:
        raise Conflict(
            f"{root}: this job differs from the one before, and the rows that are there cannot be read:"
            f" {error}; {HELP}"
        ) from error
    wrong = []
    for digest in sorted({one.manifest for one in made} - {recipe.manifest}):
        wrong += frozen_fields.changes(_kept(root, digest) if digest else was, part)
    if recipe.tasks:
        wrong += frozen_fields.task_changes(made, recipe.tasks)
    if wrong:
        raise Conflict(
            f"{root}: holds rows made with {'; '.join(dict.fromkeys(wrong))}; they would be mixed: {HELP}"
        )


def _recipe(part: Part, tasks: Sequence[Task]) -> Recipe:
    return Recipe(frozen_fields.digest(part), {task.uid: frozen_fields.task_digest(task) for task in tasks})


def _part_of(job: RolloutJob, base: Path) -> Part:
    return frozen_fields.deciding(job, tokenizer_digest(base / job.spec.model.tokenizer))


def _kept(root: Path, digest: str) -> Part:
    """What decided, by the manifest of that digest, in the words of this version."""
    try:
        said = _object(_manifest(root, digest), strict=True)
        job = _understood(said["manifest"])
        return frozen_fields.deciding(job, str(said["deciding"][frozen_fields.TOKENIZER]))
    except (FileNotFoundError, ValueError, KeyError, TypeError, BadManifest) as error:
        raise Conflict(
            f"{root}: holds rows of the manifest {digest}, and manifests/{digest}.json cannot be read"
            f" ({error}); {HELP}"
        ) from error


def _rows(root: Path, job: str) -> Iterator[Made]:
    """Of each session that counts and took a turn, as the journals tell. Nothing else gives a row: infrastructure's
    failures are tried again, and what was cut short too."""
    from sandgate.gateway import offline  # loads tokenizers

    with suppress(NotFound):  # no journal, no rows
        for said, spec in offline.opened(root, job):
            counts = said["state"] == SessionState.FINALIZED and said["failure_class"] != FailureClass.INFRA
            if counts and said["turns"]:
                yield _made(spec)


def _made(spec: Mapping[str, Json]) -> Made:
    told = spec.get("metadata") or {}
    uid, task = str(spec.get("uid", "")), spec.get("task")
    if "manifest" not in told and isinstance(
        task, Mapping
    ):  # by a version that kept the task, and no digest of it
        return Made(uid, task=frozen_fields.digest([task.get("prompt"), task.get("data")]))
    return Made(uid, str(told.get("manifest", "")), str(told.get("task", "")))


def _manifest(root: Path, digest: str) -> Path:
    return root / MANIFESTS / f"{digest}.json"


def _note(root: Path, said: Mapping[str, Json]) -> None:
    replace(root / MADE, json.dumps(said))


def _object(path: Path, *, strict: bool = False) -> dict[str, Json]:
    """A JSON object; nothing, unless `strict`, where there is none. Raises Unavailable as `_text` does: what it gives
    is written back."""
    try:
        said = json.loads(_text(path))
    except (FileNotFoundError, ValueError, RecursionError):
        if strict:
            raise
        return {}
    return said if isinstance(said, dict) else {}


def _text(path: Path) -> str:
    """Raises FileNotFoundError, ValueError, and Unavailable where it is there and cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(f"{path}: cannot be read now ({why}); try again") from error
