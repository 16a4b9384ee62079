"""Groups of a job as verl's batches: a DataProto with a row for each row that was asked for, or TransferQueue rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sandgate.contract.errors import InvalidBody, Unavailable
from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.pushed_groups import reasons_of
from sandgate.trainer.credit.batches import no_row
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import TRUNCATIONS, Truncated
from sandgate.trainer.verl.dataproto import to_dataproto
from sandgate.trainer.verl.rewards import broadcast, final
from sandgate.trainer.verl.rows import Lengths, usable
from sandgate.trainer.verl.sessions import BatchSample, Score

log = logging.getLogger(__name__)


async def scored(
    rows: Sequence[Trajectory],
    columns: Mapping[str, Any],
    score: Score | None,
    truncated_reward: float = 0.0,
) -> list[Trajectory]:
    """A group's rows by session, each session with one score: its own, or the reward loop's where nobody gave one, or
    `truncated_reward` where a limit ended it and there is no such loop. What failed is not asked about. A session of
    which the loop says no finite number has failed, and is left out."""
    sessions: dict[str, list[Trajectory]] = {}
    for row in rows:
        sessions.setdefault(row.session_id, []).append(row)
    found: list[Trajectory] = []
    for own in sessions.values():
        last = final(own)
        failed = last.failure_class not in (None, FailureClass.POLICY)
        if last.reward is not None or failed:
            found += own
        elif score is not None:
            said, info = await score(last, columns)
            try:
                found += broadcast(own, said, info)
            except InvalidBody as error:
                log.error("the reward loop gave no number: %s", error)
        elif last.failure_reason in TRUNCATIONS:
            found += broadcast(own, truncated_reward)
        else:
            found += own
    return found


def aligned(
    samples: Sequence[BatchSample],
    groups: Mapping[str, Sequence[Trajectory]],
    lengths: Lengths,
    *,
    n: int,
    pad: int,
) -> list[Trajectory]:
    """The final trajectory of each sample's session, in order, with all that was sampled on its path (a fork's shared
    turns are otherwise trained in another row); `n`: sessions of a group. One that failed, or was not scored, is a
    single masked token with its group's mean: it trains nothing and moves no baseline.
    Rows of a uid beyond `n`, with which verl pads a batch, are its first sessions again. Raises Unavailable if there is
    nothing at all that fits."""
    by_uid = {uid: _finals(rows) for uid, rows in groups.items()}
    if not any(usable(finals.values(), lengths) for finals in by_uid.values()):
        raise Unavailable(
            f"no session of {len(samples)} samples gave anything to train on{reasons_of(groups)}"
        )
    found = []
    for sample in samples:
        finals = by_uid.get(sample.uid, {})
        found.append(finals.get(sample.index % n) or no_row(sample.uid, sample.index, pad))
    return found


def _finals(rows: Sequence[Trajectory]) -> dict[int, Trajectory]:
    sessions: dict[tuple[int, str], list[Trajectory]] = {}
    for row in rows:
        if row.failure_class in (None, FailureClass.POLICY) and row.reward is not None:
            sessions.setdefault((row.sample_index, row.session_id), []).append(row)
    return {sample: alone(own) for (sample, _), own in sessions.items()}


def dataproto(
    rows: Sequence[Trajectory],
    samples: Sequence[BatchSample],
    lengths: Lengths,
    pad: int,
    took: Sequence[float],
    *,
    truncated: Truncated,
    validate: bool,
) -> Any:
    """The batch, with the columns that it was asked with."""
    names = [name for name in samples[0].columns if name != "multi_modal_data"]
    columns = {name: [sample.columns.get(name) for sample in samples] for name in names}
    columns["uid"] = [sample.uid for sample in samples]
    return to_dataproto(
        rows,
        lengths,
        pad_token_id=pad,
        columns=columns,
        seconds=took,
        truncated=truncated,
        validate=validate,
    )
