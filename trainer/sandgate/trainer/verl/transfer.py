"""Trajectories into TransferQueue, in the schema of verl's v1 trainer.

A prompt is a key without fields whose tag says how its group stands: pending, running, then finished or failure. Each
trajectory is a key `{uid}_{session}_{index}` with unpadded 1-D fields. The replay buffer takes a group as soon as its
tag is terminal, so trajectories are written before it, and nothing after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.batches import emptied, taught
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.reasons import CreditRules, Truncated
from sandgate.trainer.verl import rows as of
from sandgate.trainer.verl.multimodal import (
    check_placeholders,
    has_rope,
    inputs_of,
    misplaced,
    rope_positions,
)

log = logging.getLogger(__name__)

Status = Literal["pending", "running", "finished", "failure"]
TRAIN, VALIDATION = "train", "val"
RESERVED = frozenset({"multi_modal_data", "prompt_ids", "response_ids"})
"""Dataset columns that are not stored: raw images, and names that verl gives up before it stores."""


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One trajectory, ready for `kv_batch_put`."""

    key: str
    fields: dict[str, Any] = field(repr=False)
    tag: dict[str, Any]


def transfer_rows(
    trajectories: Sequence[Trajectory],
    *,
    uid: str,
    session: int,
    global_steps: int,
    columns: Mapping[str, Any] | None = None,
    processor: Any = None,
) -> list[TransferRow]:
    """The trajectories of one session, in the order of their ids, but the main one last: verl takes the score of a
    session from its last row. `uid`: as in the prompt's key; see `rows.uid_key`.
    `columns`: of the dataset (raw_prompt, data_source, reward_model, ...); the same for all sessions of a batch, as the
    queue gives back only what every row has. `processor`: as in `to_dataproto`; M-RoPE positions are [4, length].
    Raises InvalidBody: a uid with `_`, an empty response, images without a processor; CorruptRecord.
    """
    if "_" in uid or not uid:
        raise InvalidBody(f"uid: {uid!r} would be read as {uid.partition('_')[0]!r}", field="uid")
    ordered = sorted(trajectories, key=lambda row: (row.main, row.trajectory_id))
    scored = of.all_or_none(ordered)
    found = []
    for index, row in enumerate(ordered):
        if not row.response_ids or (row.multimodal is not None and processor is None):
            why = "its response is empty" if not row.response_ids else "its images need verl's processor"
            raise InvalidBody(f"session {row.session_id}: {why}", field="trajectories")
        fields = _fields(row, processor, scored=scored)
        kept = {name: value for name, value in (columns or {}).items() if name not in RESERVED}
        fields |= kept | {"uid": uid, "session_id": session, "global_steps": global_steps}
        found.append(TransferRow(f"{uid}_{session}_{index}", fields, _tag(row, global_steps)))
    return found


def _fields(row: Trajectory, processor: Any, *, scored: bool) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found]

    prompt = torch.from_numpy(np.frombuffer(row.prompt_ids, np.int32).astype(np.int64))
    response = torch.from_numpy(np.frombuffer(row.response_ids, np.int32).astype(np.int64))
    mask = torch.from_numpy(np.frombuffer(row.loss_mask, np.int8).astype(np.int64))
    ids = torch.cat([prompt, response])
    inputs, positions = inputs_of(row, processor), torch.arange(len(ids))
    if processor is not None:
        check_placeholders(processor, ids, inputs, row)
    if has_rope(processor):
        positions = rope_positions(processor, ids, torch.ones_like(ids), inputs, pad=0)
    found = {
        "prompts": prompt,
        "responses": response,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": ids,
        "position_ids": positions,
        "rollout_log_probs": torch.from_numpy(np.frombuffer(row.response_logprobs, np.float32).copy()),
        of.VERSIONS: torch.from_numpy(np.frombuffer(row.versions, np.int32).astype(np.int64)),
        "multi_modal_inputs": inputs,
        "num_turns": of.num_turns(row),
        "metrics": {"generate_sequences": 0.0, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": -1},
        "extra_fields": of.extra_fields(row),
    }
    if scored:
        found["rm_scores"] = torch.zeros(len(response), dtype=torch.float32)
        found["rm_scores"][-1] = row.reward
    return found


def _tag(row: Trajectory, global_steps: int) -> dict[str, Any]:
    """verl's metrics take its versions for numbers: those of a row that trains nothing are the prompt's step."""
    prompt, response = len(row.prompt_ids), len(row.response_ids)
    oldest, newest = of.steps(row)
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": global_steps,
        "min_global_steps": global_steps if oldest is None else oldest,
        "max_global_steps": global_steps if newest is None else newest,
    }


def tensordict(rows: Sequence[TransferRow]) -> Any:
    """Fields of the rows as one TensorDict; an empty one for no rows. Raises InvalidBody naming a column that some rows
    lack: verl reads the names from the first row, and drops or misses what differs."""
    from tensordict import TensorDict  # type: ignore[import-not-found]
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict  # type: ignore[import-not-found]

    if not rows:
        return TensorDict({}, batch_size=[0])
    names = {frozenset(row.fields) for row in rows}
    if len(names) > 1:
        odd = sorted(frozenset.union(*names) - frozenset.intersection(*names))
        raise InvalidBody(f"column {odd[0]} is not in every row", field=odd[0])
    return list_of_dict_to_tensordict([row.fields for row in rows])


async def put_rows(rows: Sequence[TransferRow], *, partition: str = TRAIN) -> None:
    """Store them. Nothing happens for no rows, which the queue itself would refuse."""
    if rows:
        import transfer_queue as tq  # type: ignore[import-not-found]

        await tq.async_kv_batch_put(
            keys=[row.key for row in rows],
            fields=tensordict(rows),
            tags=[row.tag for row in rows],
            partition_id=partition,
        )


async def put_status(
    uid: str, status: Status, *, partition: str = TRAIN, global_steps: int | None = None
) -> None:
    """How the prompt's group stands. `global_steps`: also declare it a prompt, as verl's trainer does for its own."""
    import transfer_queue as tq

    tag: dict[str, Any] = {"status": status}
    if global_steps is not None:
        tag |= {"is_prompt": True, "global_steps": global_steps}
    await tq.async_kv_put(key=uid, partition_id=partition, tag=tag)


async def put_group(
    uid: str,
    trajectories: Sequence[Trajectory],
    *,
    global_steps: int,
    lengths: of.Lengths,
    partition: str = TRAIN,
    columns: Mapping[str, Any] | None = None,
    processor: Any = None,
    truncated: Truncated = "score",
    counters: RowCounters | None = None,
    samples: int | None = None,
) -> str:
    """A whole group that was leased, as if verl's own agent loops had made it; returns the uid it has there. Rows that
    teach nothing are left out (see `prepare`), logged, and counted in `counters`; none is cut. Without
    anything to train on its status is `failure`. Where one session of several is left, a masked row stands beside it
    with the same score, so that its advantage is 0: of a group of one verl takes the bare score; in validation, which
    makes no advantages, it would count twice. `samples`: how many
    sessions were asked for; without, those whose rows show that they were, and others may have left none. Raises
    InvalidBody, CorruptRecord for what `transfer_rows` refuses and for rows with images that do not fit; then nothing
    is written, and the status is `failure`, too."""
    key = uid_key_of(uid, trajectories)
    await put_status(key, "running", partition=partition, global_steps=global_steps)
    status: Status = "failure"
    try:
        rules = CreditRules(lengths=lengths, truncated=truncated, misplaced=misplaced(processor))
        rows, left_out = taught(trajectories, rules)
        if left_out:
            log.info("group %s: of %d rows %s are left out", uid, len(trajectories), dict(left_out))
        if counters is not None:
            counters.add(len(rows), left_out)
        by_session: dict[tuple[int, str], list[Trajectory]] = {}
        for row in rows:
            by_session.setdefault((row.sample_index, row.session_id), []).append(row)
        groups = [own for _, own in sorted(by_session.items())]
        told = {"uid": key, "global_steps": global_steps, "columns": columns, "processor": processor}
        found: list[TransferRow] = []
        for number, own in enumerate(groups):
            found += transfer_rows(own, session=number, **told)
        several = partition == TRAIN and max(samples or 0, asked_for(trajectories)) > 1
        if len(groups) == 1 and several:
            found += companion(groups[0], session=1, **told)
        await put_rows(found, partition=partition)
        status = "finished" if found else "failure"
    finally:  # a group that stays `running` would be waited for
        await asyncio.shield(put_status(key, status, partition=partition))
    return key


def asked_for(rows: Sequence[Trajectory]) -> int:
    """How many sessions their group has at least: those that left rows, and those that come before one of them."""
    seen = {row.session_id for row in rows}
    return max([len(seen), *(row.sample_index + 1 for row in rows)])


def companion(
    rows: Sequence[Trajectory],
    *,
    uid: str,
    session: int,
    global_steps: int,
    columns: Mapping[str, Any] | None = None,
    processor: Any = None,
) -> list[TransferRow]:
    """For the one session that is left of a group: a masked row with its score and its versions, as a session of its
    own; the rest as in `transfer_rows`. None where nobody scored it."""
    main = main_row(rows)
    if main.reward is None:
        return []
    alone = replace(emptied(main), session_id="", trajectory_id=0)
    (made,) = transfer_rows(
        [alone], uid=uid, session=session, global_steps=global_steps, columns=columns, processor=processor
    )
    like = _tag(main, global_steps)
    steps = {name: like[name] for name in ("min_global_steps", "max_global_steps")}
    extra = {"extra_fields": made.fields["extra_fields"] | steps}
    return [replace(made, fields=made.fields | extra, tag=made.tag | steps)]


def uid_key_of(uid: str, trajectories: Sequence[Trajectory]) -> str:
    """Of the group's task, or of its one session where it has none."""
    return of.uid_key(uid or (trajectories[0].session_id if trajectories else ""))
