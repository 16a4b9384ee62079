"""The parts of examples/coder-rl: what is asked, run, judged, rebuilt from transcripts and drawn."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sandgate.trainer.tinymodel import END, decode, encode

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "coder-rl"
PARTS = ("turns", "spec", "sandbox", "verifier", "lessons", "agent", "transcripts", "figure", "make_tasks")


@pytest.fixture
def coder(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The example's modules, which have the names of other examples' modules."""
    kept = {name: sys.modules.pop(name) for name in PARTS if name in sys.modules}
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(ROOT / "examples" / "learning")
    yield {name: importlib.import_module(name) for name in PARTS}
    for name in PARTS:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


def test_a_program_as_it_is_written_does_what_the_verifier_computes(coder: dict[str, ModuleType]) -> None:
    spec, sandbox, inputs = coder["spec"], coder["sandbox"].Sandbox(), [-7, 0, 40]
    every = [("+", 9), ("//", 3), ("*", 5), ("%", 7), ("-", 2)]
    steps = spec.random_steps(random.Random(0), held_out=False) + tuple(spec.Step(*one) for one in every)
    assert sandbox.outputs(spec.program(steps), inputs) == [spec.value(steps, x) for x in inputs]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("x //= 0", "ZeroDivisionError"),
        ("x +=", "SyntaxError"),
        ("import os", "ImportError"),
        ("x = x / 2", "x is no integer"),
        ("x = 10**30", [None]),
        ("x = 'a' * 10**10", "MemoryError"),
        ("while 1: pass", "killed"),
        ("x = 1;" * 100, "too long"),
    ],
)
def test_a_program_that_is_none_is_an_answer(coder: dict[str, ModuleType], code: str, answer: Any) -> None:
    assert coder["sandbox"].Sandbox().outputs(code, [1]) == answer


def test_the_verifier_runs_what_was_submitted_on_inputs_of_its_own(coder: dict[str, ModuleType]) -> None:
    judge, sandbox = coder["verifier"].judge, coder["sandbox"].Sandbox()
    wanted = {"steps": [["+", 3], ["*", 2]], "seed": 1}
    cases = {None: 0.0, "x += 3; x *= 2": 1.0, "x = 2*x + 6": 1.0, "x += 3": 0.0, "x = 16": 0.0, "x": 0.0}
    assert {code: judge(wanted, code, sandbox)["reward"] for code in cases} == cases


def test_what_is_checked_in_is_what_make_tasks_writes_and_nothing_is_on_both_sides(
    coder: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coder["make_tasks"], "HERE", tmp_path)
    coder["make_tasks"].main()
    for name in ("train.jsonl", "held_out.jsonl", "specs.json"):
        assert (tmp_path / name).read_text() == (EXAMPLE / name).read_text()
    spec = coder["spec"]
    for name, held_out in (("train", False), ("held_out", True)):
        lines = (EXAMPLE / f"{name}.jsonl").read_text().splitlines()
        every = [[spec.Step(*one) for one in json.loads(line)["data"]["steps"]] for line in lines]
        assert all(spec.is_held_out(steps) == held_out for steps in every)


def test_the_lessons_submit_the_wanted_program_unless_they_make_a_mistake(
    coder: dict[str, ModuleType],
) -> None:
    lessons, verifier, rnd = coder["lessons"], coder["verifier"], random.Random(3)
    careful = lessons.Mistakes()
    for _ in range(20):
        pieces = lessons.episode(rnd, careful)
        said = [json.loads(text.split("\n")[1]) for text, own in pieces if own]
        assert [one["name"] for one in said] == ["read", "run", "submit"]
        assert said[1]["arguments"] == said[2]["arguments"]
        assert "as wanted" in pieces[-2][0]
    assert verifier.HIDDEN > 1


# -- transcripts -----------------------------------------------------------------------------------------

Message = dict[str, str]
TALK: list[Message] = [
    {"role": "user", "content": "spec 1"},
    {"role": "assistant", "content": "read"},
    {"role": "tool", "content": "add 3"},
    {"role": "assistant", "content": "x+=3"},
]


def rendered(messages: Sequence[Message], opens: bool) -> list[int]:
    text = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    return encode(text + ("<|im_start|>assistant\n" if opens else ""))


def recorded(messages: Sequence[Message]) -> tuple[list[int], list[int], list[int]]:
    """Prompt, completion and mask as a gateway has them."""
    prompt = rendered(messages[:1], True)
    first = [*encode(messages[1]["content"]), END]
    told = encode(f"\n<|im_start|>tool\n{messages[2]['content']}<|im_end|>\n<|im_start|>assistant\n")
    second = [*encode(messages[3]["content"]), END]
    return prompt, first + told + second, [1] * len(first) + [0] * len(told) + [1] * len(second)


def test_a_transcript_gives_the_row_that_was_sampled_where_tokens_are_the_tokenizers(
    coder: dict[str, ModuleType],
) -> None:
    rebuilt = coder["transcripts"].Rebuilt.of(TALK, rendered, END)
    prompt, ids, mask = recorded(TALK)
    assert (rebuilt.prompt_ids, rebuilt.completion_ids, rebuilt.mask) == (prompt, ids, mask)
    found = coder["transcripts"].Difference.of(prompt, ids, mask, rebuilt)
    assert (found.sampled, found.lost, found.invented) == (sum(mask), 0, 0)


def test_what_was_sampled_in_other_tokens_or_was_cut_is_counted(coder: dict[str, ModuleType]) -> None:
    of = coder["transcripts"].Difference.of
    rebuilt = coder["transcripts"].Rebuilt.of(TALK, rendered, END)
    prompt, ids, mask = recorded(TALK)
    other = [*ids[:-3], 255, *ids[-2:]]  # a token of which the text tells another
    found = of(prompt, other, mask, rebuilt)
    assert (found.lost, found.invented) == (1, 1)
    found = of(prompt, ids[:-1], mask[:-1], rebuilt)
    assert (found.lost, found.invented) == (0, 1), "nobody sampled the end of an answer that a limit cut"
    assert decode(ids[-3:-1]) == "=3"


# -- figure ----------------------------------------------------------------------------------------------


def made_up(arm: str, seed: int, last: float) -> dict[str, Any]:
    counts = {"rows": 10, "rows_differ": 1, "sampled": 1000, "lost": 2, "invented": 1}
    return {
        "arm": arm,
        "seed": seed,
        "solved": [0.3, 0.5, last, last],
        "held_out": {"0": 0.3, "10": last, "2": 0.5},
        "transcripts": counts,
        "train_s": 90,
    }


def test_the_table_compares_the_same_seeds_by_their_last_evaluation(coder: dict[str, ModuleType]) -> None:
    runs = [made_up("exact", seed, 0.8 + seed / 100) for seed in range(3)]
    runs += [made_up("scored0", seed, 0.7 + seed / 50) for seed in range(2)]
    rows = coder["figure"].table(runs).splitlines()
    assert rows[2] == "| exact records | 3 | 30.0 % | 81.0 % (s.d. 1.0) | - | 60.2 % | 1.5 |".replace(
        "60.2", f"{100 * (0.3 + 0.5 + 2 * 0.81) / 4:.1f}"
    )
    assert "| -9.5 ± 6.4 |" in rows[3]
    assert (
        coder["figure"]
        .differences(runs)
        .startswith("5 of 50 rows (10.00%) differ; of 5000 sampled tokens 10")
    )
    assert coder["figure"].svg(runs).count("<polygon") == 5


def test_the_pages_figure_and_table_are_of_the_runs_beside_it(coder: dict[str, ModuleType]) -> None:
    runs = json.loads((ROOT / "docs" / "learning.json").read_text())
    page = (ROOT / "docs" / "learning.md").read_text()
    assert (ROOT / "docs" / "learning.svg").read_text() == coder["figure"].svg(runs)
    assert coder["figure"].written(page, runs) == page
    assert coder["figure"].table(runs) in page
