"""Expands `$(NAME)` in command, args and env, exactly as Kubernetes does. (pure)

Source of the rules: k8s.io/kubernetes/third_party/forked/golang/expansion. `$(NAME)` becomes the variable's value; of
a name that is not set, or without its closing bracket, the text stays as it is; `$$` is a dollar sign that opens
nothing; values are not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, env: Mapping[str, str]) -> str:
    """`text` with its references replaced."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else env.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


def expand_all(parts: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Each of `parts` expanded."""
    return [expand(part, env) for part in parts]


def container_env(
    entries: Iterable[Mapping[str, object]], first: Mapping[str, str], last: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a container: its own `env` entries over `first`, under `last`.

    As in Kubernetes an entry may refer to those before it, and to `first`; so that templates can pass on what Sandgate
    sets, to `last` as well. Entries without `value` are empty.
    """
    out = {**first, **last}
    for entry in entries:
        name = str(entry["name"])
        if name not in last:
            out[name] = expand(str(entry.get("value") or ""), out)
    return out
