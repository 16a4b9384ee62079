"""What an operator can observe of a job: one frozen event per fact, which `fold.apply` takes in. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sandgate.contract.session import SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.observed.pace import Shelf
from sandgate.operator.plan.actions import (
    Hopeless,
    JobWant,
    Outage,
    Provided,
    Ref,
    Running,
    SessionObserved,
    Stop,
    Told,
)
from sandgate.operator.plan.kueue import QueueSeen

# -- of the job -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantChanged:
    """The job's spec is another, or it may not run as it says."""

    want: JobWant


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job's status says when it began."""

    at: float


@dataclass(frozen=True, slots=True)
class TasksAdded:
    """Further tasks of the job, in order."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TasksUnavailable:
    """The tasks cannot be had. An empty `why`: now they can."""

    why: str


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """No further tasks will come."""


@dataclass(frozen=True, slots=True)
class GatewayChanged:
    """A gateway takes sessions, or none any more."""

    name: str
    ready: bool


@dataclass(frozen=True, slots=True)
class EngineProvided:
    """Gateways and engine are set up so, as that generation of the job says."""

    what: Provided
    generation: int


@dataclass(frozen=True, slots=True)
class EnginesCounted:
    """So many engines answer."""

    count: int
    why: str = ""
    """Why none does, as the gateway that asked them says it."""


@dataclass(frozen=True, slots=True)
class GatewaysBlocked:
    """Why no gateway's pod is ready, as Kubernetes says it; empty: it says nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class CleaningLags:
    """What sessions leave is deleted more slowly than they end, for people; empty: it is not."""

    why: str


@dataclass(frozen=True, slots=True)
class GatewayLooked:
    """A gateway said how it stands with trainers."""

    gateway: str
    said: Shelf


@dataclass(frozen=True, slots=True)
class VersionsRecalled:
    """What a run of the same folder before this one counted; `published` None: it did not. `done`: as `Pace.done`."""

    version: int
    published: int | None
    done: int | None = None


@dataclass(frozen=True, slots=True)
class TrainerHeard:
    """The trainer gave a sign of life `at` some time, 0: none that its gateway knows of; it is heard of `now`."""

    at: float
    now: float
    all_told: bool = True
    """All gateways of the job have said whether they know of one."""


@dataclass(frozen=True, slots=True)
class TrainerAwaited:
    """From now on a trainer is waited for as if it had been heard then; None: none is waited for."""

    since: float | None


@dataclass(frozen=True, slots=True)
class OutageSeen:
    """A gateway, or all engines behind it, are away, or are back. One that goes on is one."""

    gateway: str
    outage: Outage


@dataclass(frozen=True, slots=True)
class QueueLooked:
    """Kueue's side of the job; None: it has none."""

    queue: QueueSeen | None


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Nothing new is to be started."""


@dataclass(frozen=True, slots=True)
class StatusWritten:
    """The job's status says this."""

    status: RolloutJobStatus


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A plan found that nothing will come of the job: that stays."""

    why: Hopeless


@dataclass(frozen=True, slots=True)
class Proved:
    """An agent of the job ran for so long that it is past its start: that stays."""


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """Times are `by` seconds more than they would be: the clock was set, or the machine slept. It says `at` now."""

    by: float
    at: float


@dataclass(frozen=True, slots=True)
class TimerSet:
    """This key will be planned again then anyway; None: at no time that is known."""

    key: str
    at: float | None


# -- of sessions that others remember ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recalled:
    """A session of the job that a gateway held, and what is known of it."""

    ref: Ref
    said: SessionSummary
    seen: SessionObserved | None
    """None: nothing is left to be done for it."""


@dataclass(frozen=True, slots=True)
class SessionsFound:
    """What a gateway held when this driver started."""

    gateway: str
    sessions: tuple[Recalled, ...]
    again: frozenset[tuple[str, int]] = frozenset()
    """Samples (uid, index) that have ended, and are to be tried anew."""


@dataclass(frozen=True, slots=True)
class CommittedBefore:
    """So many sessions were committed before this driver started."""

    count: int


# -- of a session and its group ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupBegun:
    """The sessions of a task are being opened at this gateway."""

    uid: str
    gateway: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A gateway holds the session. `told`: what its AgentSession says, if it has one."""

    ref: Ref
    gateway: str
    now: float
    told: Told | None = None


@dataclass(frozen=True, slots=True)
class SessionReported:
    """A gateway says how a session stands."""

    said: SessionSummary
    now: float


@dataclass(frozen=True, slots=True)
class SessionVanished:
    """Its gateway does not know the session: its journal was lost."""

    ref: Ref
    now: float


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The agent is being started, runs, or has ended."""

    ref: Ref
    running: Running


@dataclass(frozen=True, slots=True)
class AgentHeld:
    """The agent's sandbox cannot be asked for yet, and why."""

    ref: Ref
    why: str


@dataclass(frozen=True, slots=True)
class VerifierSeen:
    """The verifier is being started, runs, or has ended."""

    ref: Ref
    running: Running


@dataclass(frozen=True, slots=True)
class VerifierHeld:
    """The verifier cannot be asked for yet, and why."""

    ref: Ref
    why: str


@dataclass(frozen=True, slots=True)
class AgentStopping:
    """The agent was told to stop."""

    ref: Ref
    stop: Stop
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentKilled:
    """The agent was ended by force."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class SideCarsStopping:
    """What runs beside an agent that ended was told to stop."""

    ref: Ref
    now: float


@dataclass(frozen=True, slots=True)
class VerifierStopping:
    """The verifier was told to stop."""

    ref: Ref
    now: float


@dataclass(frozen=True, slots=True)
class VerifierKilled:
    """The verifier was ended by force."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class ObjectWritten:
    """The session's AgentSession says this now; None: there is none any more."""

    ref: Ref
    told: Told | None


@dataclass(frozen=True, slots=True)
class ObjectDeleted:
    """Somebody deleted the session's AgentSession."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class GroupCloseConfirmed:
    """The gateway knows that no more sessions of this group count."""

    uid: str


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    """The trajectories of this group, these sessions, are with the trainer for good."""

    uid: str
    sessions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionCommitted:
    """All trajectories of this session are with the trainer for good."""

    name: str


@dataclass(frozen=True, slots=True)
class SessionForgotten:
    """Nothing of the session is needed any more."""

    ref: Ref


# -- of sessions of agents elsewhere ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteAsked:
    """Somebody applied an AgentSession for an agent elsewhere, and named this gateway, or none."""

    ref: Ref
    gateway: str


@dataclass(frozen=True, slots=True)
class RemotePlaced:
    """The remote sessions of this task are at this gateway."""

    uid: str
    gateway: str


@dataclass(frozen=True, slots=True)
class RemoteOpened:
    """A gateway holds a remote session."""

    ref: Ref
    gateway: str
    now: float


@dataclass(frozen=True, slots=True)
class RemoteWithdrawn:
    """The AgentSession of this name asks for nothing any more: it is open, or gone."""

    name: str


@dataclass(frozen=True, slots=True)
class RemoteRefused:
    """The remote session will not be opened."""

    ref: Ref


JobEvent: TypeAlias = (
    WantChanged
    | JobStarted
    | TasksAdded
    | TasksUnavailable
    | TasksEnded
    | GatewayChanged
    | EngineProvided
    | EnginesCounted
    | GatewaysBlocked
    | CleaningLags
    | GatewayLooked
    | VersionsRecalled
    | TrainerHeard
    | TrainerAwaited
    | QueueLooked
    | DrainAsked
    | StatusWritten
    | GaveUp
    | Proved
    | TimerSet
    | ClockStepped
)
GroupEvent: TypeAlias = (
    SessionsFound
    | CommittedBefore
    | GroupBegun
    | SessionOpened
    | SessionReported
    | SessionVanished
    | GroupCloseConfirmed
    | GroupCommitted
    | SessionCommitted
    | SessionForgotten
)
VerifierEvent: TypeAlias = VerifierSeen | VerifierHeld | VerifierStopping | VerifierKilled
AttemptEvent: TypeAlias = (
    OutageSeen
    | AgentSeen
    | AgentHeld
    | AgentStopping
    | AgentKilled
    | SideCarsStopping
    | ObjectWritten
    | ObjectDeleted
    | VerifierEvent
)
RemoteEvent: TypeAlias = RemoteAsked | RemotePlaced | RemoteOpened | RemoteWithdrawn | RemoteRefused
Event: TypeAlias = JobEvent | GroupEvent | AttemptEvent | RemoteEvent
