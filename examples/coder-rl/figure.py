"""The comparison as a picture (SVG) and a table (Markdown), from the runs that compare.py left.

    python examples/coder-rl/figure.py out/compare-rl/runs docs/learning.json   collects runs
    python examples/coder-rl/figure.py docs/learning.json   writes learning.svg, and the table into learning.md

Curves are means over seeds, bands one standard deviation to either side.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Run = dict[str, Any]
ARMS = {
    "exact": ("#1b6ca8", "exact records"),
    "retokenized": ("#d1495b", "re-tokenized transcripts"),
    "masked": ("#2e8b57", "lost sandboxes masked"),
    "scored0": ("#e08e0b", "lost sandboxes scored 0"),
}
BEGIN, END = "<!-- results: figure.py writes this -->\n", "<!-- end of results -->\n"
"""Around what is written into the page."""
PANELS = (("exact", "retokenized"), ("exact", "masked", "scored0"))
WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 260, 48, 34, 60
"""Pixels of a panel, of the margins, between panels."""
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for a two-sided interval of 95 %, by the number of values."""


def of(runs: Sequence[Run], arm: str) -> list[Run]:
    return sorted((one for one in runs if one["arm"] == arm), key=lambda one: one["seed"])


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def held_out(runs: Sequence[Run], arm: str) -> list[tuple[int, list[float]]]:
    """Steps -> percent solved with each seed."""
    found: dict[int, list[float]] = {}
    for one in of(runs, arm):
        for step, share in one["held_out"].items():
            found.setdefault(int(step), []).append(100 * share)
    return sorted(found.items())


def training(runs: Sequence[Run], arm: str) -> list[tuple[int, list[float]]]:
    curves = [one["solved"] for one in of(runs, arm)]
    steps = min(map(len, curves), default=0)
    return [(step + 1, [100 * curve[step] for curve in curves]) for step in range(steps)]


def svg(runs: Sequence[Run]) -> str:
    """Two panels: what was sampled against what was guessed, and what became of lost sandboxes."""
    last = max((step for arm in ARMS for step, _ in training(runs, arm)), default=1)
    whole = LEFT + len(PANELS) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {HEIGHT + TOP + 46}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, arms in enumerate(PANELS):
        parts += panel(runs, arms, LEFT + number * (WIDTH + GAP), last)
    return "\n".join([*parts, "</svg>", ""])


def panel(runs: Sequence[Run], arms: Sequence[str], left: int, last: int) -> list[str]:
    def at(step: float, percent: float) -> str:
        return f"{left + WIDTH * step / last:.1f},{TOP + HEIGHT * (1 - percent / 100):.1f}"

    parts = []
    for percent in range(0, 101, 20):
        y = TOP + HEIGHT * (1 - percent / 100)
        parts.append(f'<path d="M{left},{y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>')
    for step in range(0, last + 1, max(1, last // 4)):
        x = left + WIDTH * step / last
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{step}</text>')
    under = f'y="{TOP + HEIGHT + 34}" text-anchor="middle"'
    parts.append(f'<text x="{left + WIDTH / 2}" {under}>optimizer steps; held-out specs solved, %</text>')
    for row, arm in enumerate(arms):
        colour, name = ARMS[arm]
        points = [(step, fmean(values), spread(values)) for step, values in held_out(runs, arm)]
        edge = [at(step, min(100, mean + off)) for step, mean, off in points]
        edge += [at(step, max(0, mean - off)) for step, mean, off in reversed(points)]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{colour}" opacity="0.18"/>')
        line = " ".join(at(step, mean) for step, mean, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        thin = " ".join(at(step, fmean(values)) for step, values in training(runs, arm))
        parts.append(f'<polyline points="{thin}" fill="none" stroke="{colour}" stroke-dasharray="2 3"/>')
        y = TOP + 14 + 16 * row
        parts.append(f'<path d="M{left + 8},{y - 4}h20" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 34}" y="{y}">{name} ({len(of(runs, arm))} seeds)</text>')
    return parts


def interval(values: Sequence[float]) -> str:
    """Mean and its 95 % interval."""
    if len(values) < 2:
        return f"{fmean(values):+.1f}"
    off = T_95.get(len(values), 1.96) * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):+.1f} ± {off:.1f}"


def table(runs: Sequence[Run]) -> str:
    """One row for each arm; differences from `exact` are of the same seeds."""
    lines = [
        "| arm | seeds | held out: before | after | after, against exact (95 %) | trained on: last 4 steps | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    exact = {one["seed"]: final(one) for one in of(runs, "exact")}
    for arm, (_, name) in ARMS.items():
        mine = of(runs, arm)
        if not mine:
            continue
        before = fmean(100 * one["held_out"]["0"] for one in mine)
        after = [final(one) for one in mine]
        late = [100 * fmean(one["solved"][-4:]) for one in mine]
        off = [final(one) - exact[one["seed"]] for one in mine if one["seed"] in exact]
        against = "-" if arm == "exact" or not off else interval(off)
        minutes = fmean(one["train_s"] for one in mine) / 60
        lines.append(
            f"| {name} | {len(mine)} | {before:.1f} % | {fmean(after):.1f} % (s.d. {spread(after):.1f}) | {against} | "
            f"{fmean(late):.1f} % | {minutes:.1f} |"
        )
    return "\n".join(lines) + "\n"


def final(run: Run) -> float:
    return 100 * float(run["held_out"][max(run["held_out"], key=int)])


def differences(runs: Sequence[Run]) -> str:
    """How often a transcript's row is not what was sampled: over all runs, whatever they trained on."""
    keys = ("rows", "rows_differ", "sampled", "lost", "invented")
    rows, differ, sampled, lost, invented = (sum(one["transcripts"][key] for one in runs) for key in keys)
    return (
        f"{differ} of {rows} rows ({differ / max(1, rows):.2%}) differ; of {sampled} sampled tokens {lost} "
        f"({lost / max(1, sampled):.3%}) are not trained on as such, and {invented} are that nobody sampled.\n"
    )


def results(runs: Sequence[Run]) -> str:
    """What the page says in numbers."""
    masked = [one["masked"] for one in of(runs, "masked")]
    lost = f"Of training episodes in the arm that masks, {fmean(masked):.1%} were lost.\n" if masked else ""
    worst = max(one["logprob_difference_max"] for one in runs)
    exact = f"Captured logprobs were within {worst:.0e} of the trainer's own in all runs that had them.\n"
    return f"{table(runs)}\nBy all runs, whatever they trained on: {differences(runs)}{lost}{exact}"


def written(page: str, runs: Sequence[Run]) -> str:
    """The page with these runs' results."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + results(runs) + END + rest.partition(END)[2]


def main() -> None:
    source = Path(sys.argv[1])
    if source.is_dir():
        found = [json.loads(path.read_text()) for path in sorted(source.glob("*.json"))]
        Path(sys.argv[2]).write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
        return
    runs = json.loads(source.read_text())
    source.with_suffix(".svg").write_text(svg(runs))
    page = source.with_suffix(".md")
    page.write_text(written(page.read_text(), runs))


if __name__ == "__main__":
    main()
