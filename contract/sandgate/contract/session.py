"""Messages about a session between the rooms: its creation, its handle, its summary, its outcome. (pure)

snake_case JSON of the control API (docs/reference/gateway.md). Reading is lenient about further fields (a newer
gateway may say more) and strict about those named here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from sandgate.contract.choices import CutTurns
from sandgate.contract.errors import InvalidBody
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.storable import unstorable, well_formed

Json = Any

BY_ITSELF: Final = (None, FailureReason.ANSWER_WRONG)
"""Reasons of an end that the agent chose: it said all it had to say."""
REWARD_MAX: Final = float(2**128 - 2**104)
"""What a float32 tensor holds. No session has the turns whose sum of such would be beyond a float64."""
OUTCOME_BYTES_MAX: Final = 4096
"""Bytes of a container's termination message: Kubernetes keeps no more."""
CURSOR_STEPS_S: Final = 1e6
"""Of a gateway's events: a life's cursors start at its start in microseconds, so that none of an earlier life is ever
mistaken for its own; 2**53 of them last until the year 2255."""
DROPPED: Final = "/dropped"
"""Name in a record's `reward_info` under which it says what was left out of it, and why. Names that begin with a slash
are Sandgate's own."""
COMPLETE: Final = "complete"
"""Name in a record's `reward_info` of what the agent said with /complete, where that is not the reward's own source."""
PUBLIC: Final = "public"
"""Name in a task's `data` of what its agent may see."""
DETAIL_CHARS_MAX: Final = 1024
"""Of a failure's text; it travels in records and conditions."""


class SessionState(StrEnum):
    """Where a session stands at its gateway."""

    OPEN = "open"
    COMPLETE = "complete"
    """The agent said it is done; it takes no more turns."""
    FINALIZED = "finalized"
    ABORTED = "aborted"

    @property
    def ended(self) -> bool:
        """Its tree is final."""
        return self in (SessionState.FINALIZED, SessionState.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """Body of POST /v1/sessions. The same `session_id` again gives the same handle."""

    session_id: str
    uid: str = ""
    """The task; sessions of one job and uid are a group."""
    sample_index: int = 0
    group_size: int = 1
    job: str = ""
    attempt: int = 0
    model: str = ""
    sampling: dict[str, Json] = field(default_factory=dict)
    limits: dict[str, Json] = field(default_factory=dict)
    reward_source: str = "trainer"
    cut_turns: str = CutTurns.TRAIN.value
    task: Json = None
    metadata: dict[str, Json] = field(default_factory=dict)

    def body(self) -> dict[str, Json]:
        """As JSON, without what is left to the gateway, and what an older one would refuse though it means nothing
        new."""
        members = {name: value for name, value in asdict(self).items() if value not in ("", None, {})}
        if self.cut_turns == CutTurns.TRAIN:
            del members["cut_turns"]
        return members


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHandle:
    """What an agent needs to reach its session. `repr` hides the keys: they belong in no log."""

    session_id: str
    base_url: str
    anthropic_base_url: str
    complete_url: str
    reward_url: str
    api_key: str = field(repr=False)
    reward_key: str = field(repr=False)
    expires_at: float
    """Unix seconds."""

    @classmethod
    def of(cls, body: Json) -> SessionHandle:
        """From the gateway's answer. Raises InvalidBody."""
        value = _object(body, "session handle")
        names = ("session_id", "base_url", "anthropic_base_url", "complete_url", "reward_url")
        members = {name: _text(value, name) for name in (*names, "api_key", "reward_key")}
        return cls(**members, expires_at=_number(value, "expires_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """How a session stands: GET /v1/sessions/{id}."""

    session_id: str
    state: SessionState
    job: str = ""
    uid: str = ""
    sample_index: int = 0
    attempt: int = 0
    group_size: int = 1
    turns: int = 0
    cut: int = 0
    """Calls that the agent let go of, of `turns` and beside them."""
    tokens: int = 0
    """Unique tokens of its tree."""
    sampled_tokens: int = 0
    forks: dict[str, int] = field(default_factory=dict)
    """ForkReason -> how often."""
    in_flight: int = 0
    limit_reached: str | None = None
    """`turns`, `totalTokens`, `journalBytes`, `journalShare` or `context`: what refused a turn."""
    engine_errors: int = 0
    """Turns that the engine failed, after all retries, for no reason that lies in the request; and calls for which the
    journal could not be written."""
    engine_failing: int | None = None
    """Of them, those since its last turn: what an agent got over explains nothing. None: an older gateway does not
    say."""
    engine_reason: str = ""
    """Reason code of the last of them, in this life of the gateway."""
    engine_error: str = ""
    """What was said then, for people."""
    reward: float | None = None
    complete_info: dict[str, Json] | None = None
    """reward_info of the agent's /complete; a listing leaves it out."""
    has_complete_info: bool = False
    """It said something there, whether or not that stands in `complete_info`."""
    committed: bool = False
    """All its trajectories were acknowledged. Attempts that do not count for their group never are."""
    retired: bool = False
    """Its data were delivered, acknowledged and deleted; of what stands here only its end is still known."""
    failure_class: str | None = None
    failure_reason: str | None = None
    traceback: bool = False
    """By its driver's word it exited with 1 and a Python traceback, where exit codes are rewards: it looks wrong, and
    crashed."""
    failure_detail: str = ""
    """For people."""
    turned_at: float = 0.0
    """When its last turn was kept; 0: there is none, or an older gateway does not say."""
    restarted_at: float | None = None
    """When its gateway's present life began, if that was after it was opened; unix seconds."""
    asked_again_at: float | None = None
    """When its agent first asked for a turn in that life. A connection whose other end lost its power says nothing:
    agents wait on it for as long as their client does, ten minutes in most."""
    created_at: float = 0.0
    changed_at: float = 0.0
    metadata: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Json) -> SessionSummary:
        """From the gateway's answer; absent fields have their defaults. Raises InvalidBody."""
        value = _object(body, "session")
        members = {name: value[name] for name in cls.__dataclass_fields__ if value.get(name) is not None}
        members["session_id"] = _text(value, "session_id")
        try:
            members["state"] = SessionState(str(value.get("state")))
        except ValueError as error:
            raise InvalidBody(
                f"state: {value.get('state')!r} is not a session state", field="state"
            ) from error
        return cls(**members)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """How a session ended, as its driver saw it: what finalize is told. Ended well: no failure class."""

    failure_reason: FailureReason | None = None
    detail: str = ""
    """For people, cut to DETAIL_CHARS_MAX."""
    reward: float | None = None
    reward_info: dict[str, Json] = field(default_factory=dict)
    discount: float = 1.0
    """Also of rewards that are not `reward`: those that were given to the gateway before."""

    @property
    def failure_class(self) -> FailureClass | None:
        return None if self.failure_reason is None else FAILURE_CLASS[self.failure_reason]

    def body(self, *, trajectories: bool = False) -> dict[str, Json]:
        """Body of POST .../finalize. `trajectories`: answer with them."""
        outcome: dict[str, Json] = {"complete": self.failure_reason in BY_ITSELF}
        if self.failure_reason is not None:
            outcome["failure_class"] = FAILURE_CLASS[self.failure_reason].value
            outcome["failure_reason"] = self.failure_reason.value
            outcome["detail"] = well_formed(self.detail[:DETAIL_CHARS_MAX])
        body: dict[str, Json] = {"outcome": outcome, "trajectories": trajectories}
        info = self.reward_info
        if why := unstorable(info):
            info = {DROPPED: f"reward_info {why}"}
        if self.reward is not None:
            body |= {"reward": self.reward, "reward_info": info, "discount": self.discount}
        elif info:
            body["reward_info"] = info
        if self.discount != 1.0:
            body["discount"] = self.discount
        return body

    def without_content(self, why: str) -> SessionOutcome:
        """The same end and reward, and nothing that anybody else chose but a note that says `why`."""
        note = {DROPPED: well_formed(why[:DETAIL_CHARS_MAX])}
        return replace(self, detail="", reward_info=note)


def task_of(uid: str, prompt: Json, data: Json, sample_index: int) -> dict[str, Json]:
    """The task document: SessionSpec.task of every driver, and what a verifier finds in its file."""
    return {"uid": uid, "prompt": prompt, "data": data, "sample_index": sample_index}


def agents_task(document: Json) -> dict[str, Json] | None:
    """What an agent may see of a task document: who it is, its prompt, and of its data what is under PUBLIC. The rest
    (ground truth, tests, whatever somebody put beside) is the verifier's and the trainer's. None: it is of another
    shape, and so nothing of it."""
    if not isinstance(document, Mapping):
        return None
    data = document.get("data")
    shown = {PUBLIC: data[PUBLIC]} if isinstance(data, Mapping) and PUBLIC in data else None
    return task_of(
        document.get("uid", ""), document.get("prompt", ""), shown, document.get("sample_index", 0)
    )


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """What a container left: `{"reward": number, "reward_info": object}`, or any other text."""

    reward: float | None = None
    reward_info: dict[str, Json] = field(default_factory=dict)
    value: Json = None
    """The whole message: its JSON value, or the text itself where that could not be kept."""
    cut: int = 0
    """At so many bytes; what is left is no JSON object any more, and was to be one."""


def parse_termination(raw: bytes, kept: int = OUTCOME_BYTES_MAX) -> TerminationMessage:
    """Never raises: what cannot be understood is text, without a reward. Only OUTCOME_BYTES_MAX bytes are looked at,
    as Kubernetes keeps no more. All of it can be kept (`storable`): an info that cannot is left out, and says so.
    `kept`: bytes that were kept of it, where that is less."""
    text = raw[:OUTCOME_BYTES_MAX].decode("utf-8", "replace").strip()
    return termination_of(text, kept if len(raw) >= kept else 0)


def termination_text(message: TerminationMessage) -> str:
    """A text that `termination_of` makes this message of; without a NUL, which no API server takes. That it was cut is
    not in it."""
    said = message.value
    if isinstance(said, str) and "\x00" not in said and termination_of(said, message.cut) == message:
        return said
    return "" if said is None else json.dumps(said, ensure_ascii=False)


def termination_of(text: str, cut: int = 0) -> TerminationMessage:
    """As `parse_termination`, of a text that may be longer: other JSON of the same value. `cut`: bytes at which it may
    have been cut."""
    if not text:
        return TerminationMessage()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if not cut or not text.startswith("{"):
            return TerminationMessage(value=text)
        return TerminationMessage(None, {DROPPED: f"the message was cut at {cut:,} bytes"}, text, cut)
    whole = text if unstorable(value) else value
    if not isinstance(value, dict):
        return TerminationMessage(value=whole)
    reward, info = value.get("reward"), value.get("reward_info")
    if not isinstance(info, dict):
        info = {}
    elif why := unstorable(info):
        info = {DROPPED: f"reward_info {why}"}
    return TerminationMessage(finite(reward), info, whole)


def finite(value: Json) -> float | None:
    """`value` as a reward, or None if it is not a finite number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= REWARD_MAX else None  # no comparison holds of NaN


def _object(body: Json, what: str) -> Mapping[str, Json]:
    if not isinstance(body, Mapping):
        raise InvalidBody(f"{what}: the gateway answered {type(body).__name__}, not an object")
    return body


def _text(value: Mapping[str, Json], name: str) -> str:
    if not isinstance(value.get(name), str):
        raise InvalidBody(f"{name}: the gateway left it out", field=name)
    return str(value[name])


def _number(value: Mapping[str, Json], name: str) -> float:
    if not isinstance(value.get(name), int | float):
        raise InvalidBody(f"{name}: the gateway left it out", field=name)
    return float(value[name])
