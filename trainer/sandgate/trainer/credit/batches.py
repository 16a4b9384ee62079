"""Batches for trainers that have no mask for a whole row, or whose groups cannot be taken apart. (pure)"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.trajectory import Ids, Trajectory
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, reasons
from sandgate.trainer.credit.shared_turns import handed_on


def taught(
    rows: Sequence[Trajectory], rules: CreditRules | None = None
) -> tuple[list[Trajectory], Counter[str]]:
    """The rows that teach, and how many do not, by reason, for a trainer that takes whatever it is given into its
    group's mean. Where nobody scored anything, rows without a reward stay: the trainer scores them itself."""
    whys = reasons(rows, _scored(rows, rules))
    kept = [row for row, why in zip(handed_on(rows, whys), whys, strict=True) if why is None]
    return kept, Counter(why.value for why in whys if why is not None)


def kept_in_place(
    rows: Sequence[Trajectory],
    rules: CreditRules | None = None,
    *,
    scores_later: bool = True,
    spread: bool = True,
) -> tuple[list[Trajectory], list[LeftOut | None]]:
    """For a batch that keeps its size, of any number of groups; the rows, and why each teaches nothing. One that does
    not has mask 0, and, where others have a score, a `neutral_scores` of its group. One that is too long is one token
    after another, so that it fits. `scores_later`: where nobody scored anything, the trainer does, and rows without a
    reward stay. `spread`: see `in_place`."""
    found = _scored(rows, rules) if scores_later else rules or CreditRules()
    whys = reasons(rows, found)
    return in_place(handed_on(rows, whys), whys, found, spread=spread), whys


def in_place(
    rows: Sequence[Trajectory],
    whys: Sequence[LeftOut | None],
    rules: CreditRules,
    *,
    spread: bool = True,
) -> list[Trajectory]:
    """These rows; those with a reason under mask 0, and with `neutral_scores` of the others of their task. Without
    `spread` all with the others' mean, for a batch of which nobody makes advantages: scores beyond all rewards would be
    believed there."""
    groups: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        groups.setdefault(row.uid, []).append(at)
    scores: dict[int, float] = {}
    for members in groups.values():
        kept = [reward for at in members if whys[at] is None and (reward := rows[at].reward) is not None]
        out = [at for at in members if whys[at] is not None]
        made = neutral_scores(kept, len(out)) if spread else neutral_scores(kept, 1) * len(out)
        scores.update(zip(out, made, strict=True))
    found = []
    for at, (row, why) in enumerate(zip(rows, whys, strict=True)):
        if why is not None:
            row = masked(row if row.response_ids and rules.fits(row) else emptied(row))
            row = replace(row, reward=scores[at] if rules.scored else None)
        found.append(row)
    return found


def masked(row: Trajectory) -> Trajectory:
    """It trains nothing."""
    return replace(row, loss_mask=array("b", bytes(len(row.loss_mask))))


def neutral_scores(scores: Sequence[float], count: int) -> list[float]:
    """`count` scores that, put beside these, change neither their mean nor their deviation as a sample (n - 1): half
    of them lie above the mean, half below. A single one can only keep the mean, and then the deviation of n scores
    shrinks by the root of (n - 1) / n. Beside scores that are all the same, all are equal to them, to the bit."""
    if scores and min(scores) == max(scores):
        return [scores[0]] * count
    mean = fmean(scores) if scores else 0.0
    pairs = count // 2
    if not pairs or len(scores) < 2:
        return [mean] * count
    step = stdev(scores) * sqrt(count / (2 * pairs))
    return [mean + step, mean - step] * pairs + [mean] * (count % 2)


def _scored(rows: Sequence[Trajectory], rules: CreditRules | None) -> CreditRules:
    return replace(rules or CreditRules(), scored=any(row.reward is not None for row in rows))


def emptied(row: Trajectory) -> Trajectory:
    """One token after another under mask 0, in place of a row that does not fit, or is not there."""
    return replace(
        row,
        prompt_ids=_first(row.prompt_ids),
        response_ids=_first(row.response_ids),
        response_logprobs=array("f", [0.0]),
        loss_mask=array("b", [0]),
        versions=array("i", [-1]),
        turn_ids=(),
        turn_ends=(),
        turn_rewards=(),
        turn_settings=(),
        multimodal=None,
        routed_experts=None,
    )


def no_row(uid: str, sample_index: int, pad_token_id: int) -> Trajectory:
    """One token under mask 0, in place of a session that left no row."""
    return Trajectory(
        job="",
        uid=uid,
        session_id=f"no-session-{sample_index}",
        trajectory_id=0,
        sample_index=sample_index,
        attempt=0,
        prompt_ids=array("i", [pad_token_id]),
        response_ids=array("i", [pad_token_id]),
        response_logprobs=array("f", [0.0]),
        loss_mask=array("b", [0]),
        versions=array("i", [-1]),
        turn_ids=(),
        turn_ends=(),
        main=True,
        failure_class=FailureClass.AGENT.value,
        failure_reason=FailureReason.AGENT_EXIT.value,
        complete=False,
    )


def _first(ids: Ids) -> Ids:
    return ids[:1] or array("i", [0])
