"""Series of a healthy installation, in promtool's notation with a value a minute, and what goes wrong of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DAY = 1440
OPERATOR = 'namespace="NAMESPACE", pod="operator-0"'
STANDBY = 'namespace="NAMESPACE", pod="operator-1"'
JOB = 'namespace="rl", sandgate_dev_job="shop"'
GATEWAY = f'{JOB}, sandgate_dev_role="gateway", pod="shop-gateway-0"'
OTHER = f'{JOB}, sandgate_dev_role="gateway", pod="shop-gateway-1"'
ENGINE = f'{JOB}, sandgate_dev_role="engine", pod="shop-engine-x"'


def gauge(value: float) -> str:
    return f"{value}x{DAY}"


NEVER = "NaN " * 60
"""A gauge without a value."""


def rising(each: float) -> str:
    """A counter that grows by so much a minute."""
    return f"0+{each}x{DAY}"


@dataclass(frozen=True)
class Case:
    series: Mapping[str, str]
    """Series -> values, instead of the healthy ones; empty: the series is not there."""
    fires: str | None
    at: str = "45m"


LEADS, FOLLOWS = (f"sandgate_operator_leader{{{one}}}" for one in (OPERATOR, STANDBY))
QUEUE = f"sandgate_operator_queue_age_seconds{{{OPERATOR}}}"
SWEEP = f"sandgate_operator_sweep_age_seconds{{{OPERATOR}}}"
NO_GATEWAY, NO_ENGINE = (
    f'sandgate_operator_jobs_unready{{{OPERATOR}, reason="{reason}"}}' for reason in ("NoGateway", "NoEngine")
)
SEEN, SEEN_OTHER = (
    f'sandgate_operator_namespace_seen{{{OPERATOR}, watched="{name}"}}' for name in ("rl", "b")
)
ACTED, FAILED = (
    f'sandgate_operator_actions_total{{{OPERATOR}, action="StartAttempt", outcome="{outcome}"}}'
    for outcome in ("ok", "Unavailable")
)
UP, UP_OTHER, UP_ENGINE = (f"up{{{one}}}" for one in (GATEWAY, OTHER, ENGINE))
HEALTH = f"sandgate_journal_healthy{{{GATEWAY}}}"
FREE, SIZE = (f"sandgate_journal_{name}_bytes{{{GATEWAY}}}" for name in ("free", "volume"))
OVERLOADED = f'sandgate_errors_total{{{GATEWAY}, reason="Overloaded"}}'
QUICK, SLOW, EVERY = (
    f'sandgate_commit_seconds_bucket{{{GATEWAY}, le="{le}"}}' for le in ("0.01", "1.0", "+Inf")
)
PAUSED = f"sandgate_paused{{{GATEWAY}}}"
ENDED_OK, ENDED_POLICY, ENDED_AGENT, ENDED_INFRA, ABORTED = (
    f'sandgate_sessions_ended_total{{{GATEWAY}, outcome="{outcome}"}}'
    for outcome in ("ok", "policy", "agent", "infra", "aborted")
)
LEFT_OUT = f"sandgate_sessions_left_out_total{{{GATEWAY}}}"
UNWRITTEN = f"sandgate_output_failures_total{{{GATEWAY}}}"
HEARD, HEARD_OTHER = (f"sandgate_trainer_age_seconds{{{one}}}" for one in (GATEWAY, OTHER))
OWED = f"sandgate_groups_owed{{{GATEWAY}}}"
ENGINES, ENGINES_UP, UNLABELLED = (
    f"sandgate_engines{name}{{{GATEWAY}}}" for name in ("", "_healthy", "_unlabelled")
)
WAITING, RUNNING = (f"vllm:num_requests_{name}{{{ENGINE}}}" for name in ("waiting", "running"))
SGLANG_WAITING, SGLANG_RUNNING = (f"sglang:num_{name}_reqs{{{ENGINE}}}" for name in ("queue", "running"))

HEALTHY = {
    LEADS: gauge(1),
    FOLLOWS: gauge(0),
    QUEUE: gauge(0),
    SWEEP: f"{'0 60 120 180 240 ' * (DAY // 5)}0",
    NO_GATEWAY: f"{'1 1 1 0 0 ' * (DAY // 5)}0",  # jobs come, and their gateways start
    NO_ENGINE: f"{'1 1 1 1 1 1 1 1 1 0 ' * (DAY // 10)}0",
    SEEN: gauge(1),
    SEEN_OTHER: gauge(1),
    ACTED: rising(100),
    FAILED: rising(1),
    UP: gauge(1),
    UP_OTHER: gauge(1),
    UP_ENGINE: gauge(1),
    HEALTH: gauge(1),
    FREE: gauge(5e9),
    SIZE: gauge(1e10),
    OVERLOADED: rising(2),
    QUICK: rising(1000),
    SLOW: rising(1001),
    EVERY: rising(1001),
    PAUSED: f"{'0 0 0 0 0 0 0 0 1 1 ' * (DAY // 10)}0",  # two minutes of ten: a weight update
    ENDED_OK: rising(10),
    ENDED_POLICY: rising(30),  # wrong answers are data
    ENDED_AGENT: rising(1),
    ENDED_INFRA: rising(1),
    ABORTED: rising(5),
    LEFT_OUT: gauge(0),
    UNWRITTEN: gauge(0),
    HEARD: gauge(20),
    HEARD_OTHER: gauge(2000),  # it speaks with the other gateway just now
    OWED: gauge(5),
    ENGINES: gauge(2),
    ENGINES_UP: gauge(2),
    UNLABELLED: gauge(0),
    WAITING: gauge(3),
    RUNNING: gauge(64),
}

CASES: dict[str, Case] = {
    "the operator's only leader went": Case({LEADS: gauge(0)}, "SandgateOperatorHasNoLeader"),
    "no operator is scraped": Case(
        dict.fromkeys(
            (LEADS, FOLLOWS, QUEUE, SWEEP, SEEN, SEEN_OTHER, NO_GATEWAY, NO_ENGINE, ACTED, FAILED), ""
        ),
        "SandgateOperatorHasNoLeader",
    ),
    "a change of leaders takes a minute": Case({LEADS: "1x20 0 1x60"}, None),
    "the operator's queue stands still": Case({QUEUE: rising(60)}, "SandgateOperatorIsStuck"),
    "and liveness restarts it each time": Case(
        {QUEUE: f"{'0 60 120 180 240 ' * (DAY // 5)}0"}, "SandgateOperatorIsStuck", at="33m"
    ),
    "the operator's sweeps fail": Case({SWEEP: rising(60)}, "SandgateOperatorIsStuck"),
    "and liveness restarts it after a quarter of an hour": Case(
        {SWEEP: f"{' '.join(str(60 * minute) for minute in range(16))} " * (DAY // 16)},
        "SandgateOperatorIsStuck",
        at="43m",
    ),
    "a sweep was late": Case({SWEEP: "0x20 300 360 420 0x60"}, None),
    "a gateway is Pending": Case({NO_GATEWAY: gauge(1)}, "SandgateJobsAreNotReady"),
    "engines wait for GPUs": Case(
        {NO_ENGINE: gauge(2), ENGINES: gauge(0), ENGINES_UP: gauge(0)}, "SandgateJobsAreNotReady"
    ),
    "a complete or suspended job let go of its engines": Case(
        {ENGINES: gauge(0), ENGINES_UP: gauge(0)}, None
    ),
    "one of the watched namespaces was deleted": Case(
        {SEEN_OTHER: gauge(0)}, "SandgateNamespaceIsNotWatched"
    ),
    "a namespace is made anew within two minutes": Case({SEEN_OTHER: "1x20 0 0 1x60"}, None),
    "the operator watches all namespaces": Case({SEEN: "", SEEN_OTHER: ""}, None),
    "starts of agents fail": Case({ACTED: rising(1), FAILED: rising(10)}, "SandgateOperatorActionsFail"),
    "a gateway is down": Case({UP: gauge(0)}, "SandgateGatewayIsDown"),
    "a gateway rolls in three minutes": Case({UP: "1x20 0 0 0 1x60"}, None),
    "an engine loads its model": Case({UP_ENGINE: gauge(0)}, None),
    "the disk is full": Case({HEALTH: gauge(0)}, "SandgateGatewayRefusesTurns"),
    "the volume is nearly full": Case({FREE: gauge(5e8)}, "SandgateJournalVolumeIsNearlyFull"),
    "the journal is in a database": Case({FREE: NEVER, SIZE: NEVER}, None),
    "agents are refused": Case({OVERLOADED: rising(120)}, "SandgateGatewayIsOverloaded"),
    "commits are slow": Case({QUICK: rising(900), SLOW: rising(950)}, "SandgateJournalIsSlow"),
    "a trainer died in a weight update": Case({PAUSED: gauge(1)}, "SandgatePauseLasts"),
    "agents crash": Case({ENDED_AGENT: rising(30)}, "SandgateSessionsFail"),
    "nodes go": Case({ENDED_INFRA: rising(30)}, "SandgateSessionsFail"),
    "two of three sessions fail, which are too few to say": Case(
        {ENDED_OK: "0 1x60", ENDED_POLICY: gauge(0), ENDED_AGENT: "0 2x60", ENDED_INFRA: gauge(0)}, None
    ),
    "stragglers are cut": Case({ABORTED: rising(60)}, None),
    "a session's rows are lost": Case({LEFT_OUT: "0x30 1x60"}, "SandgateRowsAreLeftOut"),
    "files cannot be written": Case({UNWRITTEN: rising(1)}, "SandgateOutputFails"),
    "the trainer is silent": Case({HEARD: gauge(1900)}, "SandgateTrainerIsSilent"),
    "nobody wants a trainer: all is acknowledged": Case({HEARD: gauge(1900), OWED: gauge(0)}, None),
    "no trainer came yet": Case({HEARD: NEVER, HEARD_OTHER: NEVER}, None),
    "no engine answers": Case({ENGINES_UP: gauge(0)}, "SandgateNoEngine"),
    "engines come within ten minutes": Case({ENGINES: "0x10 2x60", ENGINES_UP: "0x10 2x60"}, None),
    "one engine hangs": Case({ENGINES_UP: gauge(1)}, "SandgateEngineIsAway"),
    "an engine was started anew": Case(
        {ENGINES_UP: gauge(1), UNLABELLED: gauge(1)}, "SandgateEngineLacksWeights"
    ),
    "turns wait at vLLM": Case({WAITING: rising(10)}, "SandgateEngineQueueGrows"),
    "turns wait at SGLang": Case(
        {WAITING: "", RUNNING: "", SGLANG_WAITING: gauge(200), SGLANG_RUNNING: gauge(64)},
        "SandgateEngineQueueGrows",
    ),
}
