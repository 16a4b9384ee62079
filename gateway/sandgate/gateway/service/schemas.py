"""Bodies of the control API (docs/reference/gateway.md), validated by pydantic so that the OpenAPI document is true."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sandgate.contract.lease import LEASE_TTL_S, LEASES_MAX
from sandgate.contract.names import UID_CHARS_MAX
from sandgate.gateway.trajectories.credit import REWARD_MAX

SESSION_ID = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$"
"""Goes into URLs, file names and Kubernetes names."""


def _reward(value: float) -> float:
    if not abs(value) <= REWARD_MAX:  # neither is NaN
        raise ValueError("must be a finite number that float32 holds")
    return value


Reward = Annotated[float, Field(strict=True), AfterValidator(_reward)]
"""A number, as in a termination log: true and "0.25" are none."""
LaxReward = Annotated[float, AfterValidator(_reward)]
"""Also true and "0.25", which AReaL's own servers take."""
DEPTH_MAX = 100
"""Levels of nesting in what is kept for a client; orjson stops at 254."""
REWARD_INFO_BYTES_MAX = 64 * 1024
"""Of what is said with a reward, as JSON: it travels in summaries, in rows and in memory, for every session."""


def _storable(value: Any) -> Any:
    """What is kept must fit the journal, JSON and Arrow: bounded, finite, whole characters, integers of 64 bits."""
    _look(value)
    _json(value)
    return value


def _storable_info(value: dict[str, Any]) -> dict[str, Any]:
    size = len(_json(value))
    if size > REWARD_INFO_BYTES_MAX:  # before each value is looked at
        raise ValueError(f"has {size} bytes as JSON; at most {REWARD_INFO_BYTES_MAX} are kept")
    _look(value)
    return value


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot be kept: {error}") from None


def _look(value: Any) -> None:
    """Raises ValueError: too deep, or a number that is none, which orjson would write as null."""
    waiting = [(value, 1)]
    while waiting:
        one, level = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("holds a number that is not finite")
        if isinstance(one, dict | list):
            if level > DEPTH_MAX:
                raise ValueError(f"is nested deeper than {DEPTH_MAX} levels")
            waiting += [(each, level + 1) for each in (one.values() if isinstance(one, dict) else one)]


def _engine_url(text: str) -> str:
    parts = urlsplit(text)  # raises ValueError, as .port does
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be http(s)://host[:port]")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be http(s)://host[:port], without more")
    return text.rstrip("/")


EngineUrl = Annotated[str, Field(max_length=2_048), AfterValidator(_engine_url)]
Stored = Annotated[Any, AfterValidator(_storable)]
Info = Annotated[dict[str, Any], AfterValidator(_storable)]
RewardInfo = Annotated[dict[str, Any], AfterValidator(_storable_info)]


class _Body(BaseModel):
    """Unknown fields are ignored on purpose: a client may be newer. Known ones are checked strictly."""

    model_config = ConfigDict(extra="ignore", strict=False)


class SessionLimits(_Body):
    """Of one session, instead of the gateway's own; 0 = none."""

    model_config = ConfigDict(extra="ignore", strict=False, validate_by_name=True, validate_by_alias=True)

    turns: int | None = Field(default=None, ge=0, le=2**31 - 1)
    total_tokens: int | None = Field(default=None, ge=0, le=2**53, alias="totalTokens")
    journal_bytes: int | None = Field(default=None, ge=0, le=2**53, alias="journalBytes")
    prompt_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1, alias="promptTokens")
    """Of a conversation's first prompt: what the session's trainer takes. More is a 400, before anything is sampled."""
    response_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1, alias="responseTokens")
    """Of all that follows it in one conversation, sampled or not: answers end there, a longer history is a 400."""


class SessionBody(_Body):
    """What POST /v1/sessions takes. Everything has a default; without `session_id` one is made."""

    session_id: str | None = Field(default=None, pattern=SESSION_ID)
    uid: str = Field(default="", max_length=UID_CHARS_MAX)
    sample_index: int = Field(default=0, ge=0, le=1_000_000)
    group_size: int = Field(default=1, ge=1, le=65_536)
    job: str = Field(default="", max_length=253)
    attempt: int = Field(default=0, ge=0, le=10_000)
    model: str = Field(default="", max_length=512)
    sampling: Info = {}
    limits: SessionLimits = SessionLimits()
    reward_source: str = Field(default="trainer", pattern="^(agent|verifier|trainer|exitCode)$")
    cut_turns: str = Field(default="train", pattern="^(train|leave)$")
    task: Stored = None
    metadata: Info = {}


class Complete(_Body):
    """Body of /complete."""

    reward_info: RewardInfo = {}


class RewardBody(_Body):
    """Body of POST .../reward. `interaction_id`: a turn or response id; absent = the last turn that its agent was sent,
    or, where its verifier asks, the whole session."""

    reward: Reward
    interaction_id: str | None = Field(default=None, max_length=512)
    reward_info: RewardInfo = {}
    reward_id: str | None = Field(default=None, pattern=SESSION_ID)
    """Chosen by the caller, new for each reward: asking again with it, because the answer was lost, changes nothing and
    says what the first did, whatever is the last turn by then."""


class Outcome(_Body):
    """How the session ended, as its driver saw it."""

    failure_class: str | None = Field(default=None, pattern="^(policy|agent|infra)$")
    failure_reason: str | None = Field(default=None, max_length=128)
    detail: str = Field(default="", max_length=4096)
    complete: bool = True


class Finalize(_Body):
    """Body of POST .../finalize."""

    outcome: Outcome | None = None
    reward: Reward | None = None
    reward_info: RewardInfo = {}
    discount: float = Field(default=1.0, ge=0.0, le=1.0)
    trajectories: bool = True
    """False: answer without them (a driver that will lease them anyway)."""


LeaseSeconds = Annotated[float, Field(gt=0.0, le=7 * 86400.0)]


class LeaseBody(_Body):
    """Body of POST /v1/leases."""

    job: str | None = None
    max_groups: int = Field(default=1, ge=1, le=100_000)
    max_tokens: int | None = Field(default=None, ge=1)
    ttl_s: LeaseSeconds = LEASE_TTL_S
    leases: int = Field(default=1, ge=1, le=LEASES_MAX)
    """So many leases at once, each of `max_groups` groups, each acknowledged by itself; `max_tokens` is of all."""
    whole_groups: bool = True
    lease_id: str | None = Field(default=None, pattern=SESSION_ID)
    """Chosen by the trainer, new for each lease: asking again with it, because the answer was lost, gives the same;
    with `leases` all that were made with it, also if that is less than it was."""


class AckLeasesBody(_Body):
    """Body of POST /v1/leases/ack."""

    lease_ids: list[str] = Field(min_length=1, max_length=LEASES_MAX)


class RenewBody(_Body):
    """Body of POST /v1/leases/{id}/renew."""

    ttl_s: LeaseSeconds = LEASE_TTL_S
    """From now on."""


class RenewLeasesBody(RenewBody):
    """Body of POST /v1/leases/renew."""

    lease_ids: list[str] = Field(min_length=1, max_length=LEASES_MAX)


class CloseGroupBody(_Body):
    """Body of POST /v1/groups/close: no more sessions will come for this task (quorum reached, stragglers cut)."""

    job: str = ""
    uid: str


class TaskBody(_Body):
    """One task of POST /v1/tasks."""

    uid: str = Field(min_length=1, max_length=UID_CHARS_MAX)
    """As long as a manifest's: the operator makes an AgentSession of it."""
    prompt: Stored = ""
    data: Stored = None


class PushTasks(_Body):
    """Body of POST /v1/tasks. The same tasks again change nothing."""

    job: str = Field(default="", max_length=253)
    tasks: list[TaskBody] = Field(default=[], max_length=10_000)
    last: bool = False
    """No more will come: the job ends with these."""


class ForgetTasks(_Body):
    """Body of POST /v1/tasks/forget."""

    upto: int = Field(ge=0, le=2**53)


ADAPTER_CHARS = 512
"""Of a name; ours are a job's, a version and a digest."""


class EnginesBody(_Body):
    """Body of PUT /v1/engines: the whole set, base URLs without a path."""

    urls: list[EngineUrl] = Field(max_length=1_024)
    nodes: dict[EngineUrl, Annotated[str, Field(max_length=253)]] = Field(default={}, max_length=1_024)
    """URL -> name of its node, where that is known; it decides nothing, and a restart forgets it."""


class UpdateBody(_Body):
    """Body of POST /v1/pause and /v1/resume."""

    update: str = Field(default="", max_length=64, pattern=r"^(\d{12}\.[0-9A-Za-z-]+)?$")
    """The weight update that says it, by a name that is greater than those of updates before; empty: a person, or a
    trainer that names none."""


class VersionBody(UpdateBody):
    """Body of PUT /v1/policy-version."""

    version: int = Field(ge=0, le=2**31 - 1)
    labelled: bool | None = None
    """Do the labels of the engines' weights carry versions? Null: as was told or seen before."""
    adapter: str = Field(default="", max_length=ADAPTER_CHARS)
    """LoRA adapter, by the name under which the engines serve it, whose version this is."""
    if_untold: bool = False
    """Change nothing if a version was told before: for whoever repeats what the trainer said to other gateways."""
