"""Paths of a model's files in a cluster. (pure)

A manifest's relative paths begin beside it when it runs locally, and at `settings.models_dir` in pods: how that folder
comes there (a volume, the image) is said in `gateway.template` and `engine.managed.template`.
"""

from __future__ import annotations

import posixpath

from sandgate.contract.job import ManagedEngineSpec, RolloutJobSpec
from sandgate.operator.settings import Settings


def tokenizer_path(spec: RolloutJobSpec, settings: Settings) -> str:
    """Absolute path of model.tokenizer in gateways."""
    return posixpath.normpath(posixpath.join(settings.models_dir, spec.model.tokenizer))


def leads_out(path: str) -> bool:
    """It is relative, and leaves the folder it begins at."""
    return not posixpath.isabs(path) and posixpath.normpath(path).split("/")[0] == ".."


def weights(spec: RolloutJobSpec, managed: ManagedEngineSpec, settings: Settings) -> tuple[str, bool]:
    """(what the engine serves, is it a path). `managed.model` of the form owner/name is a hub's name, as there is no
    folder to look at; anything else is a path."""
    if not managed.model:
        return tokenizer_path(spec, settings), True
    if is_hub_name(managed.model):
        return managed.model, False
    return posixpath.normpath(posixpath.join(settings.models_dir, managed.model)), True


def is_hub_name(model: str) -> bool:
    """`owner/name`."""
    owner, slash, name = model.partition("/")
    return bool(slash and name) and "/" not in name and owner not in ("", ".", "..")
