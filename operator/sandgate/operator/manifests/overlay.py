"""Lays a user's PodTemplateSpec over ours: `gateway.template`, `engine.managed.template`. (pure)

As a strategic merge patch: maps merge, lists of named things merge by their key, other lists are appended to, null
removes. What would break a gateway or an engine is refused, naming the field.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandgate.contract.labels import MANAGED_BY
from sandgate.contract.manifest_decoder import bad, below

KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
"""List -> what tells its items apart, as the API server says it (`x-kubernetes-list-map-keys`)."""
WHOLE: Final = ("volumes", "env")
"""Items are replaced, not merged: two sources in one volume, or `value` beside `valueFrom`, would be refused."""

POD_OURS: Final = (
    "hostNetwork", "hostPID", "hostIPC", "hostname", "subdomain", "restartPolicy", "nodeName",
    "automountServiceAccountToken", "enableServiceLinks", "activeDeadlineSeconds", "ephemeralContainers",
)  # fmt: skip
"""Of the pod: names and ports that are found by, a token that nothing here needs, and a life that is the job's."""
USER_FIELDS: Final = frozenset(
    "runAsUser runAsGroup fsGroup fsGroupChangePolicy supplementalGroups supplementalGroupsPolicy"
    " seLinuxOptions".split()
)
"""Of securityContext: who a process is, which clusters have opinions on; not what it may do."""
GRACE: Final = "terminationGracePeriodSeconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What a template may not touch."""

    container: str
    fields: tuple[str, ...]
    """Of that container."""
    volumes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    grace_s: int = 0
    """The pod needs that long to end."""
    restricted: bool = False
    """securityContext may say who, not what."""


def lay_over(base: dict[str, Any], template: Mapping[str, Any], path: str, ours: Ours) -> dict[str, Any]:
    """A copy of the PodTemplateSpec `base` with `template` laid over it. Raises BadManifest naming the field below
    `path`."""
    refuse(template, path, ours)
    return _map(base, template, path)


def _map(base: Mapping[str, Any], over: Mapping[str, Any], path: str) -> dict[str, Any]:
    out: dict[str, Any] = copy.deepcopy(dict(base))
    for name, value in over.items():
        at = below(path, name)
        if value is None:
            if isinstance(out.get(name), list):
                raise bad(at, "is a list that Sandgate fills too; it can be added to, not removed")
            out.pop(name, None)
        else:
            out[name] = _value(out.get(name), value, at, name)
    return out


def _value(base: Any, over: Any, path: str, name: str) -> Any:
    if isinstance(base, dict):
        return _map(base, _object(over, path), path)
    if isinstance(base, list) or name in KEYS:
        listed = _list(over, path)
        known = base if isinstance(base, list) else []
        key = KEYS.get(name)
        return [*known, *copy.deepcopy(listed)] if key is None else _keyed(known, listed, path, name, key)
    return copy.deepcopy(over)


def _keyed(base: list[Any], over: list[Any], path: str, name: str, key: str) -> list[Any]:
    out = {one[key]: one for one in base}
    for index, one in enumerate(over):
        at = f"{path}[{index}]"
        named = _object(one, at).get(key)
        if not isinstance(named, str | int) or isinstance(named, bool):
            raise bad(below(at, key), "is missing")
        known = out.get(named)
        out[named] = copy.deepcopy(one) if known is None or name in WHOLE else _map(known, one, at)
    return list(out.values())


def refuse(template: Mapping[str, Any], path: str, ours: Ours) -> None:
    """Raises BadManifest for what would break us."""
    for name in template:
        if name not in ("metadata", "spec"):
            raise bad(below(path, name), "does not belong here; there is metadata and spec")
    _metadata(_object(template.get("metadata", {}), f"{path}.metadata"), f"{path}.metadata")
    spec, at = _object(template.get("spec", {}), f"{path}.spec"), f"{path}.spec"
    _taken(spec, POD_OURS, at)
    _security(spec, at, ours)
    grace = spec.get(GRACE, ours.grace_s)
    if not isinstance(grace, int) or grace < ours.grace_s:
        raise bad(f"{at}.{GRACE}", f"must be at least {ours.grace_s}: running turns end first")
    _names(spec, "volumes", "name", ours.volumes, at)
    for kind in ("containers", "initContainers"):
        for index, one in enumerate(_list(spec.get(kind, []), f"{at}.{kind}")):
            if _object(one, f"{at}.{kind}[{index}]").get("name") == ours.container:
                _container(one, f"{at}.{kind}[{index}]", ours)


def _container(one: Mapping[str, Any], at: str, ours: Ours) -> None:
    _taken(one, ours.fields, at)
    _security(one, at, ours)
    _names(one, "env", "name", ours.env, at)
    _names(one, "volumeMounts", "mountPath", ours.mounts, at)


def _metadata(said: Mapping[str, Any], path: str) -> None:
    for name, value in said.items():
        if name not in ("labels", "annotations"):
            raise bad(below(path, name), "does not belong here; there is labels and annotations")
        for key in _object(value, below(path, name)):
            if key == MANAGED_BY or key.partition("/")[0] == "sandgate.dev":
                raise bad(f"{path}.{name}.{key}", "is Sandgate's own")


def _taken(said: Mapping[str, Any], fields: tuple[str, ...], path: str) -> None:
    for name in fields:
        if name in said:
            raise bad(below(path, name), "is Sandgate's own")


def _names(said: Mapping[str, Any], what: str, key: str, reserved: tuple[str, ...], path: str) -> None:
    for index, one in enumerate(_list(said.get(what, []), f"{path}.{what}")):
        at = f"{path}.{what}[{index}]"
        if (named := _object(one, at).get(key)) in reserved:
            raise bad(f"{at}.{key}", f"{named} is Sandgate's own")


def _security(said: Mapping[str, Any], path: str, ours: Ours) -> None:
    at = f"{path}.securityContext"
    wanted = _object(said.get("securityContext", {}), at)
    if not ours.restricted:
        return
    for name, value in wanted.items():
        if name not in USER_FIELDS:
            raise bad(f"{at}.{name}", f"cannot be changed; there is {', '.join(sorted(USER_FIELDS))}")
        if name == "runAsUser" and value == 0:
            raise bad(f"{at}.{name}", "must not be root")


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad(path, "must be an object")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad(path, "must be a list")
    return value
