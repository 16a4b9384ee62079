"""Linearizes a sealed session: its forest of turns becomes trajectories, one training row per leaf. (pure)

A leaf is left out, and so trained nowhere, if it was neither delivered nor extended (the agent never saw it), or was
aborted by the engine (the policy had not finished). A turn whose stream the agent let go of counts as seen, whether
that cut the turn or came too late to: it is a leaf unless the job wants it left out (CutTurns). The parent of a leaf
that is left out was extended, therefore seen, and may become a leaf. If nothing would be left, the newest leaf that was
not aborted stays: a session that was killed under its only answer has a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, get_args

from sandgate.contract.choices import CutTurns, RewardSource
from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.session import COMPLETE
from sandgate.contract.trajectory import Floats, Ids, Mask, Trajectory
from sandgate.gateway.journal.records import CUT, Rewarded, Sealed
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.record import packed
from sandgate.gateway.media.spans import Span, Spans
from sandgate.gateway.trajectories.credit import Credit, credit, row_reward
from sandgate.gateway.trajectories.row_roles import owners_of, roles_of
from sandgate.gateway.trajectories.row_tree import RowTree

_MISSING = object()
NO_PICTURES: Mapping[bytes, Picture] = MappingProxyType({})
APART = "apart"
"""Member of `Opened.spec` in sessions where the body of /complete stands apart in `reward_info`; older sessions read as
they did."""
SharedNodes = Literal["once", "every"]
"""A sampled node on several trajectories has mask 1 in the first only, or in each."""


class TurnLike(Protocol):
    """The part of a turn that is needed here (`conversation.turn.Turn` is one). Arrays are read, never kept."""

    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def fork(self) -> str | None: ...
    @property
    def context(self) -> Ids:
        """Ids added before sampling; the whole prompt of a root."""
        ...

    @property
    def ids(self) -> Ids: ...
    @property
    def logprobs(self) -> Floats: ...
    @property
    def versions(self) -> Sequence[tuple[int, int, int]]:
        """(version, start, end) spans over the sampled ids, without gaps."""
        ...

    @property
    def finish(self) -> str: ...
    @property
    def index(self) -> int:
        """Which of its request's n choices."""
        ...

    @property
    def role(self) -> str:
        """TurnRole; empty in old journals."""
        ...

    @property
    def role_why(self) -> str: ...
    @property
    def head_key(self) -> bytes: ...

    @property
    def sampling(self) -> Mapping[str, Any]:
        """As sent to the engine."""
        ...

    @property
    def build(self) -> str:
        """Name and version of the engine. Empty in old journals, like the next two: then the exporter's are taken."""
        ...

    @property
    def logprobs_mode(self) -> str: ...
    @property
    def renderer(self) -> str: ...
    @property
    def media(self) -> Spans:
        """Placeholders of pictures in `context`."""
        ...


AnyTurn = TypeVar("AnyTurn", bound=TurnLike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that a trainer needs to trust the logprobs, as of the gateway that exports. A turn has its own renderer,
    engine and mode, unless it is of an old journal."""

    model: str = ""
    renderer: str = ""
    engine: str = ""
    logprobs_mode: str = ""
    tokenizer_digest: str = ""


def leaves(
    turns: Iterable[TurnLike],
    delivered: Collection[str],
    partly: Collection[str] = (),
    cut: str = CutTurns.TRAIN,
) -> list[list[TurnLike]]:
    """Root-to-leaf paths of `rows_of`."""
    rows = rows_of(turns, delivered, partly, cut)
    return [rows.path(end) for end in rows.ends]


def rows_of(
    turns: Iterable[TurnLike],
    delivered: Collection[str],
    partly: Collection[str] = (),
    cut: str = CutTurns.TRAIN,
) -> RowTree[TurnLike]:
    """The rows of a session's turns (in order of commit), in order of each leaf's commit. `delivered`, `partly`: ids of
    the turns that the agent was sent in full, and in part; `cut`: CutTurns.

    Raises CorruptRecord for a parent that is unknown or not older.
    """
    by_id: dict[str, TurnLike] = {}
    children: dict[str | None, int] = {}
    for turn in turns:
        if turn.parent is not None and turn.parent not in by_id:
            raise CorruptRecord(f"turn {turn.id}: its parent {turn.parent} was not committed before it")
        by_id[turn.id] = turn
        children[turn.parent] = children.get(turn.parent, 0) + 1
    dropped: set[str] = set()
    for turn in by_id.values():
        if turn.id not in children and not _seen(turn, delivered, partly, cut):
            dropped.add(turn.id)
            children[turn.parent] -= 1
    ends = [turn for turn in by_id.values() if not children.get(turn.id) and turn.id not in dropped]
    if not ends:
        whole = [turn for turn in by_id.values() if turn.id in dropped and turn.finish not in ("abort", CUT)]
        ends = whole[-1:]
    return RowTree(by_id, [turn.id for turn in ends])


def _seen(turn: TurnLike, delivered: Collection[str], partly: Collection[str], cut: str) -> bool:
    if turn.finish == CUT:
        return cut == CutTurns.TRAIN
    if turn.finish == "abort":
        return False
    return turn.id in delivered or (turn.id in partly and cut == CutTurns.TRAIN)


def read_by_agent(turns: Sequence[TurnLike], delivered: Collection[str]) -> dict[str, int]:
    """Turn -> place in order of commit, of those that the agent was sent in full, or went on from. A cut turn may stand
    among `delivered` where a kill left that unsure."""
    extended = {turn.parent for turn in turns}
    return {
        turn.id: place
        for place, turn in enumerate(turns)
        if turn.id in extended or (turn.id in delivered and turn.finish != CUT)
    }


def newest_in_rows(
    turns: Sequence[AnyTurn],
    delivered: Collection[str],
    partly: Collection[str] = (),
    cut: str = CutTurns.TRAIN,
) -> AnyTurn | None:
    """Of the turns that `leaves` of these turns keep, the newest that the agent was sent in full or went on from, or
    what it let go of behind that one; where it read none, the newest of all. None if there would be no row. What it let
    go of elsewhere was asked before its newest answer, however late it was committed. Looks at no more turns than it
    must: an agent asks this as often as it likes."""
    extended: set[str] = set()
    let_go: dict[str | None, AnyTurn] = {}
    last: AnyTurn | None = None
    for turn in reversed(turns):
        if turn.id in extended or (turn.id in delivered and turn.finish not in ("abort", CUT)):
            return let_go.get(turn.id, turn)
        if _seen(turn, delivered, partly, cut):
            let_go.setdefault(turn.parent, turn)
            last = last or turn
        if turn.parent is not None:
            extended.add(turn.parent)
    return last or next((turn for turn in reversed(turns) if turn.finish not in ("abort", CUT)), None)


def path_to(by_id: Mapping[str, TurnLike], turn: TurnLike) -> list[TurnLike]:
    """The turns from the root to `turn`."""
    path = [turn]
    while (parent := path[-1].parent) is not None:
        path.append(by_id[parent])
    path.reverse()
    return path


def linearize(
    turns: Iterable[TurnLike],
    *,
    session_id: str,
    spec: Mapping[str, Any],
    sealed: Sealed,
    delivered: Collection[str],
    partly: Collection[str] = (),
    rewarded: Iterable[Rewarded] = (),
    completed: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    pictures: Mapping[bytes, Picture] = NO_PICTURES,
) -> list[Trajectory]:
    """The rows of a session that ended; none if it was aborted. `turns` in order of commit; `spec`: `Opened.spec` (job,
    uid, sample_index, attempt, model, metadata); `completed`: `Completed.info`; `pictures`: by digest, what turns show.

    Copies arrays and makes no Python object per token. `reward_info` is the union of the info of the rewards and of the
    seal, where later members win. The info of /complete is part of it where the agent rewards itself; else it stands
    under COMPLETE, so that it adds no key beside a verifier's and cannot be taken for an observed end. Raises
    CorruptRecord for turns that do not fit together, InvalidBody for impossible rewards, discount or `shared_nodes`.
    """
    if sealed.shared_nodes not in get_args(SharedNodes):
        raise InvalidBody("shared_nodes must be once or every", field="shared_nodes")
    if sealed.aborted:
        return []
    turns, rewarded = tuple(turns), tuple(rewarded)
    rows = rows_of(turns, delivered, partly, spec.get("cut_turns", CutTurns.TRAIN))
    paths = [rows.path(end) for end in rows.ends]
    worth = credit(
        [[turn.id for turn in path] for path in paths],
        rewarded,
        reward=sealed.reward,
        discount=sealed.discount,
    )
    facts = facts or Facts()
    common = _common(session_id, spec, sealed, facts)
    complete_info, source = dict(completed or {}), spec.get("reward_source")
    if complete_info and (
        source == RewardSource.EXIT_CODE or (spec.get(APART) and source != RewardSource.AGENT)
    ):
        complete_info = {COMPLETE: complete_info}
    common["reward_info"] = _union(complete_info, *(given.info for given in rewarded), sealed.info)
    roles, main = roles_of(rows, read_by_agent(turns, delivered))
    owners = owners_of(paths, roles) if sealed.shared_nodes == "once" else {}
    out: list[Trajectory] = []
    for number, path in enumerate(paths):
        trained = {turn.id for turn in path if owners.get(turn.id, number) != number}
        out.append(
            Trajectory(
                trajectory_id=number,
                role=roles[number].value,
                main=number == main,
                **common,
                **_path_fields(path, trained),
                multimodal=packed(_media_of(path), pictures),
                **settings(path, facts),
                **_reward_fields(path, worth),
            )
        )
    return out


def main_reward(
    turns: Iterable[TurnLike],
    *,
    spec: Mapping[str, Any],
    delivered: Collection[str],
    partly: Collection[str],
    rewarded: Iterable[Rewarded],
    discount: float,
) -> float | None:
    """The reward of the main row that `linearize` would give of these turns, where neither the seal nor anybody else
    gave the session one; None: that row has none. Raises what `linearize` raises. Makes no row, so that its time grows
    with the turns."""
    turns = tuple(turns)
    rows = rows_of(turns, delivered, partly, spec.get("cut_turns", CutTurns.TRAIN))
    _, main = roles_of(rows, read_by_agent(turns, delivered))
    return row_reward(rows, main, rewarded, discount=discount)


def _common(session_id: str, spec: Mapping[str, Any], sealed: Sealed, facts: Facts) -> dict[str, Any]:
    return {
        "job": str(spec.get("job") or ""),
        "uid": str(spec.get("uid") or ""),
        "session_id": session_id,
        "sample_index": int(spec.get("sample_index") or 0),
        "attempt": int(spec.get("attempt") or 0),
        "failure_class": sealed.failure_class,
        "failure_reason": sealed.failure_reason,
        "complete": sealed.complete,
        "model": facts.model or str(spec.get("model") or ""),
        "tokenizer_digest": facts.tokenizer_digest,
        "created_at": sealed.at,
        "metadata": dict(spec.get("metadata") or {}),
    }


def _path_fields(path: Sequence[TurnLike], trained: Collection[str]) -> dict[str, Any]:
    """The fields of a row that come from its path: the tokens, and where it forked."""
    rows = _Rows()
    for depth, turn in enumerate(path):
        if depth:
            rows.given(turn.context)
        rows.sampled(turn, trained=turn.id in trained)
    forked = next((turn for turn in reversed(path) if turn.fork), path[0])
    return {
        "prompt_ids": path[0].context[:],
        "response_ids": rows.ids,
        "response_logprobs": rows.logprobs,
        "loss_mask": rows.mask,
        "versions": rows.versions,
        "turn_ids": tuple(turn.id for turn in path),
        "turn_ends": tuple(rows.ends),
        "finish_reason": path[-1].finish,
        "fork_reason": str(forked.fork or ""),
        "parent_turn": (forked.parent or "") if forked.fork else "",
    }


def _media_of(path: Sequence[TurnLike]) -> Spans:
    """The placeholders of pictures, with offsets in prompt_ids + response_ids."""
    out, start = list[Span](), 0
    for turn in path:
        out += [span.moved(start) for span in turn.media]
        start += len(turn.context) + len(turn.ids)
    return tuple(out)


def settings(path: Sequence[TurnLike], facts: Facts) -> dict[str, Any]:
    """How the turns of a path were made: the fields `engine`, `logprobs_mode`, `renderer` and `sampling` hold what all
    turns have in common, `turn_settings` the rest."""
    names = {
        "engine": [turn.build or facts.engine for turn in path],
        "logprobs_mode": [turn.logprobs_mode or facts.logprobs_mode for turn in path],
        "renderer": [turn.renderer or facts.renderer for turn in path],
    }
    own: list[dict[str, Any]] = [{} for _ in path]
    fields: dict[str, Any] = {}
    for name, told in names.items():
        alike = all(value == told[0] for value in told)
        fields[name] = told[0] if alike else ""
        if not alike:
            for settings_of_turn, value in zip(own, told, strict=True):
                settings_of_turn[name] = value
    first = path[0].sampling
    shared = {
        name: value
        for name, value in first.items()
        if all(turn.sampling.get(name, _MISSING) == value for turn in path)
    }
    for settings_of_turn, turn in zip(own, path, strict=True):
        if rest := {name: value for name, value in turn.sampling.items() if name not in shared}:
            settings_of_turn["sampling"] = rest
    fields["sampling"] = shared
    fields["turn_settings"] = tuple(own) if any(own) else ()
    return fields


def _reward_fields(path: Sequence[TurnLike], worth: Credit) -> dict[str, Any]:
    if not worth.turns:
        return {}
    return {
        "reward": worth.leaves[path[-1].id],
        "turn_rewards": tuple(worth.turns[turn.id] for turn in path),
    }


def _union(*infos: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for info in infos:
        out.update(info)
    return out


class _Rows:
    """The four aligned arrays of a response, grown span by span."""

    def __init__(self) -> None:
        self.ids, self.versions = array("i"), array("i")
        self.logprobs: Floats = array("f")
        self.mask: Mask = array("b")
        self.ends: list[int] = []

    def given(self, ids: Ids) -> None:
        """Adds context ids, which are not trained."""
        count = len(ids)
        self.ids.extend(ids)
        self.logprobs.frombytes(bytes(4 * count))
        self.mask.frombytes(bytes(count))
        self.versions.frombytes(b"\xff" * (4 * count))  # -1 each

    def sampled(self, turn: TurnLike, *, trained: bool) -> None:
        """Adds a turn's sample. If an earlier row trains it, it counts as context here."""
        count = len(turn.ids)
        if trained:
            self.given(turn.ids)
        else:
            self.ids.extend(turn.ids)
            self.logprobs.extend(turn.logprobs)
            self.mask.frombytes(b"\x01" * count)
            for version, start, end in turn.versions:
                self.versions.extend(array("i", (version,)) * (end - start))
            if not len(self.ids) == len(self.logprobs) == len(self.versions):
                raise CorruptRecord(
                    f"turn {turn.id}: {count} ids, {len(turn.logprobs)} logprobs, versions {turn.versions}"
                )
        self.ends.append(len(self.ids))
