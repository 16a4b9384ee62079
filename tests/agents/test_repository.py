"""Claude Code and Codex, unmodified, in a small repository with a scripted brain: they edit, test, mend, answer.

All that the engine was asked is in the tree with its role, and the main row is, position for position, what the engine
saw and sampled, also where a sub-agent or a compaction came between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.engine.scripted.engine import logprob_of
from tests.agents import repository
from tests.agents.launch import launched
from tests.agents.node_table import NODE_AGENTS
from tests.agents.repository import ANSWER, CODERS, LOOKED, SUMMARY, TASK, Brain, Line, Said
from tests.support.gateway import codec, engine, gateway, ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WINDOW, SMALL_WINDOW = 200_000, 70_000


@dataclass
class Told:
    """What a session left."""

    brain: Brain
    turns: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    by_id: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_id = {turn["turn"]: turn for turn in self.turns}

    def path(self, turn: dict[str, Any]) -> list[dict[str, Any]]:
        """From its root to it."""
        before = self.by_id.get(turn["parent"] or "")
        return [*(self.path(before) if before else []), turn]

    def prompt(self, turn: dict[str, Any]) -> list[int]:
        """Of a turn, from the ids of its path."""
        spans = [span for one in self.path(turn) for span in one["spans"]][:-1]
        return [token for span in spans for token in span["ids"]]

    def of(self, role: str) -> list[dict[str, Any]]:
        return [turn for turn in self.turns if turn["role"] == role]

    @property
    def main(self) -> dict[str, Any]:
        (row,) = (row for row in self.rows if row["main"])
        return row


async def worked(name: str, what: str, folder: Path) -> Told:
    """The agent mends the repository, with a sub-agent or a compaction after its first turn, by its own count or by our
    400, or with neither."""
    work = repository.made(folder / "work")
    (home := folder / "home").mkdir()
    coder = CODERS[name](work)
    words, more = (coder.words, coder.env) if what == "compaction" else ((), {})
    asides: dict[str, list[Line]] = {
        "": [],
        "sub-agent": coder.sub_call,
        "compaction": [coder.shell("cat orders.txt")],
        "overflow": [coder.shell("tail -c 12000 orders.txt")] * 6,  # it keeps the newest as they are
    }
    window = SMALL_WINDOW if what == "overflow" else WINDOW
    lines = [coder.lines[0], *asides[what], *coder.lines[1:]]
    brain = Brain(lines, coder.sub_lines if what == "sub-agent" else ())
    assert not repository.tests_pass(work)
    async with gateway(engine(brain, max_model_len=window)) as g:
        g.core.turns.told_window = window
        session = await g.session()
        ended = await launched(NODE_AGENTS[name], session, home, work, prompt=TASK, words=words, more=more)
        assert ended.code == 0, ended.tail
        assert ANSWER in ended.out, ended.tail
        turns = await g.tree(session)
        return Told(brain, turns, await g.finalize(session))


def holds(told: Told) -> None:
    """What is so of every session."""
    assert [said.who for said in told.brain.said if said.who == "main"] == ["main"] * len(told.brain.lines)
    assert Counter(turn["role"] for turn in told.turns) == Counter(said.who for said in told.brain.said)
    _as_the_engine_had_it(told)
    assert sum(row["main"] for row in told.rows) == 1
    assert ANSWER in codec().decode(told.main["response_ids"])
    _row(told.main, told)
    roots = [turn for turn in told.turns if not turn["parent"]]
    assert [turn["fork"] for turn in roots if turn["fork"] is None] == [None], "one branch is the first"
    assert all(turn["delivered"] is True and not turn["resampled"] for turn in told.turns)


def _as_the_engine_had_it(told: Told) -> None:
    """Every generation is a turn, with the ids that the engine saw and gave, and its role is what it was for."""
    by_ids = {(*told.prompt(turn), -1, *turn["spans"][1]["ids"]): turn for turn in told.turns}
    for said in told.brain.said:
        turn = by_ids.pop((*said.prompt, -1, *sampled(said)))
        assert turn["role"] == said.who, turn["role_why"]
        assert turn["role_why"] or said.who == "main", "a branch says what told its role"
    assert not by_ids, "a turn that the engine knows nothing of"


def _row(row: dict[str, Any], told: Told) -> None:
    """Position for position: ids, mask and logprobs."""
    path = row["prompt_ids"] + row["response_ids"]
    shift, start = len(row["prompt_ids"]), 0
    said_by_prompt = {tuple(said.prompt): said for said in told.brain.said}
    for end in row["turn_ends"]:
        places = [at for at in range(start, end) if row["loss_mask"][at]]
        first = places[0]
        assert places == list(range(first, end)), "what is sampled stands at a turn's end, in one piece"
        said = said_by_prompt[tuple(path[: shift + first])]
        assert row["response_ids"][first:end] == sampled(said)
        assert row["response_logprobs"][first:end] == [
            logprob_of(token, shift + first + at) for at, token in enumerate(sampled(said))
        ]
        start = end
    assert start == len(row["response_ids"])


def sampled(said: Said) -> list[int]:
    """The ids that the scripted engine gave."""
    return [*ids(said.text), codec().stop_ids[0]]


@pytest.mark.parametrize("name", CODERS)
async def test_a_repository_is_mended_in_one_branch(name: str, tmp_path: Path) -> None:
    told = await worked(name, "", tmp_path)
    assert repository.tests_pass(tmp_path / "work")
    holds(told)
    assert [turn["parent"] for turn in told.turns] == [None, *[turn["turn"] for turn in told.turns[:-1]]]
    assert len(told.rows) == 1


@pytest.mark.parametrize("name", CODERS)
async def test_a_sub_agent_has_a_branch_of_its_own_which_names_its_parent(name: str, tmp_path: Path) -> None:
    told = await worked(name, "sub-agent", tmp_path)
    assert repository.tests_pass(tmp_path / "work")
    holds(told)
    subs, mains = told.of("subagent"), told.of("main")
    assert [turn["parent"] for turn in subs] == [None, subs[0]["turn"]]
    assert subs[0]["fork"] in ("side_call", "tools_changed")
    header = {"Claude Code": "x-claude-code-agent-id", "Codex": "x-openai-subagent"}[name]
    assert {turn["role_why"] for turn in subs} == {header}
    (thread,) = {turn["thread"] for turn in mains}
    assert {turn["parent_thread"] for turn in subs} == {thread}
    (own,) = {turn["thread"] for turn in subs}
    assert own not in ("", thread)
    assert [turn["parent"] for turn in mains] == [None, *[turn["turn"] for turn in mains[:-1]]], (
        "one main branch"
    )
    assert told.main["turn_ids"] == [turn["turn"] for turn in mains]
    (row,) = (row for row in told.rows if row["role"] == "subagent")
    _row(row, told)
    assert LOOKED in codec().decode(row["response_ids"])


@pytest.mark.parametrize(
    ("name", "what"), [("Claude Code", "compaction"), ("Codex", "compaction"), ("Claude Code", "overflow")]
)
async def test_after_a_compaction_the_main_row_is_the_one_with_the_answer(
    name: str, what: str, tmp_path: Path
) -> None:
    told = await worked(name, what, tmp_path)
    assert repository.tests_pass(tmp_path / "work")
    holds(told)
    sides, mains = told.of("side"), told.of("main")
    assert {(turn["fork"], turn["role_why"]) for turn in sides} == {("compaction", "compaction")}
    starts = [at for at, turn in enumerate(mains) if not turn["parent"]]
    assert len(starts) == len(sides) + 1, "after each the conversation begins anew"
    assert [mains[at]["fork"] for at in starts] == [None, *["compaction"] * len(sides)]
    assert all(turn["parent"] in (None, before["turn"]) for before, turn in pairwise(mains))
    assert told.main["turn_ids"] == [turn["turn"] for turn in mains[starts[-1] :]]
    summary = SUMMARY.removeprefix("<summary>\n").removesuffix("\n</summary>")
    assert summary in codec().decode(told.main["prompt_ids"]), "it goes on from the summary"
    assert Counter(row["role"] for row in told.rows) == {"main": len(starts), "side": len(sides)}
