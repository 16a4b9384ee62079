"""Every reason code and the exception tree.

The *reason* is API (metrics labels, ``x-sandgate-reason``, conditions, records); the text is for people.

SandgateError
 +- BadRequest            400  the caller must change the request
 |   +- InvalidBody            a field is missing, of the wrong type or out of bounds
 |   +- Unsupported            a known field that cannot be honoured
 |   +- PromptTooLong          the rendered prompt exceeds the window
 |   +- LimitReached           the session used up its turns or tokens
 |   +- RefusedByEngine        the engine refuses what the request asks for
 |   +- BadManifest            a RolloutJob manifest does not say what it must
 +- Unauthorized          401  no key, or one that does not verify
 +- Forbidden             403  a good key, for something else
 +- NotFound              404  no such session, model, lease, path
 +- Conflict              409  the same name with another meaning
 +- Gone                  410  the session has ended
 +- TooLarge              413  the body exceeds the limit
 +- Overloaded            429  come back after ``retry_after``
 +- EngineFailed          502  the engine answered wrongly
 |   +- ModelNotServed         it has no model of that name
 |   +- TokenizerMismatch      its vocabulary is another one
 +- Unavailable           503  come back after ``retry_after``
 |   +- Paused                 a weight update holds new turns
 |   +- Draining               this process is shutting down
 |   +- JournalUnavailable     a turn cannot be made durable now
 |   +- EngineUnavailable      no replica answers
 |   +- MediaUnavailable       a host of images does not give one now
 +- RecordError                a stored record cannot be trusted
     +- NewerRecord            written by a newer version
     +- CorruptRecord          damaged
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar


class ForkReason(StrEnum):
    """Why a turn starts a new root or leaves its branch. A fork is data, not an error."""

    NEW_ROOT = "new_root"
    """A later conversation of the session that shares nothing with an earlier one."""
    SYSTEM_CHANGED = "system_changed"
    """Same history under another system prompt."""
    TOOLS_CHANGED = "tools_changed"
    """Same history under other tools."""
    TEMPLATE_KWARGS_CHANGED = "template_kwargs_changed"
    """Same history under other variables of the chat template (`chat_template_kwargs`, `reasoning_effort`)."""
    ASSISTANT_EDITED = "assistant_edited"
    """An assistant turn came back as something that was not sampled."""
    ASSISTANT_DROPPED = "assistant_dropped"
    """A sampled assistant turn was left out of the history."""
    USER_OR_TOOL_EDITED = "user_or_tool_edited"
    """A user or tool message differs from what was sent before."""
    HISTORY_TRUNCATED = "history_truncated"
    """The history is a proper part of what was said before; also of a call that was let go of, and committed when the
    next one had been asked."""
    COMPACTION = "compaction"
    """The client replaced its history by a summary, or asks for that summary."""
    SIDE_CALL = "side_call"
    """A title, summary, sub-agent or judge call beside the main conversation."""
    RETRY_RESAMPLED = "retry_resampled"
    """The same request was sampled again."""
    TEMPLATE_NOT_ADDITIVE = "template_not_additive"
    """The tail cannot be proved to render on its own for this chat template."""
    HISTORY_REWRITTEN_BY_TEMPLATE = "history_rewritten_by_template"
    """History policy `template`: the template renders the past differently than it was sampled."""
    MULTIMODAL_NOT_BRIDGEABLE = "multimodal_not_bridgeable"
    """Images or videos in the tail and no family renderer that can bridge them."""
    TOKENS_DIFFER = "tokens_differ"
    """Messages agree but ids do not: the stored ids are not the head of the prompt."""


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
    """The process that drove it died."""
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


class SandgateError(Exception):
    """Root of the tree. `reason` is API; `status` the HTTP status; `retry_after` seconds or None."""

    reason: ClassVar[str] = "Internal"
    status: ClassVar[int] = 500
    retry_after: float | None = None

    def __reduce__(self) -> tuple[Callable[..., SandgateError], tuple[Any, ...]]:
        """Errors cross processes (Ray, pools of workers); Python would call `__init__` with the message alone."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[SandgateError], args: tuple[Any, ...], state: dict[str, Any]) -> SandgateError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class BadRequest(SandgateError):
    """400: the caller must change the request; retrying cannot help."""

    reason, status = "BadRequest", 400

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidBody(BadRequest):
    """A field is missing, of the wrong type or out of bounds. `field` is its path (``messages[0].role``)."""

    reason = "InvalidBody"


class Unsupported(BadRequest):
    """A known field asks for what cannot be honoured here."""

    reason = "Unsupported"


class ToolsNotSupported(Unsupported):
    """The model would never see the tools, or never be read to have called one."""

    reason = "ToolsNotSupported"


class PromptTooLong(BadRequest):
    """The rendered prompt leaves no room for a single token in the model's window."""

    reason = "PromptTooLong"

    def __init__(self, *, tokens: int, limit: int) -> None:
        super().__init__(f"prompt has {tokens} tokens; this model takes {limit}", field="messages")
        self.tokens, self.limit = tokens, limit


class LimitReached(BadRequest):
    """The session used up what its job allows (turns, total tokens), or its share of a journal that is nearly full."""

    reason = "LimitReached"

    def __init__(self, what: str, *, used: int, limit: int) -> None:
        super().__init__(f"session limit reached: {what} {used} of {limit}", field=what)
        self.what, self.used, self.limit = what, used, limit


class RefusedByEngine(BadRequest):
    """The engine refuses what this request asks for; the words are its own."""

    reason = "RefusedByEngine"


class BadManifest(BadRequest):
    """A manifest does not say what it must. `field` is its path (``spec.groupSize``)."""

    reason = "BadManifest"


class Unauthorized(SandgateError):
    """401: no key, or one that does not verify or has expired."""

    reason, status = "Unauthorized", 401


class Forbidden(SandgateError):
    """403: the key is good, but for another session or scope."""

    reason, status = "Forbidden", 403


class NotFound(SandgateError):
    """404: no such session, model, lease or path."""

    reason, status = "NotFound", 404


class Conflict(SandgateError):
    """409: the same name was used with another meaning."""

    reason, status = "Conflict", 409

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """`field`: the one of the request whose value must be another, if it is one."""
        super().__init__(message)
        self.field = field


class Gone(SandgateError):
    """410: the session has ended."""

    reason, status = "SessionEnded", 410


class TooLarge(SandgateError):
    """413: the body exceeds the limit."""

    reason, status = "TooLarge", 413


class Overloaded(SandgateError):
    """429: too many at once; `retry_after` seconds."""

    reason, status = "Overloaded", 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(SandgateError):
    """502: the engine refused or answered what cannot be trusted."""

    reason, status = "EngineFailed", 502


class ModelNotServed(EngineFailed):
    """The engine does not serve the model that it was asked for: spec.model.name, or spec.engine.model, is wrong."""

    reason = "ModelNotServed"


class TokenizerMismatch(EngineFailed):
    """Engine and gateway do not have the same vocabulary: spec.model.tokenizer is another model's."""

    reason = "TokenizerMismatch"


class Unavailable(SandgateError):
    """503: not now; `retry_after` seconds."""

    reason, status = "Unavailable", 503

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Paused(Unavailable):
    """A weight update held this turn for longer than the pause timeout."""

    reason = "Paused"


class Draining(Unavailable):
    """This process is shutting down and takes no new turns."""

    reason = "Draining"


class JournalUnavailable(Unavailable):
    """The journal cannot make a turn durable (disk full, read-only, corrupt)."""

    reason = "JournalUnavailable"


class EngineUnavailable(Unavailable):
    """No engine replica answers."""

    reason = "EngineUnavailable"


class MediaUnavailable(Unavailable):
    """A host of images (`media.allowedHosts`) does not give one that a request names, and may give it later."""

    reason = "MediaUnavailable"

    def __init__(self, message: str, *, retry_after: float = 1.0, unreached: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.unreached = unreached
        """The host itself was not reached, which no address in it can bring about."""


class RecordError(SandgateError):
    """A stored record cannot be trusted."""

    reason = "RecordError"


class NewerRecord(RecordError):
    """Written by a newer version of the software: refused, never half understood."""

    reason = "NewerRecord"

    def __init__(self, *, seen: int, known: int) -> None:
        super().__init__(f"record has schema {seen}; this version knows up to {known}")
        self.seen, self.known = seen, known


class CorruptRecord(RecordError):
    """Damaged, or of a length that cannot be right."""

    reason = "CorruptRecord"
