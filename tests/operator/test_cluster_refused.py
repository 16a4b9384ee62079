"""A job whose spec cannot run is corrected in place, whatever is wrong; of one that began, only what may change."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.operator.kubernetes.kinds import Ref
from tests.contract.manifests import put
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_manifests_check import BAD
from tests.support.waiting import until

Json = Any
Changes = list[tuple[str, Any]]
VERIFIER = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}
NOT_THE_SCHEMAS: dict[str, tuple[str, Changes]] = {
    "a prompt of no kind": ("spec.tasks.inline[0].prompt", [("spec.tasks.inline[0].prompt", 5)]),
    "a prompt of no message": ("spec.tasks.inline[0].prompt", [("spec.tasks.inline[0].prompt", [])]),
    "a host of colons": ("spec.gateway.media", [("spec.gateway.media", {"allowedHosts": ["[:::]"]})]),
}
"""What the definition cannot say: ONLY_DECODER of tests/cluster/test_crds_agree.py."""
CASES = {name: (field, changes) for name, (_, field, changes) in BAD.items()} | NOT_THE_SCHEMAS
MAY_CHANGE = "spec.engine.endpoints"
"""Of what can be wrong, this may change while a job runs: it goes on under the spec before."""


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def so(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, what=what, within_s=60.0)


def good() -> Json:
    return copy.deepcopy(manifest("a 1", reward=VERIFIER))


def wrong(changes: Changes) -> Json:
    made = good()
    for at, value in changes:
        put(made, at, value)
    return made


async def change(up: World, spec: Json) -> Json:
    """All of the spec, as a person does with `kubectl replace`."""
    held = await up.kube.get("RolloutJob", NAMESPACE, "shop")
    return await up.kube.replace(held | {"spec": spec})


@pytest.mark.parametrize(("field", "changes"), CASES.values(), ids=CASES)
async def test_what_is_refused_is_corrected_in_place_and_runs(
    up: World, field: str, changes: Changes
) -> None:
    up.operator_up()
    await up.kube.create(wrong(changes))
    await so(lambda: up.condition("Failed") == ("True", "BadManifest"), "it is refused")
    (said,) = [one["message"] for one in up.job()["status"]["conditions"] if one["type"] == "Failed"]
    assert said.startswith(field)
    assert up.kube.named("StatefulSet") == []
    await change(up, good()["spec"])
    await so(lambda: up.condition("Complete")[0] == "True", "it runs")
    assert up.condition("Failed")[0] == "False"
    with pytest.raises(InvalidBody, match=r"spec\.groupSize is immutable"):
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"groupSize": 3}})


@pytest.mark.parametrize(("field", "changes"), CASES.values(), ids=CASES)
async def test_of_a_job_that_began_the_same_change_is_refused_by_name(
    up: World, field: str, changes: Changes
) -> None:
    up.operator_up()
    await up.kube.create(good())
    await so(lambda: up.condition("Complete")[0] == "True", "it runs")
    if field.startswith(MAY_CHANGE):
        await change(up, wrong(changes)["spec"])
    else:
        with pytest.raises(InvalidBody) as refused:
            await change(up, wrong(changes)["spec"])
        assert refused.value.field is not None
        assert field.startswith(refused.value.field)
    assert up.condition("Failed")[0] == "False"


async def test_what_began_is_not_called_refused_by_an_operator_that_knows_no_better_spec(up: World) -> None:
    up.operator_up()
    await up.kube.create(good())
    await so(lambda: up.condition("Complete")[0] == "True", "it runs")
    await up.operator_down()
    bad = {"engine": {"endpoints": ["http://localhost:8000"]}}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": bad})
    up.operator_up()
    await so(lambda: up.condition("Progressing") == ("False", "SpecRefused"), "it is said")
    assert (up.condition("Complete")[0], up.condition("Failed")[0]) == ("True", "False")
    with pytest.raises(InvalidBody, match=r"spec\.tasks is immutable"):
        await change(up, manifest("b 2", reward=VERIFIER)["spec"])
    await change(up, good()["spec"])
    await so(lambda: up.condition("Progressing") == ("False", "Over"), "the corrected spec is done")


async def test_what_an_operator_began_and_never_told_of_has_begun(up: World) -> None:
    """It dies after the gateways were made; the spec is another by then, and cannot run."""
    up.kube.fail = lambda verb, kind: _dies(verb, kind, up)
    up.operator_up()
    await up.kube.create(good())
    await so(lambda: up.kube.named("StatefulSet") != [], "gateways are made")
    await up.operator_down()
    up.kube.fail = lambda verb, kind: None
    bad = {"engine": {"endpoints": ["http://localhost:8000"]}}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": bad})
    up.operator_up()
    await so(lambda: up.condition("Progressing")[1] == "SpecRefused", "it is said")
    with pytest.raises(InvalidBody, match=r"spec\.groupSize is immutable"):
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"groupSize": 3}})


def _dies(verb: str, kind: str, up: World) -> None:
    if verb == "patch_status" and up.kube.named("StatefulSet"):
        raise OSError("nothing is told any more")


async def test_a_correction_that_comes_while_it_begins_is_what_it_begins_with(up: World) -> None:
    """It is seen by the watch only after the operator has tried to begin with the one before."""
    up.operator_up()
    await up.kube.create(wrong([("spec.tasks", {"file": "t.jsonl"})]))
    await so(lambda: up.condition("Failed") == ("True", "BadManifest"), "it is refused")
    later = [manifest("b 2", "c 3", reward=VERIFIER)["spec"]]

    def meanwhile(verb: str, kind: str) -> None:
        if (verb, kind) == ("patch_status", "RolloutJob") and later:
            body = copy.deepcopy(up.job()) | {"spec": later.pop()}
            up.kube._write("update", Ref.of(body), body)

    up.kube.fail = meanwhile
    await change(up, good()["spec"])
    await so(lambda: up.condition("Complete")[0] == "True", "it runs")
    assert not later
    assert {one["spec"]["taskUid"] for one in up.sessions().values()} == {"b", "c"}


LONG = "x" * 45
LONGER = {
    "a new job with a longer name than there is room for is refused": (None, ("True", "BadManifest")),
    "one that was refused stays so": ({"reason": "BadManifest"}, ("True", "BadManifest")),
    "one that runs goes on": ({"selector": f"sandgate.dev/job={LONG}", "running": 1}, ("", "")),
}


@pytest.mark.parametrize(("status", "failed"), LONGER.values(), ids=LONGER)
async def test_longer_names_of_before(up: World, status: Json, failed: tuple[str, str]) -> None:
    held = await up.kube.create(manifest("a 1"))
    up.kube.remove("RolloutJob", NAMESPACE, "shop")
    held["metadata"]["name"] = LONG
    up.kube.objects["RolloutJob", NAMESPACE, LONG] = held | ({"status": status} if status else {})
    hub = up.operator_up()
    if failed[0]:
        await so(lambda: up.condition("Failed", LONG) == failed, "it is refused")
        said = next(one["message"] for one in up.job(LONG)["status"]["conditions"] if one["type"] == "Failed")
        assert "metadata.name: has more than 44 characters" in said
    assert bool(hub.runs) is not bool(failed[0])
    if hub.runs:
        await so(lambda: f"{LONG}-gateway" in up.kube.named("StatefulSet"), "its gateways are tended")
        await up.kube.patch("RolloutJob", NAMESPACE, LONG, {"spec": {"suspend": True}})
        await so(lambda: up.condition("Suspended", LONG)[0] == "True", "it is suspended")
        await up.kube.delete("RolloutJob", NAMESPACE, LONG)
        assert not hub.runs
