"""Types of manifest fields that are used more than once, and the checks of embedded Kubernetes JSON. (pure)"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from sandgate.contract.rules import Bounds, Pattern, Size

Json: TypeAlias = Any
"""What `json.loads` returns; passes through unchanged."""
JsonObject: TypeAlias = dict[str, Any]

INT32_MAX = 2**31 - 1
Int32: TypeAlias = Annotated[int, Bounds(-INT32_MAX - 1, INT32_MAX)]
NonNegative: TypeAlias = Annotated[int, Bounds(0, INT32_MAX)]
Positive: TypeAlias = Annotated[int, Bounds(1, INT32_MAX)]
Seconds: TypeAlias = Annotated[int, Bounds(1, INT32_MAX)]
"""Whole seconds, as Kubernetes counts them."""
Text: TypeAlias = Annotated[str, Size(0, 4096)]
Word: TypeAlias = Annotated[
    str, Size(1, 256), Pattern(r"^[A-Za-z0-9]([A-Za-z0-9._/:@+-]*[A-Za-z0-9])?$", "a plain name")
]
LabelText: TypeAlias = Annotated[
    str, Size(0, 253), Pattern(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "a name of a Kubernetes object")
]
LabelMap: TypeAlias = Annotated[dict[str, str], Size(0, 256)]
Parts: TypeAlias = Annotated[tuple[str, ...], Size(0, 1024)]
"""Parts of a command line."""
HttpUrl: TypeAlias = Annotated[
    str,
    Size(1, 2048),
    Pattern(
        r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[^\s?#]*)?$",
        "an http:// or https:// base URL",
    ),
]
Quantity: TypeAlias = Annotated[
    str, Pattern(r"^[0-9]+(\.[0-9]+)?([EPTGMk]i?|m)?$", "a Kubernetes quantity such as 512Mi or 1Gi")
]

Wrong: TypeAlias = tuple[str, str] | None
"""(path below the field, what is wrong), or None."""

_MULTIPLES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_MULTIPLES |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)} | {"ki": 1024}


def bytes_of(quantity: str) -> int:
    """A Kubernetes memory quantity in bytes, rounded up. Raises ValueError."""
    text = quantity.strip()
    digits = text.rstrip("EPTGMKkim")
    unit = text[len(digits) :]
    if not digits.replace(".", "", 1).isdigit() or (unit and unit != "m" and unit not in _MULTIPLES):
        raise ValueError(f"{quantity!r} is not a quantity such as 512Mi or 1Gi")
    whole = float(digits) * _MULTIPLES.get(unit, 1) / (1000 if unit == "m" else 1)
    return int(whole) + (whole > int(whole))


def messages(value: Any) -> Wrong:
    """A prompt: text, or chat messages with a role each."""
    if isinstance(value, str):
        return None
    if not isinstance(value, list | tuple) or not value:
        return "", "must be text or a list of chat messages"
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"[{index}]", 'is not a chat message; it needs a "role"'
    return None


def pod_template(value: Any) -> Wrong:
    """The few things that Sandgate itself reads of a PodTemplateSpec; the API server checks the rest."""
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return "spec", "must be a PodSpec with containers"
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return "spec.containers", "must list at least the agent's container"
    for index, one in enumerate(containers):
        if not isinstance(one, dict):
            return f"spec.containers[{index}]", "must be a Container"
        if (wrong := container(one)) is not None:
            return f"spec.containers[{index}].{wrong[0]}", wrong[1]
    return None


def container(value: Any) -> Wrong:
    """The few things that Sandgate itself reads of a Container."""
    for name in ("name", "image", "workingDir"):
        if not isinstance(value.get(name, ""), str):
            return name, "must be text"
    for name in ("command", "args"):
        parts = value.get(name, [])
        if not isinstance(parts, list):
            return name, "must be a list of text"
        for index, part in enumerate(parts):
            if not isinstance(part, str):
                return f"{name}[{index}]", f"must be text; quote it ({part!r})"
            if "\0" in part:
                return f"{name}[{index}]", "must not hold a NUL character"
    if "command" in value and not value["command"]:
        return "command", "must not be empty; leave it out to use the image's entrypoint"
    if not value.get("command") and not value.get("image"):
        return "image", "is missing, and there is no command either"
    return _env(value.get("env", [])) or _resources(value.get("resources", {}))


def _env(env: Any) -> Wrong:
    if not isinstance(env, list):
        return "env", "must be a list of {name, value}"
    for index, one in enumerate(env):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
            return f"env[{index}].name", "is missing"
        if "=" in one["name"] or "\0" in one["name"]:
            return f"env[{index}].name", "must not hold = or NUL"
        if "value" in one and (not isinstance(one["value"], str) or "\0" in one["value"]):
            return f"env[{index}].value", f"must be text; quote it ({one['value']!r})"
    return None


def _resources(resources: Any) -> Wrong:
    if not isinstance(resources, dict):
        return "resources", "must be an object"
    limits = resources.get("limits", {})
    if not isinstance(limits, dict):
        return "resources.limits", "must be an object"
    if "memory" in limits:
        try:
            bytes_of(str(limits["memory"]))
        except ValueError as error:
            return "resources.limits.memory", str(error)
    return None
