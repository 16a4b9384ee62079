"""What samples failed of is counted, and told by the most frequent cause."""

from __future__ import annotations

import pytest

from sandgate.operator.plan.fruitless_samples import CHARS_MAX, WORDS_MAX, Cause, FruitlessSamples

TOLD: dict[str, tuple[list[Cause], str]] = {
    "nothing failed": ([], ""),
    "one cause has its words": ([("AgentExit", "exit code 2")] * 3, "3 AgentExit: exit code 2"),
    "the most frequent reason is told": (
        [("ImageError", "no such image"), ("AgentExit", "x"), ("AgentExit", "x")],
        "2 AgentExit: x",
    ),
    "words that not all said are counted": (
        [("AgentExit", "x"), ("AgentExit", "y"), ("AgentExit", "y")],
        "3 AgentExit, 2 of them: y",
    ),
    "a reason without words stands alone": ([("EngineLost", "")] * 2, "2 EngineLost"),
    "words are one line": ([("AgentExit", "a\n b")], "1 AgentExit: a b"),
}


@pytest.mark.parametrize(("causes", "text"), TOLD.values(), ids=TOLD)
def test_told(causes: list[Cause], text: str) -> None:
    assert str(FruitlessSamples.of(causes)) == text
    assert FruitlessSamples.of(causes).total == len(causes)
    assert str(sum((FruitlessSamples.of([one]) for one in causes), FruitlessSamples())) == text


def test_agents_that_each_say_something_else_fill_no_memory() -> None:
    fruitless = FruitlessSamples.of(("AgentExit", f"{number} {'x' * 9_999}") for number in range(1_000))
    assert fruitless.total == 1_000
    assert len(fruitless.causes) <= WORDS_MAX + 1
    assert all(len(words) <= CHARS_MAX for (_, words), _ in fruitless.causes)
