"""Groups as the responses that OpenRLHF's rollout engines give: what an `AgentExecutor` returns, for all of a prompt.

Needs nothing of OpenRLHF (docs/trainers/openrlhf.md): a response is a dict of lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sandgate.contract.trajectory import Mask, Trajectory
from sandgate.trainer.credit.batches import kept_in_place, no_row
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, is_truncated
from sandgate.trainer.credit.samples import by_sample
from sandgate.trainer.credit.sink import SinkGroup


def to_responses(
    rows: Sequence[Trajectory],
    n: int,
    *,
    prompt: str = "",
    label: Any = None,
    pad_token_id: int = 0,
    rules: CreditRules | None = None,
    counters: RowCounters | None = None,
) -> list[dict[str, Any]]:
    """Of one group, a response for each sample 0..n-1: `rollout.n_samples_per_prompt` of OpenRLHF. None at all, so
    that OpenRLHF goes on without the prompt, if nothing of it teaches: it would make NaN of a step without a range.

    `observation_tokens` are the session's main row, prompt and all; `action_ranges` the spans that are trained, [start,
    end) in it; `rollout_log_probs` the engine's; `reward` and `scores` the session's. A session that teaches nothing (a
    failure that is not the policy's, no reward, more tokens than `rules.lengths`, no row at all) has no range, and a
    reward that leaves the others' mean as it was; two and more also their deviation. `prompt`, `label`: as OpenRLHF
    gave them. `rules.lengths.total` should be its `max_len`: what is longer would be cut there.

    Raises Conflict for a sample beyond n; InvalidBody for rows of more than one task, for images, and for numbers that
    are none.
    """
    rules = replace(rules or CreditRules(), scored=True)
    own = by_sample(rows, range(n), "n_samples_per_prompt")
    uid = rows[0].uid if rows else ""
    mains = [alone(own[one]) if one in own else no_row(uid, one, pad_token_id) for one in range(n)]
    kept, whys = kept_in_place(mains, rules, scores_later=False)
    if counters is not None:
        counters.add(whys.count(None), Counter(why.value for why in whys if why is not None))
    if all(whys):
        return []
    return [_response(row, why, prompt, label) for row, why in zip(kept, whys, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRLHFSink:
    """`to_responses` of each group as a RolloutSink; a group that teaches nothing has none."""

    pad_token_id: int = 0
    rules: CreditRules | None = None

    def batch(
        self, groups: Sequence[SinkGroup], counters: RowCounters | None = None
    ) -> list[list[dict[str, Any]]]:
        """See RolloutSink."""
        return [
            to_responses(
                group.rows, group.samples, pad_token_id=self.pad_token_id, rules=self.rules, counters=counters
            )
            for group in groups
        ]


def _response(row: Trajectory, why: LeftOut | None, prompt: str, label: Any) -> dict[str, Any]:
    before, reward = len(row.prompt_ids), float(row.reward or 0.0)
    return {
        "prompt": prompt,
        "label": label,
        "images": None,
        "mm_train_inputs": None,
        "reward": reward,
        "scores": reward,
        "observation_tokens": (row.prompt_ids + row.response_ids).tolist(),
        "action_ranges": [(before + start, before + end) for start, end in _spans(row.loss_mask)],
        "rollout_log_probs": [0.0] * before + row.response_logprobs.tolist(),
        "truncated": why is None and is_truncated(row),  # else OpenRLHF scores it anew
        "extra_logs": {"sandgate_taught": float(why is None)},
    }


def _spans(mask: Mask) -> list[tuple[int, int]]:
    """[start, end) of each run of ones."""
    steps = np.diff(np.concatenate(([0], np.frombuffer(mask, np.int8), [0])))
    return list(zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True))
