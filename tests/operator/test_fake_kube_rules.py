"""The API server in memory takes and refuses what the real one does: the table of tests/cluster/test_crds_rules.py."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody
from tests.cluster.test_crds_rules import (
    FALSE_CONDITIONS,
    LONG,
    MAY_CHANGE,
    OLD,
    PAIRS,
    Changes,
    Pair,
    Status,
    held,
    label,
    manifest,
    named,
    refused_status,
    says,
)
from tests.contract.manifests import put
from tests.operator.fake_kube import FakeKube

Json = Any
NAMESPACE = "train"


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube(time.time)


def body(kind: str, changes: Changes) -> Json:
    made = manifest(kind, changes)
    made["metadata"]["namespace"] = NAMESPACE
    return made


async def changed(kube: FakeKube, pair: Pair, name: str, changes: Changes) -> InvalidBody | None:
    try:
        if pair.start is None:
            await kube.create(body(pair.kind, changes))
            return None
        stored = await kube.create(body(pair.kind, (*pair.start, ("metadata.name", name))))
        for at, value in changes:
            put(stored, at, value)
        await kube.replace(stored)
    except InvalidBody as refused:
        return refused
    return None


@pytest.mark.parametrize(("rule", "pair"), named(PAIRS, Pair))
async def test_a_rule_accepts(kube: FakeKube, rule: str, pair: Pair) -> None:
    assert await changed(kube, pair, label(rule, "good"), pair.good) is None


@pytest.mark.parametrize(("rule", "pair"), named(PAIRS, Pair))
async def test_a_rule_rejects(kube: FakeKube, rule: str, pair: Pair) -> None:
    refused = await changed(kube, pair, label(rule, "bad"), pair.bad)
    assert refused is not None
    assert str(refused).startswith("422: ")
    assert says(rule) in str(refused)


@pytest.mark.parametrize(("rule", "pair"), named(held(), Pair))
async def test_every_field_of_a_job_that_was_refused_may_be_corrected(
    kube: FakeKube, rule: str, pair: Pair
) -> None:
    assert pair.start is not None
    name = label(rule, "refused")
    await kube.create(body(pair.kind, (*pair.start, ("metadata.name", name))))
    await kube.patch_status(pair.kind, NAMESPACE, name, {"status": refused_status()})
    stored = await kube.get(pair.kind, NAMESPACE, name)
    for at, value in pair.bad:
        put(stored, at, value)
    await kube.replace(stored)


@pytest.mark.parametrize(("rule", "case"), named(PAIRS, Status))
async def test_a_rule_of_a_status_accepts_and_rejects(kube: FakeKube, rule: str, case: Status) -> None:
    name = label(rule, "status")
    await kube.create(body(case.kind, (("metadata.name", name),)))
    for status in (FALSE_CONDITIONS["Complete"], case.first, case.good):
        await kube.patch_status(case.kind, NAMESPACE, name, {"status": status})
    with pytest.raises(InvalidBody, match=rule.partition(": ")[2]):
        await kube.patch_status(case.kind, NAMESPACE, name, {"status": case.bad})


@pytest.mark.parametrize(("at", "value"), MAY_CHANGE.items(), ids=MAY_CHANGE)
async def test_what_may_change_while_a_job_runs(kube: FakeKube, at: str, value: Any) -> None:
    assert await changed(kube, Pair((), (), ()), "may", ((at, value),)) is None


@pytest.mark.parametrize(("part", "change"), OLD.values(), ids=OLD)
async def test_what_may_change_of_a_job_with_a_longer_name_of_before(
    kube: FakeKube, part: str, change: Json
) -> None:
    held = await kube.create(body("RolloutJob", (("metadata.name", "short"),)))
    held["metadata"]["name"] = LONG
    kube.objects["RolloutJob", NAMESPACE, LONG] = held
    write = kube.patch_status if part else kube.patch
    await write("RolloutJob", NAMESPACE, LONG, change)
