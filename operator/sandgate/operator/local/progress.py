"""Events and the result of a local run, typed, for any display. (pure data)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.status import RolloutJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarting:
    """A managed engine is being started; its output goes to `log`."""

    log: Path
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady:
    """An engine answers. `seconds`: how long that took."""

    urls: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReady:
    """A gateway takes sessions."""

    name: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRestarted:
    """A gateway or engine ended by itself and is started again; whoever calls it waits."""

    name: str
    why: str
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What an earlier run of the same job left."""

    ended: int
    """Samples that will not run again."""
    lost: int
    """Sessions that ran when it died; they are tried again."""
    collected: int
    """Groups whose trajectories are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """An agent runs."""

    session_id: str
    uid: str
    sample: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """An attempt is sealed."""

    session_id: str
    uid: str
    sample: int
    attempt: int
    seconds: float
    """Of the agent."""
    reward: float | None
    turns: int
    tokens: int
    """Unique tokens of its tree."""
    sampled_tokens: int
    forks: dict[str, int]
    failure_class: FailureClass | None
    failure_reason: FailureReason | None
    detail: str
    traceback: bool = False
    """It exited with 1, which says that its answer is wrong, and with a traceback, which says that it crashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCollected:
    """A group's trajectories are durable in `path`."""

    uid: str
    trajectories: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettled:
    """Nothing more comes of a group. `sessions`: how many of them count; with none, no trainer is ever offered it."""

    uid: str
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far the job is; told about once a second."""

    total: int
    """Samples."""
    running: int
    ended: int
    failed: int
    retries: int
    collected: int
    """Groups."""
    groups: int
    turns: int
    sampled_tokens: int
    tokens_per_s: float
    """Sampled, over the last few seconds."""
    seconds: float
    """Since the run began."""
    held: bool = False
    """Nothing runs until a trainer publishes weights, or is heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStarted:
    """Nothing new is started; `running` sessions may end."""

    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that a person should know once, and that is as it should be."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNews:
    """A trainer came, left or died, or is waited for."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that a person should know, and that did not end the run."""

    text: str


Event: TypeAlias = (
    EngineStarting
    | EngineReady
    | GatewayReady
    | ProcessRestarted
    | Resumed
    | SessionStarted
    | SessionEnded
    | GroupCollected
    | GroupSettled
    | Counts
    | DrainStarted
    | Note
    | TrainerNews
    | Problem
)
Tell: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A run that is over. Counts are of the whole job, earlier runs included."""

    complete: bool
    """Every group that was asked for is there (plan.gaps), and written."""
    cause: str = ""
    """In one line, why a job that is over is not complete."""
    status: RolloutJobStatus
    sessions: int
    """Samples that ended."""
    rewards: tuple[float, ...] = ()
    """Of the samples that have one and are not masked: neither the agent's failure nor the infrastructure's."""
    unscored: int = 0
    """Samples that ended well, and nobody gave them a reward."""
    failures: dict[str, int] = field(default_factory=dict)
    """FailureReason -> attempts, retried ones included."""
    tracebacks: int = 0
    """Of those with AnswerWrong: exits with 1 and a traceback."""
    turns: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    forks: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    """Written."""
    missing_groups: int = 0
    """Of a job that is over: those that are not there."""
    trajectories: Path | None = None
    """The merged file; None if the job is not over: run it again to go on."""
    seconds: float = 0.0
    """Of this run."""
    restarts: int = 0
    """Of gateways and engines."""
    problems: tuple[str, ...] = ()
