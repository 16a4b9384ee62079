"""Session: spec, phase, tree, counts, limits and rewards of one session, folded from its records. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from msgspec import UNSET

from sandgate.contract.choices import TurnRole
from sandgate.contract.errors import (
    BadRequest,
    Conflict,
    EngineFailed,
    Gone,
    LimitReached,
    ModelNotServed,
    PromptTooLong,
    SandgateError,
)
from sandgate.contract.failure_reasons import FailureReason
from sandgate.gateway.conversation.kept_responses import KeptResponses
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.journal.records import (
    CUT,
    Completed,
    Delivered,
    FetchedImage,
    ImagesFetched,
    Intent,
    ItemsKept,
    LetGo,
    Opened,
    PicturesKept,
    Record,
    ResponseForgotten,
    ResponseKept,
    Retired,
    Rewarded,
    Sealed,
    TurnCommitted,
    size,
)
from sandgate.gateway.service.reward_so_far import RewardSoFar
from sandgate.gateway.trajectories.linearize import main_reward

CONTEXT = "context"
"""The limit that a prompt reached which was too long."""
JOURNAL_SHARE = "journalShare"
"""The limit of who has more of a nearly full journal than its share. It is no number that a job sets."""
ERROR_CHARS_MAX = 512
"""Characters of an engine's error in each summary of the session."""


REWARDS_AGAIN = 1_000
"""A session's newest rewards, of which one that is sent again by its id is known: a retry comes within minutes."""
UNDELIVERED_MAX = 16
"""Answers to one request that are kept for its retries: an agent that samples best of n asks as often at once."""


class SessionPhase(StrEnum):
    """The phases of a session."""

    OPEN = "open"
    COMPLETE = "complete"
    """The agent said it is done; late turns are refused."""
    FINALIZED = "finalized"
    ABORTED = "aborted"


@dataclass(slots=True)
class Session:
    """One session. `apply` is the only way in which its recorded state changes, live and in replay alike."""

    session_id: str
    spec: dict[str, Any] = field(default_factory=dict)
    opened_at: float = 0.0
    changed_at: float = 0.0
    heard_at: float = 0.0
    """When it last changed in this life of the gateway, or was read from the journal; by the clock of leases."""
    phase: SessionPhase = SessionPhase.OPEN
    tree: Tree = field(default_factory=Tree)
    kept: KeptResponses = field(default_factory=KeptResponses)
    pictures: set[bytes] = field(default_factory=set)
    """Digests of those that the journal has; the pictures themselves are nowhere in memory."""
    fetched: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Key of an address -> digest of its picture, and how many pixels it came with."""
    answers: dict[bytes, list[list[str]]] = field(default_factory=dict)
    """Request digest -> its committed answers that were not delivered, and its newest; each as the ids of its turns, in
    choice order."""
    asked_anew: set[bytes] = field(default_factory=set)
    """Digests in `answers` that were asked again, as new requests, and were refused or failed: what says to be a retry
    is one of that."""
    cut: int = 0
    """Cut turns in the tree."""
    let_go: int = 0
    """Calls that were let go of before any of their tokens was sent: not in the tree, but they count as turns where
    turns are limited."""
    intents: dict[bytes, str] = field(default_factory=dict)
    """Digest -> turn id of a generation that was begun and is not committed."""
    delivered: set[str] = field(default_factory=set)
    partly: set[str] = field(default_factory=set)
    """Turns of which a stream that was let go of had sent a part."""
    rewards: list[Rewarded] = field(default_factory=list)
    so_far: RewardSoFar = field(default_factory=RewardSoFar)
    completed: Completed | None = None
    sealed: Sealed | None = None
    turns: int = 0
    begun: int = 0
    """Choices of which the generation was begun, whatever became of it: those of calls in flight too."""
    evicted: bool = False
    """The tree was dropped from memory; the journal still has it."""
    tokens: int = 0
    """Unique tokens in the tree: contexts + samples."""
    sampled: int = 0
    journalled: int = 0
    """Bytes of the session's records."""
    forks: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    """Turns by role; those of journals without roles are not counted."""
    spelt: int = 0
    """Control tokens that the clients' text spelt."""
    limit_reached: str = ""
    """What is likely to be the reason of its end. CONTEXT: its main conversation has had no turn since."""
    engine_errors: int = 0
    engine_failing: int = 0
    """Engine errors since the session's last turn."""
    engine_error: tuple[str, str] = "", ""
    """(reason, text) of the last engine error."""
    turned_at: float = 0.0
    """When the last turn was committed."""
    restarted_at: float = 0.0
    """When this life of the gateway read the session from the journal; 0: it was opened in this life."""
    asked_again_at: float = 0.0
    """When the agent first asked for a turn after `restarted_at`."""
    in_flight: int = 0
    counting: int = 0
    """Requests in flight whose prompts are only counted: they use up no turns."""
    recording: int = 0
    """Calls of `Sessions.record` that are not through."""
    closing: bool = False
    """The seal is being made durable. Set before that is awaited, so that nothing is recorded behind the seal."""
    retired: Retired | None = None
    """All that is kept of it, once that is being written."""
    unsure: set[str] = field(default_factory=set)
    """Turns that may have been delivered just before a kill lost the record of it."""

    def apply(self, record: Record) -> None:
        """Folds one record in. Idempotent for turns."""
        self.changed_at = record.at
        self.journalled += size(record)
        match record:
            case Opened():
                self.spec, self.opened_at = record.spec, record.at
            case Intent():
                self.intents[record.digest] = record.turn
                self.begun += 1
            case TurnCommitted():
                self._apply_turn(record)
            case LetGo():
                self.let_go += 1
            case Delivered():
                delivered = self.partly if record.partly else self.delivered
                (self.unsure if record.unsure else delivered).add(record.turn)
            case ItemsKept() | ResponseKept() | ResponseForgotten():
                if not self.ended:
                    self.kept.apply(record)
            case PicturesKept():
                self.pictures.update(picture.digest for picture in record.pictures)
            case ImagesFetched():
                self._apply_fetched(record.images)
            case Rewarded():
                self._apply_reward(record)
            case Completed() | Sealed():
                self._apply_end(record)
            case _:
                raise TypeError(f"{type(record).__name__} is not a record of a session")

    def _apply_fetched(self, images: tuple[FetchedImage, ...]) -> None:
        if not self.ended:
            for image in images:
                self.fetched.setdefault(image.key, (image.digest, image.pixels))

    def _apply_reward(self, record: Rewarded) -> None:
        self.rewards.append(record)
        turn = self.tree.by_id.get(record.turn or "")
        self.so_far.given(record, b"" if turn is None else turn.head_key)

    def given_by(self, reward_id: str) -> Rewarded | None:
        """What was given by this id, of the newest REWARDS_AGAIN rewards."""
        newest = islice(reversed(self.rewards), REWARDS_AGAIN)
        return next((one for one in newest if one.reward_id == reward_id), None)

    def _apply_end(self, record: Completed | Sealed) -> None:
        if isinstance(record, Completed):
            self.completed = self.completed or record
            if self.phase is SessionPhase.OPEN:
                self.phase = SessionPhase.COMPLETE
        elif not self.ended:
            self.sealed = record
            self.phase = SessionPhase.ABORTED if record.aborted else SessionPhase.FINALIZED

    def _apply_turn(self, record: TurnCommitted) -> None:
        if record.turn in self.tree or self.ended:
            return
        self.tree.apply(record)
        self.turns += 1
        self.begun = max(self.begun, self.turns)  # an intent may be lost: it is not waited for
        self.turned_at = record.at
        if record.finish == CUT:  # answers nothing; it may be what an engine's failure left
            self.cut += 1
            self._count(record)
            return
        self.engine_failing = 0
        shortened = self.limit_reached == CONTEXT and record.role in ("", TurnRole.MAIN)
        if shortened or self.limit_reached == JOURNAL_SHARE:
            self.limit_reached = ""  # it made its history shorter, or others made room, and it went on
        self.intents.pop(record.digest, None)
        earlier = self.answers.get(record.digest, [])
        if record.index == 0 or not earlier:
            lost = [answer for answer in earlier if self._undelivered(answer)]
            self.answers[record.digest] = [*lost[1 - UNDELIVERED_MAX :], [record.turn]]
            self.asked_anew.discard(record.digest)
        else:
            earlier[-1].append(record.turn)
        self._count(record)

    def _undelivered(self, turns: Sequence[str]) -> bool:
        return any(turn not in self.delivered for turn in turns)

    def _count(self, record: TurnCommitted) -> None:
        self.tokens += (len(record.context) + len(record.ids)) // 4
        self.sampled += len(record.ids) // 4
        self.spelt += record.spelt
        if record.fork:
            self.forks[record.fork] = self.forks.get(record.fork, 0) + 1
        if record.role:
            self.roles[record.role] = self.roles.get(record.role, 0) + 1
        if record.role in ("", TurnRole.MAIN):
            self.so_far.turned(record.head_key)

    @property
    def drawn_for(self) -> str:
        """What its seeds are made of, beside its number among the samples of that: its task. Of AReaL's sessions
        several have one task and no number, so each is its own."""
        return self.session_id if "areal" in self.spec else str(self.spec.get("uid") or "")

    @property
    def ended(self) -> bool:
        """Whether no more turns can be committed."""
        return self.phase in (SessionPhase.FINALIZED, SessionPhase.ABORTED)

    def refuse_if_ended(self) -> None:
        """Raises Gone unless the session takes turns."""
        if self.closing:
            raise Gone(f"session {self.session_id} is being closed")
        if self.phase is not SessionPhase.OPEN:
            raise Gone(f"session {self.session_id} is {self.phase.value}")

    def refuse_if_retired(self) -> None:
        """Raises Gone if its turns are in the journal no more, or are just being deleted there."""
        if self.retired is not None:
            raise Gone(
                f"session {self.session_id} was delivered, acknowledged and retired: its data are with the trainer that"
                " acknowledged them, and no longer here (limits.retire_s)"
            )

    def refuse_over_limits(
        self, *, turns: int, total_tokens: int, journal_bytes: int, asked: int = 1
    ) -> None:
        """Raises LimitReached, and remembers the limit as the likely reason of the session's end. 0 = no limit.

        Turns in flight count, too: they are reserved.
        """
        used = self.turns + self.let_go
        if turns and used + self.in_flight + asked > turns:
            if used + asked > turns:
                self.limit_reached = "turns"
            raise LimitReached("turns", used=used + self.in_flight, limit=turns)
        if total_tokens and self.tokens >= total_tokens:
            self.limit_reached = "totalTokens"
            raise LimitReached("totalTokens", used=self.tokens, limit=total_tokens)
        if journal_bytes and self.journalled >= journal_bytes:
            self.limit_reached = "journalBytes"
            raise LimitReached("journalBytes", used=self.journalled, limit=journal_bytes)

    def asked(self, now: float) -> None:
        """The agent asks for a turn, whatever becomes of it."""
        if self.restarted_at and not self.asked_again_at:
            self.asked_again_at = now

    def call_failed(self, error: SandgateError, *, shaped: bool) -> None:
        """Counts a failure of the engine, or of the journal, unless the reason lies in the call. What the engine
        refuses (400) is the caller's doing, and a wrong answer to a grammar that the caller chose (`shaped`) may be: an
        agent must not be able to make its engine fail."""
        if isinstance(error, PromptTooLong):
            self.limit_reached = self.limit_reached or CONTEXT
        elif not isinstance(error, BadRequest) and not (shaped and _of_its_form(error)):
            self.engine_errors += 1
            self.engine_failing += 1
            self.engine_error = error.reason, " ".join(str(error).split())[:ERROR_CHARS_MAX]

    def replayable(
        self, digest: bytes, *, retry: bool, n: int, told: Collection[str] = ()
    ) -> list[Turn] | None:
        """The committed answer that this request must get again, if the request is a retry: one that was never
        delivered in full, the oldest first (equal requests may be asked at once); else the newest, if the request says
        that it is one (`retry`). `told`: turns that another connection is being told just now."""
        answers = self.answers.get(digest, [])
        lost = (answer for answer in answers if len(answer) == n and self._undelivered(answer))
        turns = next((answer for answer in lost if not any(turn in told for turn in answer)), None)
        if turns is None and retry and digest not in self.asked_anew and answers and len(answers[-1]) == n:
            turns = answers[-1]
        return [self.tree[turn] for turn in turns] if turns is not None else None

    def not_answered(self, digest: bytes) -> None:
        """A request was refused, or failed."""
        if digest in self.answers:
            self.asked_anew.add(digest)

    def begin(self, choices: int) -> int:
        """Counts generations as begun, before their intents are written. Returns how many were begun before."""
        before = self.begun
        self.begun += choices
        return before

    def was_cut(self, digest: bytes) -> bool:
        """Whether a generation for this request was begun and never committed (the process was killed under it)."""
        return digest in self.intents

    def evict(self) -> None:
        """Drops the tree of an ended session from memory; counts stay. The journal can give it back."""
        if self.ended:
            self.tree, self.answers, self.delivered, self.evicted = Tree(), {}, set(), True
            self.asked_anew, self.kept, self.fetched = set(), KeptResponses(), {}
            self.intents, self.unsure, self.partly = {}, set(), set()
            self.so_far.close()

    def same_spec(self, spec: dict[str, Any]) -> None:
        """Raises Conflict if a repeated creation of the session means another one."""
        for name in ("job", "uid", "sample_index", "attempt"):
            if spec.get(name) is not None and spec[name] != self.spec.get(name):
                raise Conflict(f"session {self.session_id} exists with another {name}")

    def summary(self, *, whole: bool = True) -> dict[str, Any]:
        """The answer of GET /v1/sessions/{id}. Not `whole`: a line of a listing, without what an agent can make
        long."""
        spec, info = self.spec, self.completed.info if self.completed else None
        return {
            "session_id": self.session_id,
            "job": spec.get("job", ""),
            "uid": spec.get("uid", ""),
            "sample_index": spec.get("sample_index", 0),
            "attempt": spec.get("attempt", 0),
            "group_size": spec.get("group_size", 1),
            "state": self.phase.value,
            "turns": self.turns,
            "cut": self.cut + self.let_go,
            "tokens": self.tokens,
            "sampled_tokens": self.sampled,
            "forks": dict(self.forks),
            "roles": dict(self.roles),
            "special_tokens_in_text": self.spelt,
            "in_flight": self.in_flight,
            "limit_reached": self.limit_reached or None,
            "engine_errors": self.engine_errors,
            "engine_failing": self.engine_failing,
            "engine_error": self.engine_error[1],
            "engine_reason": self.engine_error[0],
            "turned_at": self.turned_at,
            "restarted_at": self.restarted_at or None,
            "asked_again_at": self.asked_again_at or None,
            "created_at": self.opened_at,
            "changed_at": self.changed_at,
            "complete_info": info if whole else None,
            "has_complete_info": bool(info),
            "reward": self.reward,
            "failure_class": self.sealed.failure_class if self.sealed else None,
            "failure_reason": self.sealed.failure_reason if self.sealed else None,
            "traceback": self._crashed(),
            "failure_detail": self.sealed.detail if self.sealed else "",
            "metadata": spec.get("metadata") or {},
            "retired": self.retired is not None,
        }

    def _crashed(self) -> bool:
        """Whether the session's driver saw an exit with 1 and a traceback; `reward_info` of others does not count."""
        sealed = self.sealed
        wrong = sealed is not None and sealed.failure_reason == FailureReason.ANSWER_WRONG
        return wrong and sealed is not None and sealed.info.get("traceback") is True

    @property
    def reward(self) -> float | None:
        """That of its main row: the session's own, or what the rewards of turns come to (`trajectories.credit`). None
        of an aborted session, which has no rows. Until the seal says what turns come to (an older gateway's does
        not), that is what it is so far."""
        if self.phase is SessionPhase.ABORTED:
            return None
        if self.sealed and self.sealed.reward is not None:
            return self.sealed.reward
        if self.sealed and self.sealed.turns_worth is not UNSET and self.so_far.own is None:
            return self.sealed.turns_worth
        return self.so_far.reward

    def needs_worth(self, sealed: Sealed) -> bool:
        """Whether this seal is to say what the rewards of turns come to."""
        own = self.so_far.own if sealed.reward is None else sealed.reward
        return bool(self.rewards) and own is None and not sealed.aborted

    def worth(self, sealed: Sealed, delivered: Collection[str]) -> float | None:
        """What the rewards of its turns come to under this seal; None where they are of no row, or no row can be made.
        `delivered`: turns beside those that are known to be. Goes through the whole tree: not for the event loop."""
        try:
            return main_reward(
                self.tree.turns,
                spec=self.spec,
                delivered=self.delivered.union(delivered),
                partly=self.partly,
                rewarded=self.rewards,
                discount=sealed.discount,
            )
        except SandgateError:
            return None


def _of_its_form(error: SandgateError) -> bool:
    """Whether a grammar may have caused this error of an engine. A 400 may repeat what stands in a grammar; a 404 does
    not."""
    return isinstance(error, EngineFailed) and not isinstance(error, ModelNotServed)
