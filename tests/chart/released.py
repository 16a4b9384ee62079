"""A release of our chart at a real API server, and everything that is there before and after."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sandgate.contract.names import GROUP
from tests.chart.rendering import CHART, RELEASE, helm
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused, Rest
from tests.support.waiting import until_now

_numbers = itertools.count(1)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NOT_OURS = {"events", "componentstatuses"}
"""Kinds that come by themselves, or are not stored."""


def fresh(name: str) -> str:
    """A namespace's name that was not used before: where no controllers run, namespaces never go."""
    return f"{name}-{next(_numbers)}"


@dataclass(frozen=True)
class Release:
    """`helm` for one release; each call is one helm command that does not wait for pods."""

    api: Api
    namespace: str
    name: str = RELEASE

    def helm(self, verb: str, *args: str, values: Mapping[str, Any] | None = None) -> str:
        """`helm VERB NAME ...`. Raises ChartRefused."""
        where = f"--kubeconfig={self.api.kubeconfig}", f"--namespace={self.namespace}"
        given = () if values is None else ("--values=-",)
        return helm(verb, self.name, *args, *where, *given, stdin=json.dumps(values or {}))

    def install(self, values: Mapping[str, Any] | None = None, *options: str, chart: Path = CHART) -> None:
        self.helm("install", str(chart), *options, values=values or {})

    def upgrade(self, values: Mapping[str, Any] | None = None, *options: str, chart: Path = CHART) -> None:
        """Without values helm takes those of the last time."""
        self.helm("upgrade", str(chart), *options, values=values or {})

    def uninstall(self, *options: str) -> None:
        """Returns when everything is gone."""
        can_be_deleted(self.api)
        self.helm("uninstall", "--wait", "--timeout=60s", *options)


@contextmanager
def released(
    api: Api, namespace: str, values: Mapping[str, Any] | None = None, *, chart: Path = CHART
) -> Iterator[Release]:
    """Installed in a namespace of its own; gone afterwards, its custom resource definitions too."""
    with api.namespace(namespace):
        release = Release(api, namespace)
        release.install(values, chart=chart)
        try:
            yield release
        finally:
            release.uninstall()


def can(
    release: Release,
    verb: str,
    resource: str,
    namespace: str,
    name: str = "",
    account: str = "sandgate-operator",
) -> bool:
    """`kubectl auth can-i` as a ServiceAccount of the release (SubjectAccessReview). `resource`: plural/sub.group."""
    kind, _, group = resource.partition(".")
    plural, _, subresource = kind.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    spec = {
        "user": f"system:serviceaccount:{release.namespace}:{account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{release.namespace}",
            "system:authenticated",
        ],
        "resourceAttributes": attributes,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = release.api.rest().create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    allowed: bool = answer["status"]["allowed"]
    return allowed


def in_force(release: Release, jobs: str, account: str = "sandgate-operator") -> None:
    """The API server learns of roles, and of who has them, by watches of its own, of each kind one."""
    for verb, resource, namespace in (
        ("get", "pods", jobs),
        ("create", "leases.coordination.k8s.io", release.namespace),
    ):
        until_now(
            partial(can, release, verb, resource, namespace, account=account),
            what=f"{resource}: role in force",
        )


def can_be_deleted(api: Api) -> None:
    """Waits until our definitions' objects can be listed; docs/install.md says why."""
    rest = api.rest()
    for body in rest.get(DEFINITIONS)["items"]:
        if body["spec"]["group"] == GROUP and not body["metadata"].get("deletionTimestamp"):
            kind = _stored(body["spec"])
            until_now(partial(rest.answers, kind), what=f"{kind} is listed")


def _stored(spec: Mapping[str, Any]) -> str:
    """Where the objects of a definition are listed, in the version that they are stored in."""
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"


def everything(api: Api) -> set[tuple[str, str, str]]:
    """(resource, namespace, name) of every object of every kind that is served, namespaces that are going left out."""
    rest = api.rest()
    going = {
        one["metadata"]["name"]
        for one in rest.get("/api/v1/namespaces")["items"]
        if one["metadata"].get("deletionTimestamp")
    }
    found = set()
    for path, resource in _collections(api):
        for one in _listed(rest, path):
            meta = one["metadata"]
            if meta.get("namespace", "") not in going:
                found.add((resource, meta.get("namespace", ""), meta["name"]))
    return found


def until_as(before: set[tuple[str, str, str]], api: Api) -> None:
    """Waits until everything is as it was; says what is not."""
    found: set[tuple[str, str, str]] = set()

    def same() -> bool:
        found.clear()
        found.update(everything(api) ^ before)
        return not found

    try:
        until_now(same, what="everything is as before", within_s=30)
    except AssertionError as late:
        raise AssertionError(f"{late}; more or less than before: {sorted(found)}") from None


def _listed(rest: Rest, path: str, field: str = "items") -> list[Any]:
    """Of a kind, or a group of kinds, that may have come or gone a moment ago."""
    found: list[Any] = []

    def answered() -> bool:
        try:
            found[:] = rest.get(path).get(field) or []
        except Refused as refused:
            if refused.status not in (404, 429):
                raise
            return refused.status == 404
        return True

    until_now(answered, what=f"{path} is listed")
    return found


def _collections(api: Api) -> Iterator[tuple[str, str]]:
    rest = api.rest()
    roots = ["/api/v1"]
    roots += [f"/apis/{group['preferredVersion']['groupVersion']}" for group in rest.get("/apis")["groups"]]
    for root in roots:
        for one in _listed(rest, root, "resources"):
            if "list" in one["verbs"] and "/" not in one["name"] and one["name"] not in NOT_OURS:
                yield (
                    f"{root}/{one['name']}",
                    f"{one['name']}.{root.split('/')[2] if root != '/api/v1' else ''}",
                )
