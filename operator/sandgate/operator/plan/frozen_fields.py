"""Lists the manifest fields that decide what a row is, and so may not change between two runs into a folder. (pure)

A field that is in no table decides: a field that is new mixes nothing until somebody has thought about it. What is left
at its default is left out, so that a manifest is the same whether its defaults are written out or not, and a later
version's new field changes no digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.kinds import Json
from sandgate.contract.manifest_decoder import encode, slots

DIGEST_CHARS = 32
"""Hex digits, half of SHA-256: two manifests of one folder never meet by chance."""
EXACT_MAX = 2**53
"""Up to here a whole float is the same number as the integer of its value."""
SHOWN_CHARS = 60
"""Of a value in a message."""
TASKS_SHOWN = 5
"""Of many that changed."""


class Says(StrEnum):
    """What a field says of a row."""

    ROW = "row"
    """Rows made under another value are other rows."""
    WHERE = "where"
    """Where, when and how fast it is made, or what is done with it afterwards: may change between two runs."""
    CONTENT = "content"
    """Not the field decides but what it names: a tokenizer's files, a task's prompt and data."""
    FOLDER = "folder"
    """Groups and session ids in the journals are made of it: it never changes in a folder."""


_ROW = """
    model.name model.renderer model.historyPolicy model.specialTokensInText model.maxModelLen
    model.templateKwargs
    engine.managed.image engine.managed.model engine.managed.command engine.managed.args engine.managed.env
    engine.managed.template engine.kind engine.model engine.logprobsMode
    agent.template agent.taskDelivery agent.completion agent.isolation agent.egress
    sampling.temperature sampling.topP sampling.topK sampling.minP sampling.presencePenalty
    sampling.frequencyPenalty sampling.repetitionPenalty sampling.seed sampling.maxTokens sampling.override
    limits.turns limits.totalTokens limits.promptTokens limits.responseTokens limits.sessionSeconds
    reward.source reward.verifier.container reward.verifier.seconds reward.discount reward.cutTurns
    gateway.roles gateway.media.allowedHosts gateway.media.privateAddresses
"""
_WHERE = """
    engine.endpoints engine.selector.matchLabels engine.selector.port engine.managed.replicas engine.managed.gpus
    engine.managed.gpuResource engine.managed.startSeconds engine.managed.template.metadata
    agent.backend agent.template.metadata agent.template.spec.containers[].resources
    agent.template.spec.containers[].imagePullPolicy agent.template.spec.nodeSelector agent.template.spec.tolerations
    agent.template.spec.affinity agent.template.spec.imagePullSecrets agent.template.spec.priorityClassName
    agent.template.spec.schedulerName agent.template.spec.topologySpreadConstraints
    gateway.replicas gateway.beside gateway.idleSeconds
    gateway.journal.sqlite.storage gateway.journal.sqlite.storageClass
    gateway.journal.postgres.secretRef.name gateway.journal.postgres.secretRef.key gateway.image gateway.template
    parallelism startBurst limits.startSeconds
    reward.verifier.container.resources reward.verifier.container.imagePullPolicy
    group.quorum group.stragglerSeconds group.retry.infra
    staleness.maxVersionsBehind staleness.batchSize output.lease output.parquet.url
    trainer.heartbeatSeconds trainer.collectSeconds
    suspend activeDeadlineSeconds ttlSecondsAfterFinished managedBy
"""
_CONTENT = """
    model.tokenizer tasks.inline tasks.configMap.name tasks.configMap.key tasks.file tasks.queue.capacity
"""

FIELDS: Mapping[str, Says] = {
    **dict.fromkeys(_ROW.split(), Says.ROW),
    **dict.fromkeys(_WHERE.split(), Says.WHERE),
    **dict.fromkeys(_CONTENT.split(), Says.CONTENT),
    "groupSize": Says.FOLDER,
}
"""Field of spec -> what it says. A field below one that is listed says the same; the longest name wins. More memory
(`resources`) is how a job whose agents were killed for it goes on; whether a group counts (`group`) is asked anew."""

TOKENIZER = "spec.model.tokenizer"
WEIGHTS = "spec.engine.managed.model"

Part = dict[str, Json]
"""What decides: field of the manifest -> its value; fields at their defaults are left out."""

_INDEX = re.compile(r"\[\d+\]")
_ENVIRONMENT = re.compile(r"\.env(\[|\.|$)")
"""Where people keep keys: values stand in no message."""


def says(path: str) -> Says:
    """Of a field below spec, e.g. `agent.template.spec.containers[0].env[1].value`."""
    name = _INDEX.sub("[]", path)
    while name:
        if name in FIELDS:
            return FIELDS[name]
        name = name.removesuffix("[]") if name.endswith("[]") else name.rpartition(".")[0]
    return Says.ROW


def deciding(job: RolloutJob, tokenizer: str) -> Part:
    """The part of a manifest that decides what its rows are. `tokenizer`: digest of the model folder's files, or its
    path where there are none."""
    found = {f"spec.{path}": value for path, value in _leaves(job.spec, "") if says(path) is Says.ROW}
    found[TOKENIZER] = tokenizer
    managed = job.spec.engine.managed
    if (
        managed is not None
    ):  # its weights are then in the tokenizer's folder, and no digest tells two of them apart
        found[WEIGHTS] = managed.model or job.spec.model.tokenizer
    return found


def _leaves(made: Any, path: str) -> Iterator[tuple[str, Json]]:
    """Fields of a manifest object that are not at their defaults; embedded JSON down to its own fields."""
    given = {one.name: one for one in fields(made)}
    for slot in slots(type(made)):
        value, at = getattr(made, slot.python), f"{path}.{slot.manifest}" if path else slot.manifest
        one = given[slot.python]
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if value is None or (default is not MISSING and value == default):
            continue
        if is_dataclass(value):
            yield from _leaves(value, at)
        elif not isinstance(value, tuple) or not any(map(is_dataclass, value)):
            yield from _json_leaves(value, at)
        elif says(at) is Says.ROW:
            yield at, [dict(_leaves(one, "")) for one in value]


def _json_leaves(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _json_leaves(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping | list) for one in value):
        for index, inner in enumerate(value):
            yield from _json_leaves(inner, f"{path}[{index}]")
    elif value not in (None, [], ()):
        yield path, _plain(value)


def _plain(value: Json) -> Json:
    """The same JSON for the same value: whole numbers are integers, objects have an order."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_MAX:
        return int(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in sorted(value)}
    return value


def digest(value: Json) -> str:
    """Of plain JSON; equal for equal values, however they are written."""
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def task_digest(task: Task) -> str:
    """Of what an agent and a verifier get."""
    return digest([task.prompt, task.data])


def tasks_digest(tasks: Mapping[str, str]) -> str:
    """Of all tasks, uid -> task_digest; in any order."""
    sum_ = hashlib.sha256()
    for uid in sorted(tasks):
        sum_.update(json.dumps([uid, tasks[uid]]).encode())
    return sum_.hexdigest()[:DIGEST_CHARS]


# -- what was made with what ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """What rows of a folder were made with."""

    uid: str
    manifest: str = ""
    """Digest of the deciding part; empty: by a version that did not say."""
    task: str = ""
    """task_digest; empty: not known."""


def fixed_changes(before: RolloutJob, now: RolloutJob) -> list[str]:
    """What can never change in a folder, in words."""
    pairs = {
        "metadata.name": (before.metadata.name, now.metadata.name),
        **{
            f"spec.{path}": (_at(before, path), _at(now, path))
            for path, kind in FIELDS.items()
            if kind is Says.FOLDER
        },
    }
    return [_changed(name, was, is_) for name, (was, is_) in pairs.items() if was != is_]


def _at(job: RolloutJob, path: str) -> Json:
    value: Json = encode(job.spec)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def changes(before: Part, now: Part) -> list[str]:
    """Fields that differ, in words, in the manifest's order."""
    names = [*now, *(name for name in before if name not in now)]
    return [
        _changed(name, before.get(name), now.get(name))
        for name in names
        if digest(before.get(name)) != digest(now.get(name))
    ]


def task_changes(made: Iterable[Made], tasks: Mapping[str, str]) -> list[str]:
    """Tasks with rows that are gone now, or that say something else under the same uid, in words."""
    gone: dict[str, None] = {}
    other: dict[str, None] = {}
    for one in made:
        if one.uid not in tasks:
            gone[one.uid] = None
        elif one.task and tasks[one.uid] != one.task:
            other[one.uid] = None
    found = []
    if other:
        found.append(f"another prompt or data of {_listed(other)}")
    if gone:
        found.append(f"{_listed(gone)} no longer among the tasks")
    return found


def _listed(uids: Iterable[str]) -> str:
    names = sorted(uids)
    more = f" and {len(names) - TASKS_SHOWN} more" if len(names) > TASKS_SHOWN else ""
    return f"task{'s' if len(names) > 1 else ''} {', '.join(names[:TASKS_SHOWN])}{more}"


def _changed(name: str, was: Json, now: Json) -> str:
    if name == TOKENIZER:
        return f"{name} with other files"
    if _ENVIRONMENT.search(name):
        return f"{name} with another value"
    return f"{name} {_shown(was)} (now {_shown(now)})"


def _shown(value: Json) -> str:
    if value is None:
        return "unset"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
