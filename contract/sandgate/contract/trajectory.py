"""The trajectory record, schema version 2: one root-to-leaf path of a session's tree, one training row.

Arrays are packed (`array('i')` int32, `array('f')` float32, `array('b')` int8): no Python object per token.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.contract.failure_reasons import FailureClass

SCHEMA_VERSION = 2
"""Bumped only when a reader of the old version would misread the new one; new optional fields do not bump it.

2: `sampling` holds what all turns have in common, and `turn_settings` the rest; in rows of version 1 it is that of the
last turn, and `engine`, `logprobs_mode` and `renderer` are those of the gateway that exported."""

FIRST_VERSION = 1
"""What a row is of that does not say it."""

Ids: TypeAlias = "array[int]"
"""array('i'): int32 token ids."""
Floats: TypeAlias = "array[float]"
"""array('f'): float32."""
Mask: TypeAlias = "array[int]"
"""array('b'): int8."""

Json: TypeAlias = Any
"""What `json.loads` returns."""


class TurnSettings(NamedTuple):
    """How one turn was made."""

    engine: str
    """Name and version."""
    logprobs_mode: str
    renderer: str
    sampling: dict[str, Json]
    """Engine's names, as sent."""

    @property
    def temperature(self) -> float:
        """By which a trainer divides logits to recompute the recorded logprobs: that of sampling. 1.0 for raw
        logprobs, and for a greedy turn (temperature 0), of which engines report the model's own."""
        told = self.sampling.get("temperature")
        scaled = isinstance(told, int | float) and told > 0 and not self.logprobs_mode.startswith("raw")
        return float(told) if scaled else 1.0  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One training row. All per-token arrays have one entry per response id.

    A token with `loss_mask` 1 was sampled by the policy in this session, and its `response_logprobs`
    and `versions` are the engine's; elsewhere they are 0.0 and -1.
    """

    schema_version: int = SCHEMA_VERSION
    """Of the record; each row says it, as rows outlive their file's metadata."""
    job: str
    """The RolloutJob; empty for sessions of none."""
    uid: str
    """The task."""
    session_id: str
    """One episode of an agent: one attempt at one sample."""
    trajectory_id: int
    """0..m-1 within the session, in order of each leaf's commit."""
    sample_index: int
    """Which of its group's sessions, from 0."""
    attempt: int
    """From 0; later ones follow failures of the infrastructure."""
    prompt_ids: Ids
    """The root turn's whole prompt."""
    response_ids: Ids
    """Everything after it, sampled and context, in order."""
    response_logprobs: Floats
    """Natural log, as the engine reported; 0.0 where the mask is 0."""
    loss_mask: Mask
    """1 = sampled by the policy here, 0 = context."""
    versions: Ids
    """Policy version per token; -1 where the mask is 0."""
    turn_ids: tuple[str, ...]
    """The turns (model calls) on this path, root first."""
    turn_ends: tuple[int, ...]
    """End offset, in response_ids, of each turn's sampled span."""
    reward: float | None = None
    """Of this trajectory, after discounting; null if none was given."""
    turn_rewards: tuple[float, ...] = ()
    """One per turn, after discounting; empty if no reward was given."""
    reward_info: dict[str, Json] = field(default_factory=dict)
    """What the agent, the verifier and the trainer said with the reward."""
    finish_reason: str = ""
    """Of the last turn: stop, length or abort; cut: its agent let go of it while it streamed, or ran out of time."""
    fork_reason: str = ""
    """Empty for the first conversation of a session."""
    parent_turn: str = ""
    """The turn this branch left, empty for a root."""
    role: str = ""
    """Of the turns that are in no other row: `main`, the agent's own conversation; `subagent`; or `side`, a title or
    another helper's call. Empty in rows that are older than the field."""
    main: bool = False
    """Of its session's rows, the one with the newest turn of the main conversation that the agent was sent in full,
    which is where its answer is: a stream that it let go of before is not it, however late that ended. Exactly one row
    of a session is; false where `role` is empty. Of an agent that writes its history anew into one message (dspy's
    ReAct) each call is a conversation of its own, and which is main is a guess, unless a header or a rule of the job
    (`spec.gateway.roles`) names it."""
    failure_class: str | None = None
    """Who is to blame for a session that did not end well: policy, agent, infra; null for one that did."""
    failure_reason: str | None = None
    """The reason code (reasons.md); null for a session that ended well."""
    complete: bool = True
    """False if the session did not end by itself."""
    masked: bool = field(init=False)
    """It teaches the policy nothing, as its failure, if any, is not the policy's own, or nobody gave a reward: no
    gradient, and no part in its group's mean. Follows from reward and failure_class; readers work it out anew."""
    model: str = ""
    """As the engine names it."""
    renderer: str = ""
    """What turned messages into ids, with its version or its template's digest; empty if turns differ."""
    engine: str = ""
    """Name and version; empty if turns differ."""
    logprobs_mode: str = ""
    """The engine's: raw_logprobs or processed_logprobs (of the scaled, filtered distribution; of a turn at temperature
    0, the one at temperature 1); empty if turns differ."""
    sampling: dict[str, Json] = field(default_factory=dict)
    """Engine's names (temperature, top_p, top_k, ...), as sent with each turn: those that are alike in all turns.
    `structured_outputs` (kind and digest) where the engine held a turn to a form (tool_choice, response_format): its
    logprobs are of what the grammar left, and a token that was forced has one of 0."""
    turn_settings: tuple[dict[str, Json], ...] = ()
    """What differs between turns, one object per turn: `engine`, `logprobs_mode`, `renderer`, `sampling` (a seed, say).
    Empty if nothing does. `settings(k)` gives turn k's whole."""
    tokenizer_digest: str = ""
    """Of tokenizer.json: ids of one digest are of one vocabulary."""
    multimodal: bytes | None = None
    """Of images, as safetensors; null for text. A gateway's has metadata `sandgate`, JSON with `version`: 1 of grids, 2
    of the other kinds of processors, named in `kind` (square, rows, tiles); and `images`: for each `digest`, `start`
    and `length` of the ids that stand for it in prompt_ids + response_ids, in their order. Tensors: `image_grid_thw` of
    grids, `image_sizes` of rows, as the processor tells them; and once each `png.DIGEST`, the picture as the engine was
    sent it, in RGB and of the size that the processor gives it, so that the processor's other outputs follow from it.
    With videos it is of `version` 3: `videos`, each with its `frames`, too; `video_grid_thw`, `second_per_grid_ts`
    where positions count seconds, and `png.DIGEST.N` of each frame. Without the metadata: all of the processor's
    outputs, by its own names."""
    routed_experts: bytes | None = None
    """For replaying a mixture of experts' routing; null if it was not captured."""
    created_at: float = 0.0
    """Unix seconds: when the session was finalized."""
    metadata: dict[str, Json] = field(default_factory=dict)
    """The session's, as it was created with. Of `sandgate run`: `manifest`, the digest of all that decides what a row
    is (the manifest is `manifests/DIGEST.json` in its --out folder), and `task`, that of the task's prompt and data."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "masked", self._masked())
        if self.schema_version > SCHEMA_VERSION:
            raise NewerRecord(seen=self.schema_version, known=SCHEMA_VERSION)
        n = len(self.response_ids)
        for name in ("response_logprobs", "loss_mask", "versions"):
            if len(getattr(self, name)) != n:
                raise CorruptRecord(f"{name} has {len(getattr(self, name))} entries for {n} response ids")
        if len(self.turn_ids) != len(self.turn_ends):
            raise CorruptRecord(f"{len(self.turn_ids)} turn_ids but {len(self.turn_ends)} turn_ends")
        if self.turn_settings and len(self.turn_settings) != len(self.turn_ids):
            raise CorruptRecord(f"{len(self.turn_settings)} turn_settings for {len(self.turn_ids)} turns")
        if self.turn_rewards and len(self.turn_rewards) != len(self.turn_ids):
            raise CorruptRecord(f"{len(self.turn_rewards)} turn_rewards for {len(self.turn_ids)} turns")

    def settings(self, turn: int) -> TurnSettings:
        """How turn number `turn` of this row was made."""
        own = self.turn_settings[turn] if self.turn_settings else {}
        return TurnSettings(
            engine=own.get("engine", self.engine),
            logprobs_mode=own.get("logprobs_mode", self.logprobs_mode),
            renderer=own.get("renderer", self.renderer),
            sampling={**self.sampling, **own.get("sampling", {})},
        )

    def _masked(self) -> bool:
        return self.reward is None or self.failure_class not in (None, FailureClass.POLICY)


_LISTS = (
    ("turn_ids", "str"),
    ("turn_ends", "int"),
    ("turn_rewards", "float"),
    ("turn_settings", "dict[str, Json]"),
)
"""(field, annotation of its entries)."""

ARRAY_FIELDS: dict[str, str] = {
    "prompt_ids": "i",
    "response_ids": "i",
    "response_logprobs": "f",
    "loss_mask": "b",
    "versions": "i",
}
"""Field -> array typecode."""
BINARY_FIELDS = ("multimodal", "routed_experts")
"""base64 text in JSON."""
DERIVED = frozenset({"masked"})
"""Fields that follow from others. Who changes those (a trainer that fills in rewards) cannot leave these behind: what a
file says of them is for readers without this class."""


def main_row(rows: Iterable[Trajectory]) -> Trajectory:
    """Of one session's rows, the one that has the agent's answer: the main one, or, where none says that it is (rows
    that are older than `main`), the one that ended last. Raises ValueError without any."""
    return max(rows, key=lambda row: (row.main, row.trajectory_id))


def to_json(trajectory: Trajectory) -> dict[str, Json]:
    """Plain JSON value; binary fields as base64 text."""
    out: dict[str, Json] = {}
    for name in Trajectory.__dataclass_fields__:
        value = getattr(trajectory, name)
        if name in ARRAY_FIELDS or isinstance(value, tuple):
            value = list(value)
        out[name] = b64encode(value).decode() if isinstance(value, bytes) else value
    return out


def from_json(value: dict[str, Json]) -> Trajectory:
    """Inverse of `to_json`. Unknown fields are ignored (added by a newer writer of the same schema).

    Raises NewerRecord, CorruptRecord.
    """
    if not isinstance(value, dict):
        raise CorruptRecord(f"not a trajectory record: {type(value).__name__}")
    seen = value.get("schema_version", 0)
    if isinstance(seen, int) and seen > SCHEMA_VERSION:
        raise NewerRecord(seen=seen, known=SCHEMA_VERSION)
    members: dict[str, Json] = {"schema_version": FIRST_VERSION}
    members |= {k: v for k, v in value.items() if k in Trajectory.__dataclass_fields__}
    for name, given in tuple(members.items()):
        if name in BINARY_FIELDS and isinstance(given, str):
            members[name] = given = _binary(given, name)
        if name not in ARRAY_FIELDS and not _fits(given, Trajectory.__dataclass_fields__[name].type):
            raise CorruptRecord(f"not a trajectory record: {name} cannot be {type(given).__name__}")
    for name in DERIVED:
        members.pop(name, None)
    try:
        for name, code in ARRAY_FIELDS.items():
            members[name] = array(code, members[name])
        for name, kind in _LISTS:
            members[name] = tuple(members.get(name, ()))
            if not all(_fits(entry, kind) for entry in members[name]):
                raise CorruptRecord(f"not a trajectory record: {name} holds more than {kind}")
        return Trajectory(**members)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecord(f"not a trajectory record: {error!r}") from error


def _binary(text: str, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptRecord(f"not a trajectory record: {name} is not base64: {error}") from error


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "str | None": (str, type(None)),
    "bytes | None": (bytes, type(None)),
    "dict[str, Json]": (dict,),
}
"""A field's annotation -> what JSON may hold for it; other fields are lists. `array` itself checks array fields."""


def _fits(given: Json, annotation: Json) -> bool:
    kinds = _JSON_TYPES.get(str(annotation), (list, tuple))
    return isinstance(given, kinds) and not (isinstance(given, bool) and bool not in kinds)
