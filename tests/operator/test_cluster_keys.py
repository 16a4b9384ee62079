"""Keys of sessions outlive their session, whenever it begins: after a weekend's suspend, and made by whomever."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Unauthorized, Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint, verify
from sandgate.contract.labels import EXPIRES, ROLE, SESSION, VERIFIER
from sandgate.contract.manifest_decoder import decode
from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster import key_life, trainer_key
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import trainer_key_span
from sandgate.operator.cluster.provision import renew_trainer_key
from sandgate.operator.manifests import keys_end, keys_secret, remote_secret, trainer_secret
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import JobWant, Provided, Ref
from sandgate.operator.plan.ends import stamp
from tests.operator.cluster_rig import NAMESPACE, Box, World, follow, hurry, judges, manifest, world
from tests.operator.test_cluster import Slow, is_so, so
from tests.operator.test_remote import QUEUE, environment, opened, remote, turn
from tests.support import gateway as support
from tests.support.gateway import SECRET

NOW = 1_000.0
MARGIN_S = key_life.KEY_MARGIN_S
DAYS_AGO_S = -10 * 86_400.0
"""As a margin: keys that are made then are as old as if they had been made days before."""


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


class Waits:
    """An agent that has no turn until it is stopped."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, box: Box) -> int:
        self.reached.set()
        await asyncio.Event().wait()
        return 0


@pytest.mark.parametrize("anew", [False, True], ids=["by the same operator", "by one that starts anew"])
async def test_siblings_that_are_opened_days_later_have_keys_that_last(
    up: World, monkeypatch: pytest.MonkeyPatch, *, anew: bool
) -> None:
    """One of a group of four began; then the job was suspended until its siblings' keys had expired."""
    waits = Waits()
    up.agents = [("-0-0", waits)]
    monkeypatch.setattr(key_life, "KEY_MARGIN_S", DAYS_AGO_S)
    up.operator_up()
    await up.kube.create(manifest("a 1", groupSize=4, parallelism=1))
    await asyncio.wait_for(waits.reached.wait(), 20)
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await is_so(up, "Suspended", reason="SpecSuspend")
    await so(lambda: up.job()["status"]["running"] == 0, "nothing runs")
    monkeypatch.setattr(key_life, "KEY_MARGIN_S", MARGIN_S)
    if anew:
        await up.operator_down()
        up.operator_up()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await is_so(up, "Complete")
    status = up.job()["status"]
    assert (status["failed"], len(up.told), up.broken) == (0, 4, []), "all four have their turn"
    assert await up.train() == 4
    await so(
        lambda: not [one for one in up.kube.named("Secret") if "-keys-" in one], "and go when it is time"
    )


async def test_a_verifier_that_begins_days_after_its_agent_has_keys_that_last(up: World) -> None:
    """Its operator was away meanwhile."""
    slow, ends = Slow(), dict[str, float]()

    def verifiers(kind: str, event: str, body: Any) -> None:
        if (kind, event) == ("Pod", "ADDED") and body["metadata"]["labels"][ROLE] == VERIFIER:
            session = body["metadata"]["labels"][SESSION]
            (secret,) = (up.kube.objects["Secret", NAMESPACE, name] for name in keys_secrets(up))
            for entry in ("reward", "task"):
                ends[entry] = keys_end(secret, f"{session}.{entry}", SECRET, time.time())

    up.kube.watchers.append(verifiers)
    up.agents = [("-0-0-v", judges), ("-0-0", slow)]
    up.operator_up()
    judge = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}
    await up.kube.create(manifest("a 1", reward=judge))
    await asyncio.wait_for(slow.reached.wait(), 20)
    await up.operator_down()
    (name,) = keys_secrets(up)
    secret = up.kube.objects["Secret", NAMESPACE, name]
    for entry, value in secret["data"].items():
        key = verify(SECRET, base64.b64decode(value).decode(), 0.0)
        secret["data"][entry] = coded(mint(SECRET, replace(key, expires_at=NOW)))
    slow.go.set()
    up.operator_up()
    await is_so(up, "Complete")
    assert set(ends) == {"reward", "task"}
    assert all(end > time.time() + 3600 for end in ends.values())


def keys_secrets(up: World) -> list[str]:
    return [name for name in up.kube.named("Secret") if "-keys-" in name]


async def test_siblings_share_keys_as_long_as_they_last(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", groupSize=4, parallelism=1))
    await is_so(up, "Complete")
    assert sum(count for (kind, name), count in up.kube.made.items() if "-keys-" in name) == 1


async def test_a_remote_agent_is_given_keys_that_last_where_its_were_made_days_before(up: World) -> None:
    await up.kube.create(manifest(reward={"source": "agent"}, **QUEUE))
    body = await up.kube.create(remote("laptop"))
    ref = Ref("shop", "elsewhere", 0, 0, called="laptop")
    key = mint(SECRET, Key(Scope.AGENT, "shop", "laptop", NOW))
    env = {
        "OPENAI_BASE_URL": f"http://shop-gateway-0.shop-gateway.{NAMESPACE}.svc/v1",
        "OPENAI_API_KEY": key,
    }
    owner: dict[str, Any] = {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "AgentSession",
        "name": "laptop",
    }
    owner |= {"uid": body["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    await up.kube.create(remote_secret(decode(RolloutJob, up.job()), ref, owner, env))
    up.operator_up()
    await opened(up, "laptop")
    assert environment(up, "laptop")["OPENAI_API_KEY"] != key
    await turn(up, "laptop")


# -- the signing secret ------------------------------------------------------------------------------------------------


def signing(up: World) -> str:
    return base64.b64decode(up.kube.objects["Secret", NAMESPACE, "shop-signing"]["data"]["secret"]).decode()


async def test_a_signing_secret_that_is_deleted_without_gateways_is_another(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys of before open nothing then; the job goes on with new ones, its trainer too."""

    def mounted(kind: str, event: str, body: Any) -> None:
        if (kind, event, body["metadata"]["name"]) == ("Secret", "ADDED", "shop-signing"):
            text = base64.b64decode(body["data"]["secret"]).decode()
            monkeypatch.setattr(support, "SECRET", bytes.fromhex(text))

    up.kube.watchers += [mounted, lambda kind, event, body: follow(up, kind, body)]
    waits = Waits()
    up.agents = [("-0-0", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", groupSize=3, parallelism=1, gateway={"idleSeconds": 0}))
    await asyncio.wait_for(waits.reached.wait(), 20)
    before, old = signing(up), trainers(up)[0]
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: not up.gateways, "its gateways are away")
    await up.kube.delete("Secret", NAMESPACE, "shop-signing")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await is_so(up, "Complete")
    assert (up.job()["status"]["failed"], len(up.told), up.broken) == (0, 3, [])
    assert signing(up) != before
    origin = up.gateways["shop-gateway-0"].origin
    async with GatewayClient(origin, old) as stolen, GatewayClient(origin, trainers(up)[0]) as trainer:
        with pytest.raises(Unauthorized, match="signature"):
            await stolen.status()
        lease = await trainer.lease(max_groups=1, ttl_s=60.0, job="shop")
        assert lease is not None
        assert len(lease.sessions) == 3


async def test_a_signing_secret_that_is_deleted_under_its_gateways_comes_back_as_it_was(up: World) -> None:
    """At the next change, by the operator that knows it."""
    up.operator_up()
    await up.kube.create(manifest("a 1", **QUEUE))
    await so(lambda: "shop-trainer" in up.kube.named("Secret"), "it is provided")
    before = signing(up)
    await up.kube.delete("Secret", NAMESPACE, "shop-signing")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 7}})
    await so(lambda: "shop-signing" in up.kube.named("Secret"), "it is there again")
    assert signing(up) == before


async def test_gateways_with_a_secret_that_nobody_knows_go_before_there_is_another(up: World) -> None:
    """It was deleted while no operator was there. A node's pods share what it has of a Secret's name."""
    up.operator_up()
    await up.kube.create(manifest("a 1", **QUEUE))
    await so(lambda: "shop-trainer" in up.kube.named("Secret"), "it is provided")
    await up.operator_down()
    await up.kube.delete("Secret", NAMESPACE, "shop-signing")
    gateways = up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]
    gateways["status"] = {"replicas": 1}
    up.operator_up()

    def wanted() -> int:
        return int(up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["replicas"])

    await so(lambda: wanted() == 0, "they are to go")
    assert "shop-signing" not in up.kube.named("Secret")
    up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["status"] = {"replicas": 0}
    await so(lambda: "shop-signing" in up.kube.named("Secret"), "they are gone, and there is another")
    await so(lambda: wanted() == 1, "with which they come back")


# -- a trainer's key ---------------------------------------------------------------------------------------------------


def trainers(up: World) -> tuple[str, str]:
    """The key in the trainer's Secret, and what it says of its end."""
    secret = up.kube.objects["Secret", NAMESPACE, "shop-trainer"]
    said = (secret["metadata"].get("annotations") or {}).get(EXPIRES, "")
    return base64.b64decode(secret["data"]["api_key"]).decode(), said


async def test_a_trainers_key_is_made_anew_as_long_as_the_job_is_there(up: World) -> None:
    """Each is taken while the next is there, and none is written twice."""
    up.settings = replace(up.settings, trainer_key_seconds=2)
    up.operator_up()
    await up.kube.create(manifest(**QUEUE))
    seen: dict[str, None] = {}

    def news() -> bool:
        if "shop-trainer" in up.kube.named("Secret"):
            seen[trainers(up)[0]] = None
        return len(seen) == 4

    await so(news, "three more keys")
    ends = [verify(SECRET, key, 0.0).expires_at for key in seen]
    assert ends == sorted(set(ends))
    async with GatewayClient(up.gateways["shop-gateway-0"].origin, list(seen)[-1]) as trainer:
        await trainer.status()
    assert up.kube.writes["apply", "Secret"] <= len(seen), "what is the same is not written again"


async def test_the_first_key_and_its_end_are_in_the_secret(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(**QUEUE))
    await so(lambda: "shop-trainer" in up.kube.named("Secret"), "it is provided")
    text, said = trainers(up)
    key = verify(SECRET, text, time.time())
    assert (key.scope, key.job, stamp(key.expires_at)) == (Scope.TRAINER, "shop", said)
    life = up.settings.trainer_key_seconds
    assert life / 2 - 60 < key.expires_at - time.time() <= life + 1


async def test_a_jobs_key_may_be_good_for_ever(up: World) -> None:
    up.settings = replace(up.settings, trainer_key_seconds=0)
    up.operator_up()
    await up.kube.create(manifest(**QUEUE))
    await so(lambda: "shop-trainer" in up.kube.named("Secret"), "it is provided")
    assert trainers(up) == (mint(SECRET, Key(Scope.TRAINER, job="shop")), "")


async def test_an_operator_that_finds_an_old_key_renews_it_though_nobody_provides_the_job(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have no gateways, and the operator before may have died long ago. The API server is away at first."""
    monkeypatch.setattr(trainer_key, "AGAIN_S", 0.01)
    monkeypatch.setattr(trainer_key, "FIRST_S", 0.01)
    job = decode(RolloutJob, (await up.kube.create(manifest(**QUEUE))))
    await up.kube.create(trainer_secret(job, up.settings, SECRET.hex(), NOW))
    failing = iter([Unavailable("503"), OSError("no route")])

    def away(verb: str, kind: str) -> None:
        if kind == "Secret" and (error := next(failing, None)) is not None:
            raise error

    up.kube.fail = away
    want = JobWant(name="shop", spec=job.spec, generation=1, selector="")
    at = JobState(
        kube=up.kube,
        settings=up.settings,
        job=job,
        observed=Observed(want=want, provided=Provided.IDLE),
        changed=lambda key: None,
        now=time.time,
    )
    task = asyncio.ensure_future(trainer_key.TrainerKeys(at).run())
    await so(lambda: verify(SECRET, trainers(up)[0], 0.0).expires_at > time.time(), "it is renewed")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_secret_of_somebody_else_is_never_written_over(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the name of the trainer's, and the job says so; what renews keys looks, too."""
    looked = asyncio.Event()

    async def renew(*args: Any) -> None:
        try:
            await renew_trainer_key(*args)
        finally:
            looked.set()

    monkeypatch.setattr(trainer_key, "FIRST_S", 0.5)
    monkeypatch.setattr(trainer_key, "renew_trainer_key", renew)
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "shop-trainer", "namespace": NAMESPACE},
    }
    before = await up.kube.create({**theirs, "data": {"api_key": coded("theirs")}})
    up.operator_up()
    await up.kube.create(manifest(**QUEUE))
    await so(lambda: up.condition("Ready") == ("False", "NameTaken"), "it is said")
    await asyncio.wait_for(looked.wait(), 20)
    assert up.kube.objects["Secret", NAMESPACE, "shop-trainer"] == before


@given(
    st.text("0123456789abcdef-", min_size=1, max_size=36),
    st.integers(600, 10**8),
    st.floats(1e9, 1e10),
)
def test_a_key_is_good_for_half_of_its_life_at_least_and_changes_when_it_is_due(
    uid: str, seconds: int, now: float
) -> None:
    end, due = trainer_key_span(uid, seconds, now)
    assert now < due <= now + seconds / 2 + 1
    assert seconds / 2 - 1 <= end - now <= seconds + 1
    assert end - due >= seconds / 2 - 2, "the next is there for as long before it ends"
    before, after = trainer_key_span(uid, seconds, due - 0.01), trainer_key_span(uid, seconds, due + 0.01)
    assert before[0] == end < after[0] == pytest.approx(end + seconds / 2, abs=2)
    assert trainer_key_span(uid, 0, now) == (0.0, inf)


# -- which keys are good enough ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A Secret that is there."""

    data: Any
    end: float


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SOUND = mint(SECRET, Key(Scope.AGENT, "shop", "s", NOW + 5))
KEPT = {
    "a key is good until it expires": Kept({"s.api": coded(SOUND)}, NOW + 5),
    "an expired one opens nothing": Kept(
        {"s.api": coded(mint(SECRET, Key(Scope.AGENT, "shop", "s", NOW - 1)))}, 0.0
    ),
    "one of another signing secret opens nothing": Kept(
        {"s.api": coded(mint(bytes(32), Key(Scope.AGENT, "shop", "s", NOW + 5)))}, 0.0
    ),
    "a Secret without the session's key has none": Kept({"t.api": coded(SOUND)}, 0.0),
    "what is not base64 is none": Kept({"s.api": "%"}, 0.0),
    "what is no text is none": Kept({"s.api": base64.b64encode(b"\xff\xfe").decode()}, 0.0),
    "an empty Secret has none": Kept(None, 0.0),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_when_a_secrets_keys_expire(kept: Kept) -> None:
    assert keys_end({"metadata": {"name": "x"}, "data": kept.data}, "s.api", SECRET, NOW) == kept.end


def test_keys_are_read_as_they_are_written() -> None:
    job = decode(RolloutJob, manifest("a 1", groupSize=2))
    secret = keys_secret(job, "a", 0, 0, SECRET, NOW + 7)
    for entry, value in secret["data"].items():
        key = verify(SECRET, base64.b64decode(value).decode(), NOW)
        assert keys_end(secret, entry, SECRET, NOW) == NOW + 7 == key.expires_at
