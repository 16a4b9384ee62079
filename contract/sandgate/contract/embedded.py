"""Kubernetes objects inside a manifest: what Sandgate itself reads of them, as a check and as a schema. (pure)

A pod template or container passes through as it is written, so that every field of every Kubernetes version can be
used: its schema is open (x-kubernetes-preserve-unknown-fields), and the API server checks the rest when the pod is
made. Listed here is what Sandgate reads, or what would otherwise fail at each of a thousand sessions. Check and schema
refuse the same (tests/cluster/test_crds_agree.py).
"""

from __future__ import annotations

from typing import Any, Final

from sandgate.contract.kinds import ENV_NAME_PATTERN, ENV_VALUE_MAX, NO_NUL, PARTS_MAX, QUANTITY
from sandgate.contract.rules import Cel, Check, Wrong, rule_schema

CONTAINERS_MAX = 32
"""Of a pod."""
IMAGE_CHARS_MAX = 4096
ENV_MAX = 1024
ENV_NAME_MAX = 256

# -- schemas ----------------------------------------------------------------------------------------------------------

OPEN: Final = {"x-kubernetes-preserve-unknown-fields": True}


def _text(doc: str, high: int = IMAGE_CHARS_MAX) -> dict[str, Any]:
    return {"type": "string", "description": doc, "maxLength": high, "pattern": NO_NUL}


def _parts(doc: str, low: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array", "description": doc, "maxItems": PARTS_MAX}
    made["items"] = {"type": "string", "maxLength": ENV_VALUE_MAX, "pattern": NO_NUL}
    return made | ({"minItems": low} if low else {}) | {"x-kubernetes-list-type": "atomic"}


_ENV = {
    "type": "array",
    "description": "Environment; $(NAME) expands as Kubernetes does.",
    "maxItems": ENV_MAX,
    "x-kubernetes-list-type": "atomic",
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {
                "type": "string",
                "description": "Name of the variable.",
                "minLength": 1,
                "maxLength": ENV_NAME_MAX,
                "pattern": ENV_NAME_PATTERN,
            },
            "value": _text("Its value; or valueFrom.", ENV_VALUE_MAX),
        },
        **OPEN,
    },
}
_MEMORY = {
    "description": "Bytes, e.g. 512Mi.",
    "x-kubernetes-int-or-string": True,
    "maxLength": 64,
    "pattern": QUANTITY.regex,
    "minimum": 0,
}
_LIMITS = {
    "type": "object",
    "description": "The most it may use.",
    "properties": {"memory": _MEMORY},
    **OPEN,
}
_RESOURCES = {
    "type": "object",
    "description": "As in a Pod.",
    "properties": {"limits": _LIMITS},
    **OPEN,
}
_RUNS = Cel(
    "has(self.command) || (has(self.image) && size(self.image) > 0)",
    "image is missing, and there is no command either",
    "image",
)
_CONTAINER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": _text("Name in the pod."),
        "image": _text("Container image; not used locally."),
        "workingDir": _text("Folder it starts in; locally relative to the manifest."),
        "command": _parts("Instead of the image's entrypoint.", low=1),
        "args": _parts("Arguments."),
        "env": _ENV,
        "resources": _RESOURCES,
    },
    "x-kubernetes-validations": [rule_schema(_RUNS)],
    **OPEN,
}
_CONTAINERS = {
    "type": "array",
    "description": "Containers; the first one is the agent.",
    "minItems": 1,
    "maxItems": CONTAINERS_MAX,
    "x-kubernetes-list-type": "atomic",
    "items": _CONTAINER,
}
_POD_SPEC = {
    "type": "object",
    "description": "A PodSpec. Fields that are not listed here are kept, and checked when the pod is made.",
    "required": ["containers"],
    "properties": {"containers": _CONTAINERS},
    **OPEN,
}

# -- checks -----------------------------------------------------------------------------------------------------------


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
    if len(containers) > CONTAINERS_MAX:
        return "spec.containers", f"has {len(containers)} entries; at most {CONTAINERS_MAX} are allowed"
    for index, one in enumerate(containers):
        if not isinstance(one, dict):
            return f"spec.containers[{index}]", "must be a Container"
        if (wrong := container(one)) is not None:
            return f"spec.containers[{index}].{wrong[0]}", wrong[1]
    return None


def container(value: Any) -> Wrong:
    """The few things that Sandgate itself reads of a Container."""
    for name in ("name", "image", "workingDir"):
        if (wrong := _wrong_text(value.get(name, ""), IMAGE_CHARS_MAX)) is not None:
            return name, wrong
    for name in ("command", "args"):
        if (found := _wrong_parts(name, value.get(name, []))) is not None:
            return found
    if "command" in value and not value["command"]:
        return "command", "must not be empty; leave it out to use the image's entrypoint"
    if not value.get("command") and not value.get("image"):
        return "image", "is missing, and there is no command either"
    return _wrong_env(value.get("env", [])) or _wrong_resources(value.get("resources", {}))


def _wrong_text(value: Any, high: int) -> str | None:
    if not isinstance(value, str):
        return "must be text"
    return f"has {len(value)} characters; at most {high} are allowed" if len(value) > high else None


def _wrong_parts(name: str, parts: Any) -> Wrong:
    if not isinstance(parts, list):
        return name, "must be a list of text"
    if len(parts) > PARTS_MAX:
        return name, f"has {len(parts)} entries; at most {PARTS_MAX} are allowed"
    for index, part in enumerate(parts):
        if not isinstance(part, str):
            return f"{name}[{index}]", f"must be text; quote it ({part!r})"
        if (wrong := _wrong_text(part, ENV_VALUE_MAX)) is not None:
            return f"{name}[{index}]", wrong
    return None


def _wrong_env(env: Any) -> Wrong:
    if not isinstance(env, list):
        return "env", "must be a list of {name, value}"
    if len(env) > ENV_MAX:
        return "env", f"has {len(env)} entries; at most {ENV_MAX} are allowed"
    for index, entry in enumerate(env):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
            return f"env[{index}].name", "is missing"
        if "=" in entry["name"] or len(entry["name"]) > ENV_NAME_MAX:
            return f"env[{index}].name", f"must not hold =, nor more than {ENV_NAME_MAX} characters"
        if "value" in entry and not isinstance(entry["value"], str):
            return f"env[{index}].value", f"must be text; quote it ({entry['value']!r})"
        if (wrong := _wrong_text(entry.get("value", ""), ENV_VALUE_MAX)) is not None:
            return f"env[{index}].value", wrong
    return None


def _wrong_resources(resources: Any) -> Wrong:
    if not isinstance(resources, dict):
        return "resources", "must be an object"
    limits = resources.get("limits", {})
    if not isinstance(limits, dict):
        return "resources.limits", "must be an object"
    memory = limits.get("memory", 0)
    if isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
        return None
    if not isinstance(memory, str) or len(memory) > 64 or QUANTITY.wrong(memory):
        return "resources.limits.memory", f"{str(memory)[:60]!r} is not a quantity such as 512Mi or 1Gi"
    return None


AGENT_TEMPLATE: Final = Check(
    pod_template, {"type": "object", "required": ["spec"], "properties": {"spec": _POD_SPEC}, **OPEN}
)
"""A PodTemplateSpec whose first container is the agent."""
CONTAINER: Final = Check(container, _CONTAINER)
MESSAGES: Final = Check(messages)
"""Text or a list: a union has no type in a structural schema, so only the decoder checks it."""
