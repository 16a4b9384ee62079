"""Failure reasons: why a session ended, and the class of each: policy, agent or infra. (pure)

The *reason* is API (metrics labels, conditions, records); the text is for people.
"""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """Who is to blame for a session that did not end well; None for one that did."""

    POLICY = "policy"
    """The model's doing: wrong, length, turn limit, own timeout. Train on it."""
    AGENT = "agent"
    """The agent program crashed, is not there, or what became of it cannot be judged. Masked."""
    INFRA = "infra"
    """Preempted, evicted, node, image, gateway or engine lost; never what a sandbox can bring about. Retried; never a
    reward of 0."""


class FailureReason(StrEnum):
    """Why a session ended. Each belongs to one class, see `FAILURE_CLASS`. Whatever a sandbox can bring about is never
    class `infra`: else a policy could choose to be tried again instead of being scored."""

    TURN_LIMIT = "TurnLimit"
    """It used up `limits.turns`."""
    TOKEN_LIMIT = "TokenLimit"
    """It used up `limits.totalTokens`, or the bytes that a session may have in the journal."""
    SESSION_TIMEOUT = "SessionTimeout"
    """It ran for `limits.sessionSeconds`."""
    CONTEXT_EXCEEDED = "ContextExceeded"
    """A prompt beyond the model's window, and it did not go on after that."""
    ANSWER_WRONG = "AnswerWrong"
    """Exit code 1 where `reward.source` is exitCode: reward 0.0, trained on, `complete`. A program that dies of an
    uncaught Python exception exits with 1 too: `reward_info.traceback` of the record and the run's report say so."""
    OOM_KILLED = "OOMKilled"
    """More memory than its own limit."""
    STORAGE_EXCEEDED = "StorageExceeded"
    """More disk than its own limit: the kubelet put it out."""
    AGENT_EXIT = "AgentExit"
    """Any other exit code but 0, or 1 where something else gives the reward; or an end without the /complete that the
    job asks for."""
    AGENT_SIGNAL = "AgentSignal"
    """A signal ended it that neither Sandgate nor its node sent."""
    AGENT_MISSING = "AgentMissing"
    """Its program is not there, or cannot be executed: it never ran, and another attempt would not either."""
    ESCAPED = "Escaped"
    """Without a cluster: something that it started would not end, or what stands over it was killed."""
    NODE_PRESSURE = "NodePressure"
    """Its node ran out of memory, disk, inodes or processes as it used more than it had asked for, or had no limit."""
    JOURNAL_PRESSURE = "JournalPressure"
    """Its gateway's journal had little room left, and it had written more than its share. Its turns were refused, so
    that those of others are not."""
    VERIFIER_FAILED = "VerifierFailed"
    """The verifier judged what the agent left, and crashed, ran out of time or memory, or gave no reward."""
    STRAGGLER = "Straggler"
    """It still ran when its group had its quorum and `stragglerSeconds` had passed."""
    START_FAILED = "StartFailed"
    """Its sandbox could not be made, or the program in it not be started."""
    START_TIMEOUT = "StartTimeout"
    """It had not started after `limits.startSeconds`."""
    ENGINE_ERROR = "EngineError"
    """The engine failed calls of it, for no reason that lies in the request."""
    ENGINE_LOST = "EngineLost"
    """No engine answered meanwhile."""
    GATEWAY_LOST = "GatewayLost"
    """Its gateway was away meanwhile, could not write its journal, or lost it."""
    PREEMPTED = "Preempted"
    """The scheduler, or its node, needed the place for something more important."""
    EVICTED = "Evicted"
    """Its pod was taken away, and not for what it used."""
    NODE_LOST = "NodeLost"
    """Its node went away, shut down, or forgot it."""
    NODE_REFUSED = "NodeRefused"
    """Its node did not take its pod, or its verifier's, of which nothing ran: a device plugin or kubelet that starts
    again, no room after all. Refusals of a sample, up to 8, do not count against `group.retry.infra`."""
    IMAGE_ERROR = "ImageError"
    """Its image could not be had."""
    VERIFIER_LOST = "VerifierLost"
    """The verifier did not start, or its place was taken away."""
    DRIVER_LOST = "DriverLost"
    """The process that drove it died. In a cluster: before it was known whether it had a pod."""
    ABORTED = "Aborted"
    """Somebody with the right to do so aborted it, or suspended its job."""


FAILURE_CLASS: dict[FailureReason, FailureClass] = {
    FailureReason.TURN_LIMIT: FailureClass.POLICY,
    FailureReason.TOKEN_LIMIT: FailureClass.POLICY,
    FailureReason.SESSION_TIMEOUT: FailureClass.POLICY,
    FailureReason.CONTEXT_EXCEEDED: FailureClass.POLICY,
    FailureReason.ANSWER_WRONG: FailureClass.POLICY,
    FailureReason.OOM_KILLED: FailureClass.POLICY,
    FailureReason.STORAGE_EXCEEDED: FailureClass.POLICY,
    FailureReason.AGENT_EXIT: FailureClass.AGENT,
    FailureReason.AGENT_SIGNAL: FailureClass.AGENT,
    FailureReason.AGENT_MISSING: FailureClass.AGENT,
    FailureReason.ESCAPED: FailureClass.AGENT,
    FailureReason.NODE_PRESSURE: FailureClass.AGENT,
    FailureReason.JOURNAL_PRESSURE: FailureClass.AGENT,
    FailureReason.VERIFIER_FAILED: FailureClass.AGENT,
    FailureReason.STRAGGLER: FailureClass.AGENT,
    FailureReason.START_FAILED: FailureClass.INFRA,
    FailureReason.START_TIMEOUT: FailureClass.INFRA,
    FailureReason.ENGINE_ERROR: FailureClass.INFRA,
    FailureReason.ENGINE_LOST: FailureClass.INFRA,
    FailureReason.GATEWAY_LOST: FailureClass.INFRA,
    FailureReason.PREEMPTED: FailureClass.INFRA,
    FailureReason.EVICTED: FailureClass.INFRA,
    FailureReason.NODE_LOST: FailureClass.INFRA,
    FailureReason.NODE_REFUSED: FailureClass.INFRA,
    FailureReason.IMAGE_ERROR: FailureClass.INFRA,
    FailureReason.VERIFIER_LOST: FailureClass.INFRA,
    FailureReason.DRIVER_LOST: FailureClass.INFRA,
    FailureReason.ABORTED: FailureClass.INFRA,
}


class Cause(StrEnum):
    """Who can bring a failure about, each with nothing but what it is given."""

    SANDBOX = "sandbox"
    """What runs in the sandbox: the policy, the agent program, whatever they start."""
    JOB = "job"
    """Whoever wrote the job or may change it: its manifest, images and verifier; its trainer."""
    PLATFORM = "platform"
    """Nodes, scheduler, network, engines, gateways, drivers, and the people who run them."""


CAUSES: dict[FailureReason, tuple[Cause, ...]] = {
    FailureReason.TURN_LIMIT: (Cause.SANDBOX,),
    FailureReason.TOKEN_LIMIT: (Cause.SANDBOX,),
    FailureReason.SESSION_TIMEOUT: (Cause.SANDBOX,),
    FailureReason.CONTEXT_EXCEEDED: (Cause.SANDBOX,),
    FailureReason.ANSWER_WRONG: (Cause.SANDBOX,),
    FailureReason.OOM_KILLED: (Cause.SANDBOX,),
    FailureReason.STORAGE_EXCEEDED: (Cause.SANDBOX,),
    FailureReason.AGENT_EXIT: (Cause.SANDBOX, Cause.JOB),
    FailureReason.AGENT_SIGNAL: (Cause.SANDBOX, Cause.JOB, Cause.PLATFORM),
    FailureReason.AGENT_MISSING: (Cause.JOB,),
    FailureReason.ESCAPED: (Cause.SANDBOX,),
    FailureReason.NODE_PRESSURE: (Cause.SANDBOX, Cause.PLATFORM),
    FailureReason.JOURNAL_PRESSURE: (Cause.SANDBOX, Cause.JOB, Cause.PLATFORM),
    FailureReason.VERIFIER_FAILED: (Cause.SANDBOX, Cause.JOB),
    FailureReason.STRAGGLER: (Cause.SANDBOX, Cause.JOB, Cause.PLATFORM),
    FailureReason.START_FAILED: (Cause.JOB, Cause.PLATFORM),
    FailureReason.START_TIMEOUT: (Cause.JOB, Cause.PLATFORM),
    FailureReason.ENGINE_ERROR: (Cause.JOB, Cause.PLATFORM),
    FailureReason.ENGINE_LOST: (Cause.PLATFORM,),
    FailureReason.GATEWAY_LOST: (Cause.PLATFORM,),
    FailureReason.PREEMPTED: (Cause.PLATFORM,),
    FailureReason.EVICTED: (Cause.PLATFORM,),
    FailureReason.NODE_LOST: (Cause.PLATFORM,),
    FailureReason.NODE_REFUSED: (Cause.JOB, Cause.PLATFORM),
    FailureReason.IMAGE_ERROR: (Cause.JOB, Cause.PLATFORM),
    FailureReason.VERIFIER_LOST: (Cause.JOB, Cause.PLATFORM),
    FailureReason.DRIVER_LOST: (Cause.PLATFORM,),
    FailureReason.ABORTED: (Cause.JOB, Cause.PLATFORM),
}
"""The law, held by tests/adversary: SANDBOX is among them where the class is not `infra`, and only there. AGENT_MISSING
is the one reason that only the job can bring about: nothing ever ran."""
