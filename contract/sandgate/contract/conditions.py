"""Condition types and their reasons: values are API. (pure)"""

from __future__ import annotations

from enum import StrEnum


class ConditionStatus(StrEnum):
    """As in Kubernetes."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class JobCondition(StrEnum):
    """Condition types of a RolloutJob."""

    READY = "Ready"
    """Gateways and engine answer; sessions can run."""
    SUSPENDED = "Suspended"
    """Nothing runs, because spec.suspend is true, its queue holds it or the trainer is gone."""
    PROGRESSING = "Progressing"
    """Sessions run or are about to."""
    COMPLETE = "Complete"
    """Every sample ended, one at least not of its agent or the infrastructure; nothing will run again."""
    FAILED = "Failed"
    """The job gave up, or all its samples failed; nothing will run again."""
    COLLECTED = "Collected"
    """It is over, and every trajectory is with the trainer for good, or durable in files."""


class SessionCondition(StrEnum):
    """Condition types of an AgentSession."""

    SCHEDULED = "Scheduled"
    """It is open at its gateway and its sandbox was asked for."""
    RUNNING = "Running"
    """Its agent has started and not ended."""
    FINISHED = "Finished"
    """Its agent ended, well or not; see failureClass."""
    FINALIZED = "Finalized"
    """Its tree is sealed at the gateway; its reward is final."""
    TRAJECTORY_COMMITTED = "TrajectoryCommitted"
    """Every trajectory of it was acknowledged by the trainer, or is durable in the Parquet output. Only then may what
    is left of it be collected."""


class JobReason(StrEnum):
    """Reasons in the conditions of a RolloutJob."""

    GATEWAYS_READY = "GatewaysReady"
    """Ready: gateways take sessions; engines are not ours to watch."""
    GATEWAYS_AND_ENGINES_READY = "GatewaysAndEnginesReady"
    """Ready: gateways take sessions and an engine answers."""
    NOTHING_MADE = "NothingMade"
    """Not ready: gateways and engine are not made yet."""
    NAME_TAKEN = "NameTaken"
    """Not ready: an object of another has a name that the job needs; the message says which."""
    NOT_PROVIDED = "NotProvided"
    """Not ready: the API server does not take an object that the job needs (its rules, a quota, a right or a kind that
    is missing), or a journal of an earlier job of that name is still being deleted; the message has the words. What
    runs goes on, nothing new begins, and it is tried again."""
    NO_GATEWAY = "NoGateway"
    """Not ready: no gateway takes sessions; the message has what its pod says."""
    NO_ENGINE = "NoEngine"
    """Not ready: no engine answers; the message has its address and the error."""
    IDLE = "Idle"
    """Not ready: nothing was to be done for gateway.idleSeconds, and gateways and engine are at 0 pods."""
    SPEC_SUSPEND = "SpecSuspend"
    """Suspended by spec.suspend."""
    QUEUED_BY_KUEUE = "QueuedByKueue"
    """Suspended: Kueue has not admitted it, or wants its quota back; the message has Kueue's words."""
    KUEUE_MISSING = "KueueMissing"
    """Suspended: it names a queue, and there is no Kueue that could admit it; the message says what is missing."""
    TRAINER_SILENT = "TrainerSilent"
    """Suspended: nothing heard of the trainer for heartbeatSeconds."""
    NOT_SUSPENDED = "NotSuspended"
    """It may run."""
    RUNNING = "Running"
    """Progressing: sessions run. The message says so where none of the samples that ended so far (eight at least)
    teaches anything, and what most of them failed of: the job goes on all the same."""
    PODS_WAIT = "PodsWait"
    """Progressing: pods of agents or verifiers cannot start yet (no room, a full quota, an image, a volume), or what a
    session needs cannot be made yet (its keys, its AgentSession), or its gateway does not take it; the message has the
    words of the scheduler, the kubelet, the API server or the gateway, and names a verifier."""
    CLEANING_UP = "CleaningUp"
    """Progressing: sessions end faster than the API server deletes what they leave. What has begun goes on, and no new
    group begins until less is left; the message says of what, and what the API server answers if it refuses."""
    AWAITS_VERSION = "AwaitsVersion"
    """Progressing: nothing runs, and no new group begins before the trainer publishes its next policy version, or takes
    more groups (spec.staleness); the message counts them. It passes with each step of a trainer that is strictly
    on-policy."""
    WAITING = "Waiting"
    """Progressing: sessions are about to run, or tasks to come."""
    DRAINING = "Draining"
    """The operator of a local run starts nothing new."""
    SUSPENDED = "Suspended"
    """Not progressing: it is suspended."""
    SPEC_REFUSED = "SpecRefused"
    """Progressing under the spec before: the newest cannot run; the message says why. Not progressing, where the
    operator started anew meanwhile: what ran stays as it is until the spec is corrected."""
    NO_TASKS = "NoTasks"
    """Not progressing: the tasks cannot be read, or are not those that the job began with; the message says why, and
    what to do. What runs goes on, nothing new begins, and they are looked at again."""
    OVER = "Over"
    """Not progressing: it is complete or failed."""
    ALL_ENDED = "AllEnded"
    """Complete: every sample ended. The message says so where none of them took a turn, or reward.source is agent and
    none of them has a reward."""
    GROUPS_LOST = "GroupsLost"
    """Complete: every sample ended, and some were lost after that: their gateway lost its journal before a trainer had
    them. The message counts them; a trainer that waits for their tasks is told by empty groups. Collected: all that is
    left was acknowledged."""
    NOT_ALL_ENDED = "NotAllEnded"
    """Not complete: samples are open."""
    BAD_MANIFEST = "BadManifest"
    """Failed: the spec cannot run; the message names the field. Nothing was made of the job: every field may be
    corrected."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """Failed: activeDeadlineSeconds passed."""
    TRAINER_LOST = "TrainerLost"
    """Failed: nothing heard of the trainer for collectSeconds."""
    PROGRAM_MISSING = "ProgramMissing"
    """Failed: the agent's or the verifier's program is not there; the message says which."""
    MODEL_NOT_SERVED = "ModelNotServed"
    """Failed: the engine does not serve the model, as it told the first sessions."""
    TOKENIZER_MISMATCH = "TokenizerMismatch"
    """Failed: the engine's vocabulary is another one than the tokenizer's, as the first sessions showed."""
    POD_REFUSED = "PodRefused"
    """Failed: the API server takes no such pod (its rules, a policy engine, a namespace's security level); the message
    has its words. A full quota, a missing right of the operator, a ServiceAccount that is not there yet are none of
    that: they are waited for."""
    NOTHING_STARTS = "NothingStarts"
    """Failed: no agent of the first group started, and one of them in none of its attempts; or none of the first
    verifiers did. The message has the most frequent cause and its words."""
    AGENTS_FAIL_ALIKE = "AgentsFailAlike"
    """Failed: the first agents all ended in the same words before their first turn; the message has them."""
    ALL_FAILED = "AllFailed"
    """Failed: every sample failed of its agent or of the infrastructure, none taught anything; the message has the most
    frequent cause and its words."""
    NOT_FAILED = "NotFailed"
    """It has not failed."""
    ALL_ACKNOWLEDGED = "AllAcknowledged"
    """Collected: nothing of it is owed to anybody."""
    NOT_ALL_ACKNOWLEDGED = "NotAllAcknowledged"
    """Not collected: it is not over, or trajectories wait for a trainer."""


class SessionReason(StrEnum):
    """Reasons in the conditions of an AgentSession; Finished has those of failureReason too."""

    ASKED = "Asked"
    """Scheduled: its sandbox was asked for."""
    REMOTE = "Remote"
    """Scheduled: its agent runs elsewhere."""
    ON_HOLD = "OnHold"
    """Not scheduled: a remote session that is opened later; the message says what it waits for."""
    REFUSED = "Refused"
    """Not scheduled: a remote session that cannot be opened; the message names the field."""
    NO_JOB = "NoJob"
    """Not scheduled: there is no RolloutJob of that name that could hold it."""
    STARTED = "Started"
    """Running: its agent started."""
    ENDED = "Ended"
    """Not running: its agent ended."""
    NEVER_STARTED = "NeverStarted"
    """Not running: it ended before its agent started."""
    COMPLETED = "Completed"
    """Finished: it ended well; while False: it is being stopped because it completed."""
    SEALED = "Sealed"
    """Finalized: its tree is sealed."""
    DISCARDED = "Discarded"
    """Not finalized: it was aborted, nothing of it is kept."""
    ACKNOWLEDGED = "Acknowledged"
    """TrajectoryCommitted: every trajectory was acknowledged or is durable."""
