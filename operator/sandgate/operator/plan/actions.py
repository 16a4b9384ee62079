"""Types of the plan: what it sees (what is observed of jobs and sessions), and the actions that it says. (pure)

Every action is idempotent: its object's name is derived from `Ref`, so a repeat meets what the first one made.
Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TypeAlias

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.contract.names import SessionId, session_id
from sandgate.contract.session import SessionOutcome, SessionSummary, TerminationMessage
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.plan.fruitless_samples import NONE_FRUITLESS, FruitlessSamples
from sandgate.operator.plan.kueue import Hold, QueueSeen, QueueStep, QuotaAsk

NO_MESSAGE = TerminationMessage()


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One attempt at one sample of one task."""

    job: str
    uid: str
    sample: int
    attempt: int
    called: str = ""
    """The name that a person gave it, whose agent runs elsewhere."""

    @property
    def name(self) -> SessionId:
        """Session id at the gateway, name of its AgentSession and of its sandbox."""
        if self.called:
            return SessionId(self.called)
        return session_id(self.job, self.uid, self.sample, self.attempt)


SampleKey: TypeAlias = tuple[str, int]
"""(uid, sample)."""

# -- what is seen of a session ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container or process ended."""

    at: float
    code: int | None = None
    """None if it was killed by a signal or never ran."""
    signal: int | None = None
    reason: FailureReason | None = None
    """What the sandbox itself knows (OOMKilled, Evicted, NodeLost, ImageError, StartFailed, AgentMissing)."""
    detail: str = ""
    """What `reason` means here; without one, the last line that it wrote."""
    message: TerminationMessage = NO_MESSAGE
    traceback: bool = False
    """The last that it wrote is a Python traceback; `detail` is the exception."""
    stopped: bool = False
    """Its node ended it because it was told to, whatever the node's clock says."""
    refused: bool = False
    """The API server does not take such a pod: it says the same of the next one."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a sandbox waits for before it starts, in the words of who knows: scheduler, kubelet, API server."""

    words: str
    reason: FailureReason = FailureReason.START_TIMEOUT
    """What it fails of if it never starts: StartTimeout, or ImageError."""
    from_event: bool = False
    """Its own status says less; what is told later is in Events again."""
    pulls: bool = False
    """An image is on its way to its node. One that fails there ends by the patience with that, not by the time that its
    pull may take."""


class SideCars(IntEnum):
    """What of a sandbox still runs, or may run, once its program has ended. It never becomes more."""

    NONE = 0
    ENDING = 1
    """Side-cars that their kubelet ends, as all else of the pod has ended."""
    RUN = 2
    """Side-cars that somebody has to stop."""


@dataclass(frozen=True, slots=True)
class Running:
    """A container or process: the agent or the verifier."""

    asked_at: float
    started_at: float | None = None
    """None while it is being made."""
    exit: Exit | None = None
    placed_at: float | None = None
    """When it was given a node; None: not yet, or not known."""
    waiting: Waiting | None = None
    """None: nothing is known to be in its way."""
    unplaced: bool = False
    """It has no node yet, said or not: nothing starts, and its time does not run."""
    side_cars: SideCars = SideCars.NONE
    """With an exit: what is left of its pod."""


@dataclass(frozen=True, slots=True)
class Stop:
    """An order to stop the agent. `reason` None: it has completed."""

    reason: FailureReason | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """Something that a session needs did not answer for a while."""

    since: float
    until: float | None
    """None while it lasts."""
    reason: FailureReason
    """GatewayLost or EngineLost."""


OUTAGES_MAX = 8
"""Remembered of a session: its agent may have died of one of them long before that is looked at."""


class Told(IntEnum):
    """What the session's AgentSession says of it, as last written."""

    NOTHING = 0
    RUNNING = 1
    FINALIZED = 2
    COMMITTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionObserved:
    """One attempt that is open at its gateway."""

    ref: Ref
    opened_at: float
    summary: SessionSummary | None = None
    """As the gateway last told it."""
    looked_at: float = 0.0
    """When that was."""
    sandbox: Running | None = None
    verifier: Running | None = None
    stop: Stop | None = None
    stop_at: float = 0.0
    """When it was told."""
    stop_late: bool = False
    """Its end was known by then, and its gateway asked since: only its side-cars still ran."""
    killed: bool = False
    """It did not stop, and was ended by force."""
    side_cars_stop_at: float | None = None
    """When what runs beside the agent, which had ended, was told to stop."""
    verifier_stop_at: float | None = None
    """When its verifier was told to stop."""
    verifier_killed: bool = False
    deleted: bool = False
    """Somebody deleted its AgentSession."""
    outages: tuple[Outage, ...] = ()
    """Of its gateway, or of all engines behind it, since it was opened; the last OUTAGES_MAX, oldest first."""
    told: Told | None = None
    """None: it has no AgentSession, and nothing is to be written."""
    lost: bool = False
    """It was begun in another life of the driver, and its sandbox is gone."""
    remote: bool = False
    """No sandbox is ever made: the agent runs elsewhere and calls /complete."""
    committed: bool = False
    """Its trajectories are with the trainer for good."""
    wake_at: float | None = None
    """When this key is looked at again anyway."""


# -- what is seen of a job --------------------------------------------------------------------------------------------


class SampleState(StrEnum):
    """Where the newest attempt at a sample stands."""

    WAITING = "waiting"
    """There is no attempt yet, or another one is asked for."""
    LIVE = "live"
    ENDED = "ended"
    """Sealed at the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleObserved:
    """The newest attempt at a sample."""

    state: SampleState = SampleState.WAITING
    attempt: int = -1
    starting: bool = False
    """Live, and its agent has not started yet."""
    never_started: bool = False
    """Live, and its agent ended before it started: neither starts nor runs."""
    waits_for: str = ""
    """What its pod waits for, in the words of scheduler, kubelet or API server."""
    verifier_waits_for: str = ""
    """The same of its verifier's pod, once its agent has ended."""
    stopping: bool = False
    """Live, and told to stop."""
    ended_at: float = 0.0
    reason: FailureReason | None = None
    """Of the newest attempt, once it ended."""
    failure: FailureClass | None = None
    detail: str = ""
    """What `reason` means here, for people."""
    spent: int = 0
    """Attempts that failed on infrastructure and count against `group.retry.infra`."""
    refused: int = 0
    """Attempts that a node did not take."""
    unscored: bool = False
    """It ended, nobody gave it a reward, and it teaches nothing for the want of one."""
    rowless: bool = False
    """It ended well, or of the policy, and took no turn: there is no row of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObserved:
    """A task that was begun: it has a gateway, and stays there."""

    uid: str
    gateway: str
    samples: tuple[SampleObserved, ...]
    """By sample index; `groupSize` entries."""
    closed: bool = False
    """The gateway was told that no more sessions count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTally:
    """Counts over samples of groups that are settled."""

    ended: int = 0
    failed: int = 0
    retries: int = 0
    fruitless: FruitlessSamples = NONE_FRUITLESS
    """Those of `failed` that teach nothing."""
    unscored: int = 0
    """Those that teach nothing only for the want of a reward, as far as that is known."""
    lost: int = 0
    """Those of `failed` that had ended when their gateway lost its journal."""
    rowless: int = 0
    """Those that are not in vain, and took no turn."""

    def __add__(self, more: SampleTally) -> SampleTally:
        return SampleTally(
            ended=self.ended + more.ended,
            failed=self.failed + more.failed,
            retries=self.retries + more.retries,
            fruitless=self.fruitless + more.fruitless,
            unscored=self.unscored + more.unscored,
            lost=self.lost + more.lost,
            rowless=self.rowless + more.rowless,
        )


@dataclass(frozen=True, slots=True)
class Hopeless:
    """The job's first sessions all failed of a cause that stays. `reason`: of its condition Failed."""

    reason: str
    message: str


class Provided(StrEnum):
    """What the driver has set up for a job."""

    NOTHING = "nothing"
    STOPPED = "stopped"
    """Gateways; a managed engine is scaled to nothing."""
    IDLE = "idle"
    """The gateways are scaled to nothing, too."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObserved:
    """What is seen of a job. Only groups that are begun and not settled are spelled out: a plan costs what runs, not
    what the job is large."""

    gateways: Mapping[str, int]
    """Those that take sessions -> sessions placed there that have not ended."""
    fresh: Collection[str]
    """Uids of tasks that were never begun, in order."""
    groups: Mapping[str, GroupObserved]
    """In the order in which they were begun."""
    remote: Sequence[SessionObserved] = ()
    """Live sessions of agents that run elsewhere: they are not the job's samples."""
    elsewhere: bool = False
    """One of these ended, and counts for its task."""
    tally: SampleTally = SampleTally()
    """Of the groups that are settled."""
    begun: int = 0
    """Groups that were ever begun."""
    committed: int = 0
    """Samples whose trajectories are with the trainer for good."""
    total: int = 0
    """Samples that the job asks for."""
    started_at: float = 0.0
    more: bool = False
    """Further tasks may come: the job is not complete when these are done."""
    problem: str = ""
    """Why its tasks cannot be had, for people."""
    owed: int | None = 0
    """Samples that ended well and are not committed yet; None while that is not known."""
    hopeless: Hopeless | None = None
    proved: bool = True
    """An agent of it got past its start (`firsts.Firsts.proved`). Until then one group is begun."""
    proves_at: float | None = None
    """When that will be known of an agent that runs, if it runs on."""
    draining: bool = False
    """Nothing new is started; what runs may end."""
    policy_version: int = 0
    published: int = 0
    """Versions that the trainer published since the job began."""
    taken: int = 0
    """Groups that are with a trainer, or were: see `observed.pace`."""
    done: int | None = 0
    """Those that were acknowledged when a version was last published; None: not known yet."""
    engines: int | None = None
    """That answer; None where nobody counts them."""
    engine_trouble: str = ""
    """Why none answers, for people."""
    gateway_trouble: str = ""
    """Why no gateway's pod is ready, for people."""
    littered: str = ""
    """Of what too much is left by sessions that are over, for people: no new group adds to it."""
    heard_at: float | None = None
    """When the trainer last gave a sign of life, or could first have; None where none is waited for."""
    since: float = 0.0
    """When this operator began to look: what was heard before, it may not know."""
    trainer_at: float | None = 0.0
    """When a trainer was last heard of, awaited or not; 0: never; None: no gateway has told yet."""
    provided: Provided | None = None
    """None: gateways and engine are not the plan's business."""
    provided_for: int = 0
    """Generation of the job that they were made for."""
    status: RolloutJobStatus | None = None
    """As last written."""
    queue: QueueSeen | None = None
    """Kueue's side of it; None while that was not looked at."""
    wake_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWant:
    """What is wanted."""

    name: str
    spec: RolloutJobSpec
    """Of a job that its queue holds: suspended."""
    generation: int = 0
    selector: str = ""
    """Of the agents' pods."""
    refused: str = ""
    """Why a newer spec than this one cannot run."""
    taken: str = ""
    """Which object of another has a name that this job needs, for people."""
    unprovided: str = ""
    """Why the API server does not take an object that this job needs, for people."""
    unopened: str = ""
    """Why the API server does not take what a session needs (its keys, its AgentSession), or a gateway does not take
    the session, for people."""
    unwelcome: frozenset[SampleKey] = frozenset()
    """Samples whose next session a gateway does not take. Others need not wait for them."""
    ask: QuotaAsk | None = None
    """What it wants of its queue; None: it has none."""
    held: Hold | None = None
    """Why its queue does not let it run."""


# -- what is done -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Create the session at this gateway (and, in a cluster, its AgentSession)."""

    ref: Ref
    gateway: str


@dataclass(frozen=True, slots=True)
class OpenRemote:
    """Open a session that a person applied, at this gateway; make the keys of its agent."""

    ref: Ref
    gateway: str


@dataclass(frozen=True, slots=True)
class HoldRemote:
    """Say why it is not open. `final`: it will not be."""

    ref: Ref
    why: str
    final: bool


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Make the sandbox and run the agent in it."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Stop the agent: politely, then by force. What it was stopped for is remembered."""

    ref: Ref
    stop: Stop


@dataclass(frozen=True, slots=True)
class KillAttempt:
    """It was told to stop and did not."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class StopSideCars:
    """Its agent has ended, and something of its pod runs on."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class AbortSession:
    """Discard it at the gateway, turns in flight too."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class LookSession:
    """Ask the gateway how the session stands now."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class StartVerifier:
    """Run the verifier on what the agent left."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class StopVerifier:
    """Its time is up."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class KillVerifier:
    """It was told to stop and did not."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class SealSession:
    """Finalize it at the gateway."""

    ref: Ref
    outcome: SessionOutcome


@dataclass(frozen=True, slots=True)
class WriteSession:
    """Its AgentSession does not say yet what it should."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """Tell the gateway that no more sessions count for this task."""

    uid: str
    gateway: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing of this attempt is needed any more."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Provide:
    """Make the job's gateways and its engine, or make them what they are to be now."""

    what: Provided


@dataclass(frozen=True, slots=True)
class TendWorkload:
    """Tell the job's queue."""

    step: QueueStep


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Its time after the end is over: the object goes, and with it everything that it owns."""


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """The job's status changed."""

    status: RolloutJobStatus = field(repr=False)


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Plan this key again at that time at the latest."""

    at: float


Action: TypeAlias = (
    OpenSession
    | OpenRemote
    | HoldRemote
    | StartAttempt
    | StopAttempt
    | KillAttempt
    | StopSideCars
    | AbortSession
    | LookSession
    | StartVerifier
    | StopVerifier
    | KillVerifier
    | SealSession
    | WriteSession
    | CloseGroup
    | Forget
    | Provide
    | TendWorkload
    | DeleteJob
    | WriteStatus
    | WakeAt
)
