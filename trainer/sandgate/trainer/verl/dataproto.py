"""Trajectories as one padded `DataProto`, column by column: no Python object per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.batches import kept_in_place
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, Truncated
from sandgate.trainer.verl import rows as of
from sandgate.trainer.verl.multimodal import (
    check_placeholders,
    has_rope,
    inputs_of,
    misplaced,
    rope_positions,
)

PadPositions = Literal["zero", "verl"]
LEFT_OUT = "sandgate_left_out"
"""Column: why a row teaches nothing; empty for one that does."""
NO_METRICS = {"generate_sequences": 0.0, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": -1}
"""verl's AgentLoopMetrics where nothing was measured."""


def to_dataproto(
    trajectories: Sequence[Trajectory],
    lengths: of.Lengths,
    *,
    pad_token_id: int = 0,
    pad_positions: PadPositions = "zero",
    columns: Mapping[str, Sequence[Any]] | None = None,
    processor: Any = None,
    seconds: Sequence[float] | None = None,
    truncated: Truncated = "score",
    validate: bool = False,
) -> Any:
    """A batch as verl's agent loops make it, one row per trajectory, in order. A row that teaches nothing (a failure
    that is not the policy's, a side call, more tokens than `lengths`, a placeholder of pictures that the policy
    sampled) has mask 0, the reason in `sandgate_left_out`, and a score that changes nothing of what GRPO makes of the
    others (`neutral_scores`). A session without a task is a group of its own, as in `put_group`.

    `columns`: further non-tensor columns, one value per row. `pad_positions`: of padding; verl's comments say 0, its
    code has other numbers there, which `verl` gives; attention never looks at them. `processor`: of a model that
    sees, as verl's `hf_processor` makes it; position_ids are [rows, 4, length] if the model's are M-RoPE.
    `seconds`: how long each session took. `truncated`: whether rows that a limit ended are masked. `validate`: the
    score of a row that teaches nothing is the plain mean of its group. `rm_scores` is there if every row has a reward.
    Raises InvalidBody for no rows at all, and for rows with images without a processor; CorruptRecord.
    """
    from verl import DataProto  # type: ignore[import-not-found]

    rules = CreditRules(lengths=lengths, truncated=truncated, misplaced=misplaced(processor))
    found, whys = kept_in_place([named(row) for row in trajectories], rules, spread=not validate)
    if not found:
        raise InvalidBody("a DataProto needs at least one row", field="trajectories")
    inputs = [inputs_of(row, processor) for row in found]
    if processor is None:
        _text_only(found)
    metrics = [NO_METRICS | {"generate_sequences": took} for took in seconds or [0.0] * len(found)]
    meta: dict[str, Any] = {"metrics": metrics}
    tensors = _tensors(found, lengths, pad_token_id, pad_positions)
    if processor is not None:
        _see(processor, found, tensors, inputs, pad_positions)
    own = {**_columns(found, inputs, whys), **_given(columns or {}, len(found))}
    extra = _reward_columns(found, {*own, *tensors})
    if of.all_or_none(found):
        meta["reward_extra_keys"] = list(extra)
    return DataProto.from_dict(tensors=tensors, non_tensors=own | extra, meta_info=meta)


def count(batch: Any, counters: RowCounters) -> None:
    """Rows of a batch that teach, and those that do not, by reason."""
    whys = Counter(batch.non_tensor_batch[LEFT_OUT].tolist())
    counters.add(whys.pop("", 0), whys)


def named(row: Trajectory, uid: str = "") -> Trajectory:
    """The row with a name for its group: of its task, else `uid`, else of its session."""
    return row if row.uid else replace(row, uid=uid or row.session_id)


def _text_only(rows: Sequence[Trajectory]) -> None:
    for row in rows:
        if row.multimodal is not None:
            raise InvalidBody(
                f"session {row.session_id}: rows with images need verl's processor", field="multimodal"
            )


def _see(
    processor: Any,
    rows: Sequence[Trajectory],
    tensors: dict[str, Any],
    inputs: Sequence[Mapping[str, Any]],
    positions: PadPositions,
) -> None:
    """Check that each row has its placeholders; positions of models that have them in four dimensions."""
    import torch  # type: ignore[import-not-found]

    ids, attention = tensors["input_ids"], tensors["attention_mask"]
    for at, row in enumerate(rows):
        check_placeholders(processor, ids[at][attention[at].bool()], inputs[at], row)
    if has_rope(processor):
        pad = 1 if positions == "verl" else 0
        made = [rope_positions(processor, *one, pad=pad) for one in zip(ids, attention, inputs, strict=True)]
        tensors["position_ids"] = torch.stack(made)


def _tensors(
    rows: Sequence[Trajectory], lengths: of.Lengths, pad: int, positions: PadPositions
) -> dict[str, Any]:
    import torch

    size, prompt, response = len(rows), lengths.prompt, lengths.response
    ids = np.full((size, prompt + response), pad, np.int64)
    attention = np.zeros((size, prompt + response), np.int64)
    mask = np.zeros((size, response), np.int64)
    logprobs = np.zeros((size, response), np.float32)
    versions = np.full((size, response), -1, np.int64)
    scores = np.zeros((size, response), np.float32)
    for at, row in enumerate(rows):
        start, end = prompt - len(row.prompt_ids), prompt + len(row.response_ids)
        ids[at, start:prompt] = np.frombuffer(row.prompt_ids, np.int32)
        ids[at, prompt:end] = np.frombuffer(row.response_ids, np.int32)
        attention[at, start:end] = 1
        mask[at, : end - prompt] = np.frombuffer(row.loss_mask, np.int8)
        logprobs[at, : end - prompt] = np.frombuffer(row.response_logprobs, np.float32)
        versions[at, : end - prompt] = np.frombuffer(row.versions, np.int32)
        if end > prompt:
            scores[at, end - prompt - 1] = row.reward or 0.0
    found = {
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "response_mask": mask,
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": position_ids(attention, positions),
        "rollout_log_probs": logprobs,
        of.VERSIONS: versions,
    }
    if of.all_or_none(rows):
        found["rm_scores"] = scores
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


def position_ids(attention: Any, pad: PadPositions = "zero") -> Any:
    """0, 1, ... over what is attended to, 0 at the padding on the left; on the right 0, or as in verl the last."""
    found = np.maximum(np.cumsum(attention, axis=-1) - 1, 0)
    return found * attention if pad == "zero" else found


def _columns(
    rows: Sequence[Trajectory], inputs: Sequence[Mapping[str, Any]], whys: Sequence[LeftOut | None]
) -> dict[str, Any]:
    fields = [of.extra_fields(row) for row in rows]
    found = {
        name: objects([one[name] for one in fields]) for name in fields[0] if name != "reward_extra_info"
    }
    found |= {
        "uid": objects([row.uid for row in rows]),
        "extras": objects([None] * len(rows)),
        LEFT_OUT: objects(["" if why is None else why.value for why in whys]),
        "multi_modal_inputs": objects(inputs),
        "__num_turns__": np.array([of.num_turns(row) for row in rows], np.int32),
    }
    return found


def _reward_columns(rows: Sequence[Trajectory], taken: Collection[str]) -> dict[str, Any]:
    """A column for each key of a row's reward_info, None where a row has none: a session that failed does not take the
    others' along, and verl's validation leaves None out. None for a name that a column has already: whoever scores
    does not say which group a row is of."""
    infos = [of.extra_info(row) for row in rows]
    names = dict.fromkeys(name for info in infos for name in info if name not in taken)
    return {name: np.array([info.get(name) for info in infos]) for name in names}


def _given(columns: Mapping[str, Sequence[Any]], size: int) -> dict[str, Any]:
    for name, values in columns.items():
        if len(values) != size:
            raise InvalidBody(f"column {name} has {len(values)} values for {size} rows", field=name)
    return {name: objects(values) for name, values in columns.items()}


def objects(values: Sequence[Any]) -> Any:
    """One object per row, also where the values are lists of one length, of which numpy would make a matrix."""
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found
