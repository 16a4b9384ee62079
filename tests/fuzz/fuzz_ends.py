"""Law: however a sandbox ends and whatever it leaves, its session is sealed; whatever a gateway answers, its trainer
reads it or refuses it with an error of `contract.errors`; whatever a gateway is asked, it understands or refuses.

`python -m tests.fuzz` looks longer than the tests do.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sandgate.contract import control_api
from sandgate.contract.control_call import ControlAnswer, outcome
from sandgate.contract.errors import SandgateError
from sandgate.contract.session import SessionSummary, parse_termination
from sandgate.contract.trajectory import to_json
from sandgate.gateway.journal import records
from sandgate.gateway.service import schemas
from sandgate.gateway.service.schemas import Finalize
from sandgate.operator.observed.pod_record import pod_seen
from sandgate.operator.plan.actions import Exit
from sandgate.operator.plan.outcome import reward_of
from sandgate.trainer.client import lease_call
from tests.adversary.messages import HOSTILE, NO_REWARD
from tests.fuzz.fuzz_protocols import edited
from tests.fuzz.fuzz_records import TRAJECTORY
from tests.fuzz.mutating import copied, mutated
from tests.fuzz.patience import quick
from tests.operator.plans import spec

GOLDEN = Path(__file__).parents[1] / "golden" / "pods"
PODS = [json.loads(path.read_text("utf-8")) for path in sorted(GOLDEN.glob("*.json"))]
JOBS = [
    spec(reward={"source": "agent"}),
    spec(reward={"source": "verifier", "verifier": {"container": {"command": ["judge"]}}}),
    spec(reward={"source": "exitCode"}),
]
MESSAGE = {"reward": 0.5, "reward_info": {"tests": [1, 2, {"passed": True}], "note": "x", "n": 1.5}}
RAW = [*HOSTILE.values(), *NO_REWARD.values()]
ROW = to_json(TRAJECTORY)
LEASED = {"lease_id": "l", "until": 9.0, "sessions": ["s"], "trajectories": [ROW, ROW]}
WORDS = (
    "", "0", "OOMKilled", "Error", "Evicted", "Failed", "Unknown", "Terminated", "2026-11-22T00:00:00Z", "nan",
    "x" * 5000, "\ud800", "\0", '{"reward": 1}', '{"reward": NaN}', "9999-99-99T99:99:99Z", "\u2028",
)  # fmt: skip
SUMMARY = {
    "session_id": "s", "state": "open", "turns": 1, "tokens": 5, "forks": {"side_call": 1}, "limit_reached": None,
    "complete_info": {"a": 1}, "reward": 0.5, "failure_class": None, "in_flight": 0,
}  # fmt: skip


def message(chance: random.Random) -> str:
    """What it left as its result is sealed, and can be told as JSON."""
    if chance.random() < 0.3:
        raw = edited(chance.choice(RAW), chance)
    else:
        raw = json.dumps(mutated(MESSAGE, chance)).encode()
    left = parse_termination(raw)
    for job in JOBS:
        outcome = reward_of(job, None, "", Exit(1.0, 0, message=left), Exit(1.0, 0, message=left))
        body = Finalize.model_validate_json(json.dumps(outcome.body(), allow_nan=False).encode())
        kept = records.decode(
            records.encode(records.Sealed(at=1.0, reward=body.reward, info=body.reward_info))
        )
        assert isinstance(kept, records.Sealed)
        json.dumps(kept.info, allow_nan=False)
    return "rewarded" if left.reward is not None else "unrewarded"


def status(chance: random.Random) -> str:
    """However odd its pod's status is, it is understood as something, and what is known of its end is sealed."""
    case = chance.choice(PODS)
    pod = copied(case["pod"])
    for _ in range(chance.choice((1, 2, 5))):
        _spoil(pod, chance)
    end = pod_seen(pod, case["now"]).running.exit
    if end is None:
        return "running"
    for job in JOBS:
        body = reward_of(job, end.reason, end.detail, end, None).body()
        Finalize.model_validate_json(json.dumps(body, allow_nan=False).encode())
    return "ended"


def _spoil(value: Any, chance: random.Random) -> None:
    """Change something as an API server would still take it: types stay, integers have 64 bits."""
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        if not keys:
            return
        key = chance.choice(keys)
        below = value[key]
        if isinstance(below, dict | list) and below and chance.random() < 0.8:
            value = below
            continue
        if chance.random() < 0.3:
            if isinstance(value, dict):
                del value[key]
            else:
                value.append(copied(below))
        elif isinstance(below, bool):
            value[key] = not below
        elif isinstance(below, int):
            value[key] = chance.choice((0, -1, 1, 137, 2**31, 2**63 - 1, -(2**63)))
        elif isinstance(below, str):
            value[key] = chance.choice((*WORDS, below + below, below[1:]))
        return


def told(chance: random.Random) -> str:
    """What a gateway answers to its trainer and its operator."""
    lease: Any = lease_call.lease(job="job", ttl_s=60.0)
    good, read = chance.choice(
        (
            (LEASED, lambda answer: outcome(lease, answer)),
            ({"trajectories": [ROW]}, lambda answer: outcome(control_api.finalize("s", {}), answer)),
            (SUMMARY, lambda answer: SessionSummary.of(answer.json)),
        )
    )
    value = mutated(good, chance)
    try:
        read(ControlAnswer(200, {"content-type": "application/json"}, json.dumps(value).encode()))
    except SandgateError:
        return "refused"
    return "read"


ASKED: list[tuple[type[BaseModel], Any]] = [
    (schemas.SessionBody, {"session_id": "s", "uid": "q", "sampling": {"top_p": 1}, "limits": {"turns": 3},
                          "task": {"uid": "q", "data": [1, {"a": None}]}, "metadata": {"a": [1.5]}}),
    (schemas.Complete, {"reward_info": MESSAGE}),
    (schemas.RewardBody, {"reward": 1.0, "interaction_id": "chatcmpl-1", "reward_info": MESSAGE}),
    (schemas.Finalize, {"outcome": {"failure_class": "policy", "detail": "x"}, "reward": 1, "reward_info": MESSAGE}),
    (schemas.LeaseBody, {"job": "j", "max_groups": 2, "max_tokens": 5, "ttl_s": 9.0, "lease_id": "l"}),
    (schemas.PushTasks, {"job": "j", "tasks": [{"uid": "q", "prompt": [1], "data": {"a": 1}}], "last": True}),
]  # fmt: skip


def asked(chance: random.Random) -> str:
    """What sandboxes, trainers and operators say to a gateway is understood, and can be told again, or is refused."""
    shape, good = chance.choice(ASKED)
    raw = json.dumps(mutated(good, chance)).encode()
    if chance.random() < 0.3:
        raw = edited(raw, chance)
    try:
        body = shape.model_validate_json(raw)
    except ValidationError:
        return "refused"
    assert shape.model_validate_json(json.dumps(body.model_dump(), allow_nan=False)) == body
    return "understood"


LAWS: tuple[Callable[[random.Random], str], ...] = (message, status, told, asked)


class Escaped(Exception):
    """Something else came out; says of what, and the state of chance that shows it again."""


def run(seed: int, n: int) -> Counter[str]:
    """n ends. How many were understood as what."""
    seen: Counter[str] = Counter()
    for number in range(n):
        law = LAWS[number % len(LAWS)]
        try:
            with quick():
                said = law(random.Random(f"{seed} {number}"))
            seen[f"{law.__name__} {said}"] += 1
        except Exception as error:
            raise Escaped(f"{law.__name__}, Random('{seed} {number}'): {error!r}") from error
    return seen
