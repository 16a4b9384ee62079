"""GRPO's advantages of a `to_dataproto` batch, with each session counted once."""

from __future__ import annotations

from collections import Counter
from typing import Any


def session_advantages(batch: Any, *, norm_adv_by_std_in_grpo: bool = True) -> tuple[Any, Any]:
    """(advantages, returns), as verl's `compute_grpo_outcome_advantage` makes them of one row of each session that
    teaches; all rows of a session have its advantage. verl's function alone counts each row: a session that forked into
    m rows would count m times. A session that is alone in its group because others are left out has 0.0, where verl
    would take its bare score."""
    import torch  # type: ignore[import-not-found]
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage  # type: ignore[import-not-found]

    columns, mask = batch.non_tensor_batch, batch.batch["response_mask"]
    names = list(zip(columns["uid"], columns["sandgate_session"], strict=True))
    counts = _counting_rows(names, mask.any(-1).tolist(), columns["sandgate_main"])
    made = torch.zeros_like(batch.batch["rm_scores"])
    if counts:
        rows = sorted(counts.values())
        found, _ = compute_grpo_outcome_advantage(
            token_level_rewards=batch.batch["rm_scores"][rows],
            response_mask=torch.ones_like(mask[rows]),
            index=columns["uid"][rows],
            norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo,
        )
        by_row = dict(zip(rows, found[:, 0].tolist(), strict=True))
        lonely = _alone(names, counts)
        for at, name in enumerate(names):
            if name in counts and name[0] not in lonely:
                made[at] = by_row[counts[name]] * mask[at]
    return made, made.clone()


def _counting_rows(names: list[Any], taught: list[bool], main: Any) -> dict[Any, int]:
    """(task, session) -> the row that has its score: the main one, or the newest where that teaches nothing."""
    found: dict[Any, int] = {}
    for at, name in enumerate(names):
        if taught[at] and (name not in found or main[at] or not main[found[name]]):
            found[name] = at
    return found


def _alone(names: list[Any], counts: dict[Any, int]) -> set[Any]:
    """Tasks with several sessions, of which one counts."""
    sizes = Counter(uid for uid, _ in dict.fromkeys(names))
    counting = Counter(uid for uid, _ in counts)
    return {uid for uid, count in counting.items() if count == 1 and sizes[uid] > 1}
