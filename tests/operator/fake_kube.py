"""An API server in memory: the verbs of `KubeClient`, resource versions, owners' garbage collection, news for watchers,
and the CEL rules of our definitions.

What it does is held against a real API server by test_fake_kube.py.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from sandgate.contract.errors import Conflict, NotFound
from sandgate.operator.kubernetes.client import LIST_CHUNK
from sandgate.operator.kubernetes.kinds import Ref
from tests.operator.cel_rules import check, definitions

Json = Any
Items = list[Json]
Names = list[str]
Tell = Callable[[str, str, Json], None]
"""(kind, ADDED | MODIFIED | DELETED, body)."""

SPEC_KINDS = ("RolloutJob", "AgentSession", "Deployment", "StatefulSet")
"""Kinds whose generation counts changes of spec; and whose status only patch_status writes."""


class FakeKube:
    """One API server. `fail`: called before every verb with (verb, kind); raises to make it fail."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.watchers: list[Tell] = []
        self.writes: Counter[tuple[str, str]] = Counter()
        """(verb, kind) -> successful writes."""
        self.made: Counter[tuple[str, str]] = Counter()
        """(kind, name) -> how often it was created."""
        self.touched: Counter[str] = Counter()
        """Writes that are about one session: AgentSession, its pods."""
        self.fail: Callable[[str, str], None] = lambda verb, kind: None
        self.lose: Callable[[str, str], None] = lambda verb, kind: None
        """Called after a write; raises to lose its answer."""
        definitions()
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # -- verbs --------------------------------------------------------------------------------------------------------

    async def apply(self, body: Json, *, force: bool = True) -> Json:
        ref = Ref.of(body)
        self.fail("apply", ref.kind)
        held = self.objects.get(_key(ref))
        if held is None:
            return await self.create(body)
        merged = _merged(held, body)
        return self._write("apply", ref, merged)

    async def create(self, body: Json) -> Json:
        ref = Ref.of(body)
        self.fail("create", ref.kind)
        if _key(ref) in self.objects:
            raise Conflict(f"409: {ref} already exists")
        made = copy.deepcopy(body)
        if ref.kind in ("RolloutJob", "AgentSession"):
            made.pop("status", None)
        check(made)
        made["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": _stamp(self.now())}
        if ref.kind in SPEC_KINDS:
            made["metadata"]["generation"] = 1
        if ref.kind == "Pod":
            made["status"] = {"phase": "Pending"}
        self.made[ref.kind, ref.name] += 1
        self._count("create", ref.kind, ref.name)
        self._store(ref, made)
        self._tell("ADDED", made)
        self.lose("create", ref.kind)
        return copy.deepcopy(made)

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        self.fail("get", kind)
        return copy.deepcopy(self._held(Ref(kind, namespace, name)))

    async def list(
        self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "", chunks: int = 0
    ) -> Items:
        self.fail("list", kind)
        found = [copy.deepcopy(one) for one in self._select(kind, namespace, labels)]
        found = [one for one in found if _has(one, fields)]
        return found[: chunks * LIST_CHUNK] if chunks else found

    async def list_metadata(self, kind: str, namespace: str = "", *, labels: str = "") -> Items:
        self.fail("list_metadata", kind)
        return [{"metadata": copy.deepcopy(one["metadata"])} for one in self._select(kind, namespace, labels)]

    async def replace(self, body: Json) -> Json:
        ref = Ref.of(body)
        self.fail("update", ref.kind)
        held = self._held(ref)
        if body["metadata"].get("resourceVersion") != held["metadata"]["resourceVersion"]:
            raise Conflict(f"409: {ref} has been modified")
        made = copy.deepcopy(body)
        if ref.kind in SPEC_KINDS and "status" in held:
            made["status"] = held["status"]
        return self._write("update", ref, made)

    async def patch(self, kind: str, namespace: str, name: str, body: Json) -> Json:
        self.fail("patch", kind)
        ref = Ref(kind, namespace, name)
        version = self._held(ref)["metadata"]["resourceVersion"]
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict(f"409: {ref} has been modified")
        merged = _merge(copy.deepcopy(self._held(ref)), body)
        if kind in SPEC_KINDS:
            merged["status"] = self._held(ref).get("status", {})
        return self._write("patch", ref, merged)

    async def patch_status(self, kind: str, namespace: str, name: str, body: Json) -> Json:
        self.fail("patch_status", kind)
        ref = Ref(kind, namespace, name)
        merged = copy.deepcopy(self._held(ref))
        version = merged["metadata"]["resourceVersion"]
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict(f"409: {ref} has been modified")
        merged["status"] = _merge(merged.get("status") or {}, body["status"])
        return self._write("patch_status", ref, merged)

    async def put_status(self, kind: str, namespace: str, name: str, status: Json, *, uid: str) -> Json:
        self.fail("patch_status", kind)
        ref = Ref(kind, namespace, name)
        held = self._held(ref)
        if held["metadata"]["uid"] != uid:
            raise NotFound(f"404: {ref} is another object by now")
        return self._write("patch_status", ref, copy.deepcopy(held) | {"status": copy.deepcopy(status)})

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        self.fail("delete", kind)
        held = self.objects.get((kind, namespace, name))
        if held is None:
            return False
        if uid and held["metadata"]["uid"] != uid:
            raise Conflict(f"409: {name} has another uid")
        self.writes["delete", kind] += 1
        self._bury(held, grace_s)
        return True

    async def delete_many(self, kind: str, namespace: str, *, labels: str) -> None:
        self.fail("delete_many", kind)
        self.writes["delete_many", kind] += 1
        for one in self._select(kind, namespace, labels):
            self._bury(one, None)

    # -- kubelets and users -------------------------------------------------------------------------------------------

    def pod_status(self, name: str, namespace: str, status: Json) -> None:
        """As a kubelet writes it; a pod that is gone needs none."""
        held = self.objects.get(("Pod", namespace, name))
        if held is not None:
            changed = copy.deepcopy(held)
            changed["status"] = {**changed.get("status", {}), **status}
            self._write("", Ref("Pod", namespace, name), changed)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """At last: a kubelet says that the containers of a deleted pod are gone; or a person deletes by force."""
        held = self.objects.get((kind, namespace, name))
        if held is not None:
            self._remove(held)

    def named(self, kind: str) -> Names:
        """Names of all objects of a kind."""
        return sorted(name for known, _, name in self.objects if known == kind)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _held(self, ref: Ref) -> Json:
        held = self.objects.get(_key(ref))
        if held is None:
            raise NotFound(f"404: {ref} not found")
        return held

    def _select(self, kind: str, namespace: str, labels: str) -> Items:
        return [
            body
            for (known, where, _), body in sorted(self.objects.items())
            if known == kind
            and namespace in ("", where)
            and matches(labels, body["metadata"].get("labels") or {})
        ]

    def _write(self, verb: str, ref: Ref, merged: Json) -> Json:
        held = self._held(ref)
        if merged != held:
            check(merged, held)
        if verb:
            self._count(verb, ref.kind, ref.name)
        if merged == held:
            return copy.deepcopy(held)
        if ref.kind in SPEC_KINDS and merged.get("spec") != held.get("spec"):
            merged["metadata"]["generation"] = held["metadata"]["generation"] + 1
        self._store(ref, merged)
        self._tell("MODIFIED", merged)
        if verb:
            self.lose(verb, ref.kind)
        return copy.deepcopy(merged)

    def _store(self, ref: Ref, body: Json) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[_key(ref)] = body

    def _count(self, verb: str, kind: str, name: str) -> None:
        self.writes[verb, kind] += 1
        if kind in ("AgentSession", "Pod"):
            self.touched[name.removesuffix("-v")] += 1

    def _bury(self, held: Json, grace_s: int | None) -> None:
        """Pods stay until their kubelet lets them go."""
        if held["kind"] == "Pod" and grace_s != 0 and held["status"].get("phase") == "Running":
            if not held["metadata"].get("deletionTimestamp"):
                marked = copy.deepcopy(held)
                marked["metadata"] |= {
                    "deletionTimestamp": _stamp(self.now()),
                    "deletionGracePeriodSeconds": 0,
                }
                self._store(Ref.of(marked), marked)
                self._tell("MODIFIED", marked)
        else:
            self._remove(held)

    def _remove(self, held: Json) -> None:
        ref = Ref.of(held)
        if self.objects.pop(_key(ref), None) is None:
            return
        last = copy.deepcopy(held)
        last["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell("DELETED", last)
        uid = held["metadata"]["uid"]
        owned = [
            one
            for one in self.objects.values()
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ())
        ]
        for one in owned:
            self._bury(one, None)

    def _tell(self, event: str, body: Json) -> None:
        for tell in list(self.watchers):
            tell(body["kind"], event, copy.deepcopy(body))


def _key(ref: Ref) -> tuple[str, str, str]:
    return ref.kind, ref.namespace, ref.name


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _has(body: Json, fields: str) -> bool:
    """A field selector of one field."""
    path, _, value = fields.partition("=")
    for name in path.split(".") if fields else ():
        body = body.get(name, {})
    return not fields or body == value


def _merge(value: Json, patch: Json) -> Json:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for name, one in patch.items():
        if one is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), one)
    return merged


def _merged(held: Json, body: Json) -> Json:
    """Server-side apply, for objects that have one manager."""
    merged = _merge(copy.deepcopy(held), body)
    merged["metadata"] = {**held["metadata"], **body["metadata"]}
    return merged


_PART = re.compile(r"\s*(!?)([^\s=!,()]+)(?:\s+in\s+\(([^)]*)\)|=([^,]*))?\s*(?:,|$)")


def matches(selector: str, labels: dict[str, str]) -> bool:
    """`a=b,!c,d in (e,f)`."""
    return all(
        (name not in labels)
        if absent
        else labels.get(name) in [one.strip() for one in among.split(",")]
        if among
        else labels.get(name) == value
        for absent, name, among, value in _parts(selector)
    )


def _parts(selector: str) -> Iterator[tuple[str, str, str, str]]:
    at = 0
    while at < len(selector):
        found = _PART.match(selector, at)
        assert found is not None, f"selector {selector!r} at {at}"
        yield found[1], found[2], found[3] or "", found[4] or ""
        at = found.end()
