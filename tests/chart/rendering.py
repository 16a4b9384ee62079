"""`helm template` of our chart as Python objects. Nothing is asked of any cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import yaml

from tests.cluster.harness.needs import why_not
from tests.cluster.harness.programs import PARTS, binary

CHART = Path(__file__).resolve().parents[2] / "charts" / "sandgate"
RELEASE, NAMESPACE = "sandgate", "sg-system"
HELM_S = 180.0
"""Longer than any --timeout that a test gives helm."""
KUBERNETES = "1.35.4"
"""What the chart is rendered for where no API server is asked."""


class _Strict(yaml.SafeLoader):
    """YAML as API servers take it: no key twice."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(name) for name, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return loader.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class ChartRefused(Exception):
    """What helm said instead of rendering."""


@dataclass(frozen=True)
class Rendered:
    """The objects of one release; hooks too."""

    objects: tuple[Mapping[str, Any], ...]

    def all(self, kind: str) -> list[Mapping[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Mapping[str, Any]:
        """The only object of the kind, or of that name. Fails the test when there is none or another."""
        found = [one for one in self.all(kind) if name in ("", one["metadata"]["name"])]
        assert len(found) == 1, f"{kind} {name}: {len(found)} of {self.refs}"
        return found[0]

    @property
    def refs(self) -> list[tuple[str, str, str]]:
        """(kind, namespace, name) of each."""
        return [ref(one) for one in self.objects]


def ref(body: Mapping[str, Any]) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def helm(*args: str, stdin: str | None = None) -> str:
    """Standard output of helm, which sees nothing of its user's (plugins, clusters, defaults).

    Skips the test where helm neither is nor can be built. Raises ChartRefused.
    """
    if why := why_not("helm", (), [PARTS["helm"]]):
        pytest.skip(why)
    done = subprocess.run(
        [str(binary("helm")), *args],
        input=stdin,
        env={"PATH": "/usr/bin:/bin", "HOME": gettempdir()},
        capture_output=True,
        text=True,
        timeout=HELM_S,
        check=False,
    )
    if done.returncode:
        raise ChartRefused(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def render(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> Rendered:
    """The chart with these values over its own. Raises ChartRefused."""
    text = _template(json.dumps(values or {}, sort_keys=True), release, namespace)
    return Rendered(tuple(one for one in yaml.load_all(text, _Strict) if one))


@cache
def _template(values: str, release: str, namespace: str) -> str:
    where = f"--namespace={namespace}", f"--kube-version={KUBERNETES}"
    return helm("template", release, str(CHART), *where, "--values=-", stdin=values)


def at(body: Any, path: str) -> Any:
    """`spec.template.spec.containers.0.image` of an object."""
    for part in path.split("."):
        body = body[int(part)] if isinstance(body, list) else body[part]
    return body
