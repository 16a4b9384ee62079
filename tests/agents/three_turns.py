"""What must hold of any real agent's task: one conversation, with the ids that the engine saw, and its roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agents.real_agent import FINAL, RealAgent
from tests.agents.running import TITLE, Episode, episode
from tests.agents.seen import recorded, row_of

Turns = list[dict[str, Any]]


async def three_turns(name: str, agent: RealAgent, home: Path) -> None:
    """Runs it. Raises AssertionError."""
    seen = await episode(agent, home)
    assert FINAL in seen.said
    assert agent.elsewhere or not seen.elsewhere
    asides = [turn for turn in seen.turns if turn["spans"][1]["text"].startswith(TITLE)]
    main = [turn for turn in seen.turns if turn not in asides]
    _conversation(agent, main, asides, seen)
    _roles(main, asides, seen)
    _ids(seen)
    assert recorded().get(name) == row_of(name, agent, seen), "python -m tests.agents.report"


def _conversation(agent: RealAgent, main: Turns, asides: Turns, seen: Episode) -> None:
    first, second, _ = main
    parents = [None] * 3 if agent.rewrites else [None, first["turn"], second["turn"]]
    assert [turn["parent"] for turn in main] == parents
    begun = "new_root" if seen.turns[0] in asides else None
    assert [turn["fork"] for turn in main] == [begun, *[agent.rewrites or None] * 2]
    notes = [[note.partition(": ")[2] for note in turn["notes"]] for turn in main]
    assert notes == [[], *[[agent.note] if agent.note else []] * 2]
    assert len(asides) == agent.asides
    assert all(turn["fork"] == "side_call" for turn in asides if turn is not seen.turns[0])


def _roles(main: Turns, asides: Turns, seen: Episode) -> None:
    assert [(turn["role"], turn["role_why"]) for turn in main] == [("main", "")] * 3
    assert [(turn["role"], turn["role_why"]) for turn in asides] == [("side", "title")] * len(asides)
    (answer,) = [row for row in seen.rows if row["main"]]
    assert answer["turn_ids"][-1] == main[-1]["turn"], "the main row is the one with the answer"
    titles = {turn["turn"] for turn in asides}
    for row in seen.rows:
        assert row["role"] == ("side" if titles & set(row["turn_ids"]) else "main")


def _ids(seen: Episode) -> None:
    sampled = {turn["turn"]: turn["sampled_tokens"] for turn in seen.turns}
    for row in seen.rows:
        path, start = row["prompt_ids"] + row["response_ids"], len(row["prompt_ids"])
        for turn, end in zip(row["turn_ids"], row["turn_ends"], strict=True):
            assert path[: start + end - sampled[turn]] in seen.prompts, (
                "the prompt is not what the engine was sent"
            )
