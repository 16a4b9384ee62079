"""Checks the shape of what pods are made from: fields that we read ourselves, and would stumble over. (pure)

A pod template is otherwise taken as it is written, and the API server judges the pod. Of these fields it never gets to
see a wrong one, so the job must say it: with the field, before anything is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from sandgate.contract.manifest_decoder import says

Shape: TypeAlias = Any
"""`str`, `int`; `{}` with the shapes of known fields; `[shape]`, a list of such; TEXTS. A null is as good as nothing:
so it is to Kubernetes."""
TEXTS: Final = "texts"
"""An object whose values are all text."""
CONTAINER: Final[Shape] = {
    "name": str,
    "image": str,
    "workingDir": str,
    "terminationMessagePath": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str}],
    "volumeMounts": [{"name": str}],
    "resources": {"requests": {}, "limits": {}},
    "securityContext": {"capabilities": {"add": [str], "drop": [str]}},
}
TEMPLATE: Final[Shape] = {
    "metadata": {"labels": TEXTS, "annotations": TEXTS},
    "spec": {
        "activeDeadlineSeconds": int,
        "affinity": {"nodeAffinity": {}},
        "containers": [CONTAINER],
        "imagePullSecrets": [{"name": str}],
        "initContainers": [CONTAINER],
        "nodeSelector": TEXTS,
        "securityContext": {},
        "tolerations": [{"key": str, "effect": str}],
        "volumes": [{"name": str}],
    },
}
KINDS: Final = {str: "text", int: "a whole number"}


def template_misfits(template: Any, path: str) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) of an agent's PodTemplateSpec. Its first container may be without a name."""
    yield from misfits(TEMPLATE, template, path)
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict):
        return
    for kind, unnamed in (("initContainers", 0), ("containers", 1)):
        found = pod.get(kind)
        for index, one in enumerate(found if isinstance(found, list) else ()):
            if index >= unnamed and isinstance(one, dict) and not one.get("name"):
                yield f"{path}.spec.{kind}[{index}].name", "is missing"


def misfits(shape: Shape, value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) of everything in `value` that has another shape."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield path, f"must be a list, not {says(value)}"
            return
        for index, one in enumerate(value):
            if one is None:
                yield f"{path}[{index}]", "must not be null"
            else:
                yield from misfits(shape[0], one, f"{path}[{index}]")
    elif shape == TEXTS or isinstance(shape, dict):
        yield from _of_object(shape, value, path)
    elif not isinstance(value, shape) or isinstance(value, bool):
        yield path, f"must be {KINDS[shape]}, not {says(value)}"


def _of_object(shape: Shape, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield path, f"must be an object, not {says(value)}"
        return
    for name, one in value.items():
        known = str if shape == TEXTS else shape.get(name)
        if known is not None and one is not None:
            yield from misfits(known, one, f"{path}.{name}")
