"""AReaL's interactions of a session's tree: one per model call, or one per leaf, as tensors in bytes. (pure)

AReaL's cache is a dict in order of creation, and its discount walks that order whatever the tree: see
`credit.discounted`. AReaL finds a call's parent by its messages' prefix, the tree by tokens. So `concat` works for
every conversation: a child's prompt *is* its parent's tokens. No Python object is made per token."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np

from sandgate.contract.choices import CutTurns
from sandgate.contract.errors import InvalidBody, TooLarge
from sandgate.gateway.journal.records import Rewarded
from sandgate.gateway.trajectories.credit import REWARD_MAX, discounted, finite
from sandgate.gateway.trajectories.linearize import TurnLike, leaves, path_to

Style = Literal["individual", "concat"]
BYTES_PER_TOKEN = 8 + 8 + 4 + 8 + 1
"""Bytes of the five tensors with an entry per token."""
BYTES_MAX = 256 * 1024 * 1024
"""Size limit of one export's tensors; as JSON they take a third more. `individual` repeats each turn's prompt: the
limit is 100 turns of 90k tokens."""


class TimedTurn(TurnLike, Protocol):
    """A turn that knows when it was asked for."""

    @property
    def number(self) -> int:
        """0, 1, ... in order of commit."""
        ...

    @property
    def created(self) -> int:
        """Unix seconds: when it was asked for."""
        ...


AnyCall = TypeVar("AnyCall", bound=TimedTurn)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, little-endian, in C order."""

    dtype: str
    """torch's name, without `torch.`."""
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Interaction:
    """One interaction of AReaL's, which it trains on."""

    turn: str
    reward: float
    """After discounting."""
    tensors: dict[str, Tensor]


def in_order(calls: Iterable[AnyCall]) -> list[AnyCall]:
    """The calls in order of creation, to the second; those of the same second in order of commit."""
    return sorted(calls, key=lambda call: (call.created, call.number))


def interactions(
    calls: Iterable[TimedTurn],
    *,
    delivered: Collection[str],
    partly: Collection[str] = (),
    rewarded: Iterable[Rewarded] = (),
    reward: float | None = None,
    discount: float = 1.0,
    style: str = "individual",
    cut: str = CutTurns.TRAIN,
) -> list[Interaction]:
    """A session's interactions in order of creation. `calls`: in order of commit; `reward`: the session's, which
    becomes that of its last call.

    Calls that no agent ever saw, or that the engine cut short, are left out as in trajectories, after the discount
    walked over them. Raises InvalidBody (an impossible style, discount or sum of rewards), TooLarge, CorruptRecord.
    """
    check(discount, style)
    calls = list(calls)
    if any(call.media for call in calls):
        raise InvalidBody("AReaL's tensors cannot carry the images of this session", field="multimodal")
    order = in_order(calls)
    paths = {call.id: path for path in leaves(calls, delivered, partly, cut) for call in path[-1:]}
    worth = discounted([call.id for call in order], _own(order, rewarded, reward), discount)
    if any(not abs(value) <= REWARD_MAX for value in worth.values()):
        raise InvalidBody("the rewards add up beyond float32", field="reward")
    if style == "individual":
        seen = {call.id for path in paths.values() for call in path}
        by_id: dict[str, TurnLike] = {call.id: call for call in calls}
        paths = {call.id: path_to(by_id, call) for call in order if call.id in seen}
    tokens = sum(sum(len(call.context) + len(call.ids) for call in path) for path in paths.values())
    if tokens * BYTES_PER_TOKEN > BYTES_MAX:
        raise TooLarge(
            f"{tokens} tokens in style {style}; at most {BYTES_MAX // BYTES_PER_TOKEN} are exported"
        )
    return [
        Interaction(call.id, worth[call.id], tensors(paths[call.id], worth[call.id], whole=style == "concat"))
        for call in order
        if call.id in paths
    ]


def check(discount: float, style: str) -> None:
    """Raises InvalidBody for a discount outside [0, 1], or an unknown style."""
    if style not in get_args(Style):
        raise InvalidBody(f"style must be individual or concat, not {style[:64]!r}", field="style")
    if not 0.0 <= finite(discount, "discount") <= 1.0:
        raise InvalidBody("discount must be between 0 and 1", field="discount")


def tensors(path: Sequence[TurnLike], reward: float, *, whole: bool) -> dict[str, Tensor]:
    """The tensors of the last turn of a root-to-turn path. `whole`: samples of earlier turns are trained, too; else
    they count as prompt."""
    length = sum(len(turn.context) + len(turn.ids) for turn in path)
    ids = np.empty(length, "<i8")
    mask = np.zeros(length, "<i8")
    logprobs = np.zeros(length, "<f4")
    versions = np.full(length, -1, "<i8")
    offset = 0
    for turn in path:
        start = offset + len(turn.context)
        end = start + len(turn.ids)
        ids[offset:start], ids[start:end] = turn.context, turn.ids
        if whole or turn is path[-1]:
            mask[start:end] = 1
            logprobs[start:end] = turn.logprobs
            for version, first, last in turn.versions:
                versions[start + first : start + last] = version
        offset = end
    row = (1, length)
    return {
        "input_ids": Tensor("int64", row, ids.tobytes()),
        "loss_mask": Tensor("int64", row, mask.tobytes()),
        "logprobs": Tensor("float32", row, logprobs.tobytes()),
        "versions": Tensor("int64", row, versions.tobytes()),
        "attention_mask": Tensor("bool", row, b"\x01" * length),
        "rewards": Tensor("float32", (1,), np.array([reward], "<f4").tobytes()),
    }


def _own(
    order: Sequence[TimedTurn], rewarded: Iterable[Rewarded], reward: float | None
) -> Mapping[str, float]:
    """Turn -> its own reward; the newest counts. A session's reward becomes that of its last turn."""
    own: dict[str, float] = {}
    session = reward
    for given in rewarded:
        if given.turn is not None:
            own[given.turn] = finite(given.reward, "reward")
        elif reward is None:
            session = finite(given.reward, "reward")
    if session is not None and order:
        own[order[-1].id] = session
    return own
