"""Reads a job's Workload (kueue.x-k8s.io/v1beta2), and writes the status of one whose quota goes back. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sandgate.operator.plan.ends import stamp
from sandgate.operator.plan.kueue import Placement, WorkloadSeen

Json = Any
Body = Mapping[str, Json]

DIGEST = "sandgate.dev/asks"
"""Annotation: digest of what the Workload asks for."""
TAKES = "sandgate.dev/takes"
"""Annotation: digest of what the job itself says of its pods' size and place."""
STOPPED = "sandgate.dev/stopped"
"""Annotation: its job says spec.suspend. (kueuectl sets the same field.)"""
OURS, OTHERS = "true", "other"
"""Its values: who made the Workload not active: we, or somebody before us."""
REQUEUED = ("Preempted", "NodeFailures")
"""Evictions after which a Workload may be admitted again at once; of others Kueue says when."""
MESSAGE_MAX = 1024


def flavors_of(body: Body) -> set[str]:
    """Names of the ResourceFlavors that it was given."""
    admission = _map(_map(body.get("status")).get("admission"))
    return {
        name
        for one in _maps(admission.get("podSetAssignments"))
        for name in _map(one.get("flavors")).values()
    }


def version_of(body: Body) -> int:
    """Later ones are larger; 0 = it does not say."""
    text = _map(body.get("metadata")).get("resourceVersion")
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def note_in(body: Body) -> str:
    """STOPPED's value; empty: it has none."""
    return str(_map(_map(body.get("metadata")).get("annotations")).get(STOPPED) or "")


def workload_seen(body: Body, flavors: Mapping[str, Body]) -> WorkloadSeen:
    """`flavors`: name -> ResourceFlavor, of those that it was given. One that is not there makes it wait."""
    meta, spec, status = (_map(body.get(name)) for name in ("metadata", "spec", "status"))
    conditions = {str(one.get("type")): one for one in _maps(status.get("conditions"))}
    notes = _map(meta.get("annotations"))
    evicted = _true(conditions, "Evicted")
    missing = sorted(flavors_of(body) - flavors.keys())
    assigned = _maps(_map(status.get("admission")).get("podSetAssignments"))
    active = spec.get("active", True) is not False
    return WorkloadSeen(
        digest=str(notes.get(DIGEST) or ""),
        takes=str(notes.get(TAKES) or ""),
        counts=_counts(spec.get("podSets")),
        assigned=_counts(assigned),
        active=active,
        stopped=STOPPED in notes,
        reserved=_true(conditions, "QuotaReserved"),
        admitted=_true(conditions, "Admitted") and not missing,
        evicted=str(conditions["Evicted"].get("reason") or "Evicted") if evicted else "",
        finished=_true(conditions, "Finished"),
        deleting=bool(meta.get("deletionTimestamp")),
        words=_words(conditions, _maps(status.get("admissionChecks")), missing, active=active),
        reclaimable=_counts(status.get("reclaimablePods")),
        ready=_true(conditions, "PodsReady"),
        places=_sized(_places(assigned, _maps(status.get("admissionChecks")), flavors), spec),
    )


def _words(conditions: Mapping[str, Body], checks: list[Body], missing: list[str], *, active: bool) -> str:
    if _true(conditions, "Finished"):
        return f"its Workload is finished: {_said(conditions, 'Finished')}"
    if _true(conditions, "Evicted"):
        why = _said(conditions, "Evicted")
        again = _said(conditions, "QuotaReserved") if not _true(conditions, "QuotaReserved") else why
        now = f"; since then: {again}" if again not in ("", why) else ""
        return f"{conditions['Evicted'].get('reason') or 'Evicted'}: {why}{now}"
    if not active:
        return "its Workload is stopped (spec.active is false)"
    if not _true(conditions, "QuotaReserved"):
        return _said(conditions, "QuotaReserved")
    if missing:
        return f"there is no ResourceFlavor {', '.join(missing)}, which it was given"
    waits = [
        f"{one.get('name')} {one.get('state')}: {one.get('message')}"
        for one in checks
        if one.get("state") != "Ready"
    ]
    return f"it has quota and waits for {'; '.join(waits)}" if waits else _said(conditions, "Admitted")


def _places(
    assigned: Iterable[Body], checks: Iterable[Body], flavors: Mapping[str, Body]
) -> dict[str, Placement]:
    found: dict[str, Placement] = {}
    for one in assigned:
        selector: dict[str, str] = {}
        tolerations: list[Json] = []
        for name in sorted(set(_map(one.get("flavors")).values())):
            spec = _map(_map(flavors.get(name)).get("spec"))
            selector |= _map(spec.get("nodeLabels"))
            tolerations += [each for each in _maps(spec.get("tolerations")) if each not in tolerations]
        found[str(one.get("name"))] = Placement(node_selector=selector, tolerations=tuple(tolerations))
    for update in (each for check in checks for each in _maps(check.get("podSetUpdates"))):
        name = str(update.get("name"))
        before = found.get(name, Placement())
        found[name] = Placement(
            labels={**before.labels, **_map(update.get("labels"))},
            annotations={**before.annotations, **_map(update.get("annotations"))},
            node_selector={**before.node_selector, **_map(update.get("nodeSelector"))},
            tolerations=(*before.tolerations, *_maps(update.get("tolerations"))),
        )
    return found


def _sized(places: Mapping[str, Placement], spec: Body) -> dict[str, Placement]:
    found = {
        str(one.get("name")): _sizes(_map(_map(one.get("template")).get("spec")))
        for one in _maps(spec.get("podSets"))
    }
    return {name: replace(place, sizes=found.get(name, {})) for name, place in places.items()}


def _sizes(pod: Body) -> dict[str, Json]:
    """Names that stand twice (an agent's init container and a verifier of one name) say nothing."""
    found: dict[str, Json] = {}
    twice = set()
    for kind in ("initContainers", "containers"):
        for one in _maps(pod.get(kind)):
            name = f"{kind}/{one.get('name')}"
            twice |= {name} & found.keys()
            found[name] = _map(one.get("resources"))
    return {name: size for name, size in found.items() if name not in twice}


# -- what is written --------------------------------------------------------------------------------------------------


def given_back(body: Body, now: float) -> Json:
    """A merge patch of its status: nothing of the job runs, its quota is free. As Kueue's own job controllers do."""
    conditions = {str(one.get("type")): one for one in _maps(_map(body.get("status")).get("conditions"))}
    evicted = conditions.get("Evicted", {})
    reason, words = str(evicted.get("reason") or "Pending"), str(evicted.get("message") or "")
    news = [_condition("QuotaReserved", "False", "Pending", words, body, now)]
    if "Admitted" in conditions:
        text = "The workload has no reservation"
        news.append(_condition("Admitted", "False", "NoReservation", text, body, now))
    again = "True" if reason in REQUEUED else "False"
    news.append(_condition("Requeued", again, reason, words, body, now))
    return _status(body, news) | {"admission": None}


def told(body: Body, reclaimable: Mapping[str, int], now: float, *, ready: bool) -> Json:
    """A merge patch of its status: pods that will not be needed again; whether those that are stand."""
    was = any(one.get("type") == "PodsReady" for one in _maps(_map(body.get("status")).get("conditions")))
    reason = "Started" if ready else "WaitForRecovery" if was else "WaitForStart"
    text = "All pods reached readiness" if ready else "Not all pods are ready"
    one = _condition("PodsReady", "True" if ready else "False", reason, text, body, now)
    pods = [{"name": name, "count": count} for name, count in sorted(reclaimable.items())]
    return _status(body, [one]) | {"reclaimablePods": pods}


def finished(body: Body, now: float, message: str, *, succeeded: bool) -> Json:
    """A merge patch of its status: its quota is free for good."""
    reason = "Succeeded" if succeeded else "Failed"
    return _status(body, [_condition("Finished", "True", reason, message, body, now)])


def _status(body: Body, news: list[Json]) -> dict[str, Json]:
    """All conditions, these among them: a merge patch knows lists as a whole."""
    before = {str(one.get("type")): one for one in _maps(_map(body.get("status")).get("conditions"))}
    for one in news:
        old = before.get(one["type"])
        if old is not None and old.get("status") == one["status"]:
            one["lastTransitionTime"] = old.get("lastTransitionTime") or one["lastTransitionTime"]
        before[one["type"]] = one
    return {"conditions": list(before.values())}


def _condition(kind: str, status: str, reason: str, message: str, body: Body, now: float) -> dict[str, Json]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MESSAGE_MAX],
        "observedGeneration": _map(body.get("metadata")).get("generation") or 0,
        "lastTransitionTime": stamp(now),
    }


# -- parts ------------------------------------------------------------------------------------------------------------


def _true(conditions: Mapping[str, Body], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _said(conditions: Mapping[str, Body], kind: str) -> str:
    return str(conditions.get(kind, {}).get("message") or "")


def _counts(listed: Json) -> dict[str, int]:
    found = ((str(one.get("name")), one.get("count")) for one in _maps(listed))
    return {name: count for name, count in found if isinstance(count, int)}


def _map(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Json) -> list[Body]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
