"""The reward curve: in the terminal while it rises, and as a PNG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEIGHT = 10
"""Rows of the curve in the terminal."""
WIDTH_MAX = 80
"""Columns; of more steps the last ones are shown."""
BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class Story:
    """What steps.jsonl tells, in the trainer's order; a step that was done again counts once."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Optimizer steps done -> what was measured."""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    evaluations: dict[int, float] = field(default_factory=dict)
    """Optimizer steps done -> share of what is evaluated that was solved."""
    starts: list[float] = field(default_factory=list)
    """Unix seconds: when a trainer process began."""
    trained_s: float = 0.0
    """Seconds that trainer processes took, up to what each told last: not those between a stop and the next start."""
    done: bool = False

    @property
    def solved(self) -> list[float]:
        return [self.steps[step]["solved"] for step in sorted(self.steps)]

    @property
    def points(self) -> float | None:
        """Percentage points of solved episodes, after against before."""
        if self.before is None or self.after is None:
            return None
        return 100 * float(self.after["eval_solved"] - self.before["eval_solved"])

    @property
    def worst(self) -> float:
        """Largest difference between a captured logprob and the trainer's, where both had the same weights."""
        same = [one for one in self.steps.values() if one.get("behind_max") == 0]
        return max((float(one.get("logp_difference_max", 0.0)) for one in same), default=0.0)


def read(path: Path) -> Story:
    found = Story()
    lines = path.read_text().splitlines() if path.exists() else []
    last = 0.0
    for line in lines:
        try:
            one = json.loads(line)
        except ValueError:  # cut by a kill
            continue
        now = float(one.get("at", last))
        if "began" not in one:
            found.trained_s += now - last
        last = now
        if "began" in one:
            found.starts.append(one["began"])
        elif "done" in one:
            found.done = True
        elif "eval_solved" in one:
            found.evaluations[one["step"]] = one["eval_solved"]
            if one["step"] == 0:
                found.before = one
            else:
                found.after = one
        elif "solved" in one:
            found.steps[one["step"]] = one
    return found


def curve(values: Sequence[float], height: int = HEIGHT) -> list[str]:
    """Lines of text, top first: one column per value, which are from 0 to 1."""
    shown = values[-WIDTH_MAX:]
    rows = []
    for row in reversed(range(height)):
        cells = "".join(BARS[max(0, min(8, round((value * height - row) * 8)))] for value in shown)
        label = f"{(row + 1) * 100 // height:3d} % " if row % 2 else "      "
        rows.append(f"{label}│{cells}")
    return [*rows, f"      └{'─' * max(1, len(shown))}"]


def write_png(story: Story, path: Path, title: str) -> None:
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    steps = sorted(story.steps)
    axes.plot(steps, [100 * story.steps[step]["solved"] for step in steps], marker="o", markersize=3)
    for one, text in ((story.before, "before"), (story.after, "after")):
        if one is not None:
            solved = 100 * one["eval_solved"]
            axes.plot([one["step"]], [solved], marker="D", color="black")
            axes.annotate(
                f"{text}: {solved:.0f} %",
                (one["step"], solved),
                (0, 10),
                textcoords="offset points",
                ha="center",
            )
    axes.set(xlabel="optimizer steps", ylabel="solved, %", ylim=(0, 105), title=title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
