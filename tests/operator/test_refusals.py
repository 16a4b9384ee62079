"""Which of the API server's 403s are waited for, and which end a job: in words that real ones said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandgate.contract.errors import Forbidden
from sandgate.operator.cluster import pod_backend
from sandgate.operator.cluster.refusals import passes
from tests.operator.cluster_rig import World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so

USER = 'User "system:serviceaccount:sandgate:sandgate-operator"'
NO_RIGHT = (
    f'403: pods is forbidden: {USER} cannot create resource "pods" in API group "" in the namespace "lab"'
)
POD = '403: pods "shop-a-0-0" is forbidden: '
WAITS: dict[str, str] = {
    "an API server that has just started, or roles that are being replaced": NO_RIGHT,
    "a role that is gone, by name": f'{NO_RIGHT}: RBAC: role.rbac.authorization.k8s.io "sandgate" not found',
    "the same of a Secret": f'403: secrets is forbidden: {USER} cannot create resource "secrets" in API group ""',
    "a full quota": f"{POD}exceeded quota: agents, requested: pods=1, used: pods=5, limited: pods=5",
    "a quota that is not counted yet": f"{POD}status unknown for quota: compute, resources: limits.memory",
    "a ServiceAccount that comes with the job":
        f'{POD}error looking up service account lab/agents: serviceaccount "agents" not found',
    "a namespace that goes, and may come again":
        f"{POD}unable to create new content in namespace lab because it is being terminated",
    "admission that has not begun": f"{POD}not yet ready to handle request",
    "an owner that we may not hold": f"{POD}cannot set blockOwnerDeletion if an ownerReference refers to a resource"
        " you can't set finalizers on: , <nil>",
    "a webhook's quota": '403: admission webhook "quota.example" denied the request: exceeded quota of team a',
}  # fmt: skip
FINAL: dict[str, str] = {
    "a namespace's security level": f'{POD}violates PodSecurity "restricted:latest": privileged (container "agent")',
    "a LimitRange": f"{POD}maximum cpu usage per Container is 1, but limit is 2",
    "a quota that asks for limits": f"{POD}failed quota: compute: must specify limits.memory for: agent",
    "a PriorityClass that is not there": f"{POD}no PriorityClass with name urgent was found",
    "a RuntimeClass that is not there": f'{POD}pod rejected: RuntimeClass "gvsior" not found',
    "a validating policy": f"{POD}ValidatingAdmissionPolicy 'images' with binding 'all' denied request: no such image",
    "a webhook": '403: admission webhook "validation.gatekeeper.sh" denied the request: [images] agent:1 is no good',
    "a webhook that speaks of rights":
        '403: admission webhook "rights.example" denied the request: User "x" cannot create resource "pods" like this',
    "a webhook that speaks of namespaces": '403: admission webhook "n.example" denied the request: pods "x" is'
        " forbidden: unable to create new content in namespace lab because it is being terminated",
    "a policy that quotes what is waited for": f"{POD}ValidatingAdmissionPolicy 'a' with binding 'b' denied request:"
        " not yet ready to handle request",
}  # fmt: skip


@pytest.mark.parametrize("text", WAITS.values(), ids=WAITS)
def test_it_is_waited_for(text: str) -> None:
    assert passes(Forbidden(text))


@pytest.mark.parametrize("text", FINAL.values(), ids=FINAL)
def test_it_is_final(text: str) -> None:
    assert not passes(Forbidden(text))


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(pod_backend, "NOT_YET_S", 0.05)
    async with world(tmp_path) as made:
        yield made


ONCE = {name: text for name, text in WAITS.items() if "secrets" not in text}
VERIFIER = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}


@pytest.mark.parametrize("text", ONCE.values(), ids=ONCE)
async def test_of_one_such_answer_no_job_ends_and_no_attempt_is_used_up(up: World, text: str) -> None:
    """Once for the agent's pod, once for its verifier's."""
    left, made = 1, 0

    def fail(verb: str, kind: str) -> None:
        nonlocal left, made
        if (verb, kind) == ("create", "Pod"):
            if left:
                left -= 1
                raise Forbidden(text)
            left, made = (1 if made == 0 else 0), made + 1

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1", reward=VERIFIER))
    await is_so(up, "Complete")
    assert made == 2
    assert {one["spec"]["attempt"] for one in up.sessions().values()} == {0}


async def test_a_right_that_is_missing_is_said_and_the_job_runs_when_it_is_there(up: World) -> None:
    may = False

    def fail(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod") and not may:
            raise Forbidden(NO_RIGHT)

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await so(lambda: (up.job().get("status") or {}).get("reason") == "PodsWait", "it says that pods wait")
    assert NO_RIGHT in str(up.job()["status"]["conditions"])
    may = True
    await is_so(up, "Complete")
