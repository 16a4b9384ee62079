"""Whatever a sandbox leaves as its result, its session is sealed, and the record says what was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract import storable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RewardSource, RolloutJobSpec
from sandgate.contract.session import DROPPED, SessionOutcome, TerminationMessage, parse_termination
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.journal import records
from sandgate.gateway.service.schemas import Finalize
from sandgate.operator.driver.sealing import seal
from sandgate.operator.plan.actions import Exit
from sandgate.operator.plan.outcome import reward_of
from sandgate.sandbox.agents import result_document
from tests.adversary.messages import HOSTILE, NO_REWARD
from tests.operator.cluster_rig import World, hurry, manifest, world
from tests.operator.plans import spec
from tests.operator.rig import job, rig
from tests.operator.test_cluster import is_so, so
from tests.support.gateway import admin_key, gateway

HERE = Path(__file__).parent
VERIFIER = {"source": "verifier", "verifier": {"container": {"command": ["judge"]}}}
JOBS: dict[RewardSource, RolloutJobSpec] = {
    RewardSource.AGENT: spec(reward={"source": "agent"}),
    RewardSource.VERIFIER: spec(reward=VERIFIER),
    RewardSource.EXIT_CODE: spec(reward={"source": "exitCode"}),
}


def outcome(message: TerminationMessage, source: RewardSource) -> SessionOutcome:
    end = Exit(1.0, 0, message=message)
    return reward_of(JOBS[source], None, "", end, end)


def sealed(said: SessionOutcome) -> dict[str, Any]:
    """The body as the gateway reads, journals and tells it; raises what it would raise."""
    raw = json.dumps(said.body(), allow_nan=False).encode()
    body = Finalize.model_validate_json(raw)
    kept = records.Sealed(at=1.0, reward=body.reward, info=body.reward_info)
    again = records.decode(records.encode(kept))
    assert isinstance(again, records.Sealed)
    json.dumps(again.info, allow_nan=False).encode()
    return again.info


@pytest.mark.parametrize("source", JOBS)
@pytest.mark.parametrize("raw", [*HOSTILE.values(), *NO_REWARD.values()], ids=[*HOSTILE, *NO_REWARD])
def test_a_hostile_result_seals(raw: bytes, source: RewardSource) -> None:
    sealed(outcome(parse_termination(raw), source))


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_kept_is_left_out_and_the_record_says_so(raw: bytes) -> None:
    said = outcome(parse_termination(raw), RewardSource.AGENT)
    assert said.reward == 1.0, "the reward can be kept"
    assert list(sealed(said)) == [DROPPED]
    assert sealed(said)[DROPPED].startswith("reward_info ")


@given(raw=st.binary(max_size=5000) | st.sampled_from([*HOSTILE.values(), *NO_REWARD.values()]))
@example(raw=b'{"reward":1,"reward_info":{"a":"' + "é".encode() * 3000 + b'"}}')
def test_any_bytes_as_a_result_seal(raw: bytes) -> None:
    message = parse_termination(raw)
    for source in JOBS:
        sealed(outcome(message, source))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(), max_size=5)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(reward=st.floats() | st.integers() | JSON, info=JSON, depth=st.integers(0, 300))
@example(reward=3.402823466385289e38, info=None, depth=0)  # the next float64 after the largest float32
def test_any_json_as_a_result_seals(reward: Any, info: Any, depth: int) -> None:
    for _ in range(depth):
        info = {"a": info}
    message = parse_termination(json.dumps({"reward": reward, "reward_info": info}).encode())
    for source in JOBS:
        sealed(outcome(message, source))


@given(raw=st.binary(max_size=5000) | st.sampled_from([*HOSTILE.values(), *NO_REWARD.values()]))
def test_the_verifier_reads_strict_json_whatever_the_agent_left(raw: bytes) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = result_document(0, parse_termination(raw)).decode("utf-8")
    storable.encoded(json.loads(text, parse_constant=refuse))


@given(detail=st.text(alphabet=st.characters() | st.just("\ud800")))
def test_any_text_as_a_detail_seals(detail: str) -> None:
    sealed(SessionOutcome(failure_reason=FailureReason.AGENT_EXIT, detail=detail))


@pytest.mark.parametrize("large", [False, True], ids=["too deep (400)", "too large (413)"])
async def test_a_seal_that_the_gateway_refuses_for_its_content_seals_without_it(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may be stricter than its operator: it is newer, or older."""
    monkeypatch.setattr(storable, "DEPTH_MAX", 10_000)
    monkeypatch.setattr(storable, "BYTES_MAX", 10**9)
    info: dict[str, Any] = {"a": "x" * 90_000}
    for _ in range(0 if large else 600):
        info = {"a": info}
    async with gateway(["done"], limits={"body_bytes": 80_000 if large else 8_000_000}) as g:
        agent = await g.session()
        await agent.ask("hello")
        async with GatewayClient(g.origin, admin_key()) as client:
            await seal(client, agent.id, SessionOutcome(reward=0.5, reward_info=info))
            said = await client.get(agent.id)
            lease = await client.lease(max_groups=1, ttl_s=60.0)
        assert (said.state, said.reward) == ("finalized", 0.5)
        assert lease is not None
        (row,) = lease.trajectories
        assert row.reward == 0.5
        assert list(row.reward_info) == [DROPPED]
        assert "refused" in row.reward_info[DROPPED]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("source", ["agent", "verifier"])
async def test_sandgate_run_completes_beside_hostile_results(source: str, tmp_path: Path) -> None:
    left = {f"t{at}": raw for at, raw in enumerate((*HOSTILE.values(), *NO_REWARD.values()))}
    folder = tmp_path / "left"
    folder.mkdir()
    for name, raw in left.items():
        (folder / name).write_bytes(raw)
    command = {"command": ["python", str(HERE / "leaves.py"), str(folder)]}
    reward: dict[str, Any] = {"source": source}
    if source == "verifier":
        reward["verifier"] = {"container": command}
    async with rig(tmp_path) as up:
        result = await up.run(
            job(
                *(f"{name} kiwi" for name in left),
                parallelism=4,
                group={"retry": {"infra": 0}},
                reward=reward,
                agent={"backend": "Process", "template": {"spec": {"containers": [command]}}},
            )
        )
        assert result.complete
        rows = {row.uid: row for row in up.rows()}
        for name, raw in left.items():
            if raw in HOSTILE.values():
                assert (rows[name].reward, list(rows[name].reward_info)) == (1.0, [DROPPED]), raw


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def test_a_job_completes_beside_hostile_termination_messages(up: World) -> None:
    texts = [raw.decode("utf-8", "replace") for raw in (*HOSTILE.values(), *NO_REWARD.values())]

    def leaves(text: str) -> Any:
        async def program(box: Any) -> int:
            await box.ask("one")
            box.message = text
            return 0

        return program

    up.agents = [(f"shop-t{at}-", leaves(text)) for at, text in enumerate(texts)]
    up.operator_up()
    tasks = [f"t{at} kiwi" for at in range(len(texts))]
    await up.kube.create(manifest(*tasks, parallelism=4, reward={"source": "agent"}))
    await is_so(up, "Complete")
    await up.train()
    await so(lambda: up.job()["status"]["committed"] == len(texts), "all is committed")
