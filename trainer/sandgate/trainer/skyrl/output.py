"""Groups as SkyRL's `GeneratorOutput`: what a custom generator of its trainer returns.

Needs nothing of SkyRL (docs/trainers/skyrl.md): its output is a dict of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sandgate.contract.errors import Conflict
from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.batches import emptied, in_place, masked, no_row
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import WHOLE_SESSION, CreditRules, LeftOut, reasons
from sandgate.trainer.credit.samples import by_sample
from sandgate.trainer.credit.shared_turns import handed_on
from sandgate.trainer.credit.sink import SinkGroup

ENDED = "stop"
"""SkyRL's overlong filtering masks whatever has another stop reason."""


class TrajectoryId(Protocol):
    """SkyRL's TrajectoryID: one sample of one of the trainer's prompts."""

    @property
    def instance_id(self) -> str: ...
    @property
    def repetition_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Session:
    """What becomes of one sample."""

    rows: tuple[Trajectory, ...]
    """Its rows; the last one has its score."""
    why: LeftOut | None
    """Why the last one teaches nothing."""


def to_generator_output(
    groups: Mapping[str, Sequence[Trajectory]],
    asked: Sequence[TrajectoryId],
    *,
    step_wise: bool = False,
    pad_token_id: int = 0,
    rules: CreditRules | None = None,
    counters: RowCounters | None = None,
    evaluation: bool = False,
) -> dict[str, Any]:
    """SkyRL's dict for one batch. `groups`: by `instance_id`, all rows of the task's sessions; a session's sample index
    is its `repetition_id`. `asked`: the batch's `trajectory_ids`, in order.

    One row for each of `asked`: the session's main row with all that was sampled on its path. `step_wise`
    (`generator.step_wise_trajectories`): all rows of a session that teach, the main one last, so that SkyRL counts a
    session once and gives its advantage to all its rows. `rewards` are the sessions' scores. A session that teaches
    nothing (a failure that is not the policy's, no reward, more tokens than `rules.lengths`) is one row under mask 0
    whose score leaves the others' mean as it was; two and more also their deviation. `evaluation`: nobody makes
    advantages of this batch, so such scores are the plain mean, and episodes that a limit ended count, whatever `rules`
    say: one that was cut short did not solve its task. `rollout_metrics` has this batch's counts, by reason; `counters`
    counts them too.

    Raises Conflict for a sample that was not asked for, or twice; InvalidBody for rows of more than one task, for
    images, and for numbers that are none.
    """
    rules = replace(rules or CreditRules(), scored=True)
    if evaluation:
        rules = replace(rules, truncated="score")
    sessions = _sessions(groups, asked, rules, pad_token_id, step_wise=step_wise, spread=not evaluation)
    counted = RowCounters()
    rows: list[Trajectory] = []
    ids: list[TrajectoryId] = []
    last: list[bool] = []
    for one, session in zip(asked, sessions, strict=True):
        rows += session.rows
        ids += [one] * len(session.rows)
        last += [False] * (len(session.rows) - 1) + [True]
        out = {} if session.why is None else {session.why.value: 1}
        counted.add(len(session.rows) - len(out), out)
    if counters is not None:
        counters.add(counted.taught, counted.left_out)
    return {
        "prompt_token_ids": [row.prompt_ids.tolist() for row in rows],
        "response_ids": [row.response_ids.tolist() for row in rows],
        "rewards": [float(row.reward or 0.0) for row in rows],
        "loss_masks": [row.loss_mask.tolist() for row in rows],
        "stop_reasons": [row.finish_reason or ENDED for row in rows],
        "rollout_metrics": {f"sandgate/{name}": value for name, value in counted.metrics().items()},
        "rollout_logprobs": [row.response_logprobs.tolist() for row in rows],
        "trajectory_ids": ids,
        "trajectory_generation_times": None,
        "rollout_expert_indices": None,
        "is_last_step": last if step_wise else None,
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }


@dataclass(frozen=True, slots=True)
class SkyRLSink:
    """`to_generator_output` as a RolloutSink."""

    trajectory_id: Callable[[str, int], TrajectoryId]
    """SkyRL's own `TrajectoryID`."""
    step_wise: bool = False
    pad_token_id: int = 0
    rules: CreditRules | None = None

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> dict[str, Any]:
        """See RolloutSink."""
        asked = [self.trajectory_id(group.uid, one) for group in groups for one in range(group.samples)]
        return to_generator_output(
            {group.uid: group.rows for group in groups}, asked, step_wise=self.step_wise,
            pad_token_id=self.pad_token_id, rules=self.rules, counters=counters,
        )  # fmt: skip


def _sessions(
    groups: Mapping[str, Sequence[Trajectory]],
    asked: Sequence[TrajectoryId],
    rules: CreditRules,
    pad: int,
    *,
    step_wise: bool,
    spread: bool,
) -> list[_Session]:
    """Of each that was asked for."""
    samples: dict[str, set[int]] = {}
    for one in asked:
        if one.repetition_id in samples.setdefault(one.instance_id, set()):
            raise Conflict(f"sample {one.repetition_id} of {one.instance_id!r} is asked for twice")
        samples[one.instance_id].add(one.repetition_id)
    found = {
        name: by_sample(rows, samples.get(name, ()), "n_samples_per_prompt") for name, rows in groups.items()
    }
    own = [found.get(one.instance_id, {}).get(one.repetition_id, []) for one in asked]
    if step_wise:
        own = [handed_on(rows, reasons(rows, rules)) for rows in own]
    mains = [
        replace(main_row(rows) if step_wise else alone(rows), uid=one.instance_id)
        if rows
        else no_row(one.instance_id, one.repetition_id, pad)
        for one, rows in zip(asked, own, strict=True)
    ]
    whys = reasons(mains, rules)
    others = [
        _others(rows, main, rules) if step_wise and why not in WHOLE_SESSION else []
        for rows, main, why in zip(own, mains, whys, strict=True)
    ]
    # A session counts with its score where its main row teaches nothing of its own, but another one does.
    alike = [None if more else why for more, why in zip(others, whys, strict=True)]
    kept = in_place(mains, alike, rules, spread=spread)
    return [
        _Session((*more, _without_its_own(main) if more and why else main), why)
        for more, main, why in zip(others, kept, whys, strict=True)
    ]


def _without_its_own(main: Trajectory) -> Trajectory:
    return masked(main) if main.response_ids else emptied(main)


def _others(rows: Sequence[Trajectory], main: Trajectory, rules: CreditRules) -> list[Trajectory]:
    """The session's other rows that teach."""
    pairs = zip(rows, reasons(rows, rules), strict=True)
    return [row for row, why in pairs if why is None and row.trajectory_id != main.trajectory_id]
