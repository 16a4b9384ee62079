"""opencode, pi and qwen-code, unmodified, when a prompt is longer than the window: our 400 starts their compaction.

What asks for the summary is a side call, in whatever words, and the row with the answer is the main one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agents.launch import launched
from tests.agents.node_table import NODE_AGENTS
from tests.agents.real_agent import call
from tests.support.gateway import codec, engine, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ANSWER = "There are 1,500 orders."
SUMMARY = "The orders of this shop were read in part, and 1,500 are expected."
ORDERS = "".join(f"{number:04} kiwi {number * 7 % 13} plum\n" for number in range(1500))
AGENTS = {
    "opencode": ("bash", 12_000, 36_000),
    "pi": ("bash", 12_000, 30_000),
    "qwen-code": ("run_shell_command", 3_600, 49_500),
}
"""Its tool, the bytes of a look, and a window that its own prompt and four or five looks do not leave enough of.

qwen-code reads its shell through a terminal, in pieces of 4,095 bytes, and loses those behind the first if the shell
ends sooner. A look of more is of any size, and the window may be full within the call that asks for the next one: that
call is cut, and a cut call ends qwen-code before it compacts.
"""
LOOKS = 12
"""More than any of the windows holds: an agent that has looked this often is never going to compact."""
STOPS_THEN = {"pi"}
"""With -p it compacts, and ends without an answer."""


class Brain:
    """Looks until it reads a summary, then answers; makes the summary when asked for one.

    It goes by the prompt alone, not by how often it was asked. If it looked again behind the summary, qwen-code would
    compact a second time, and with the same words in the summary that is a request it has sent before.
    """

    def __init__(self, tool: str, look: int) -> None:
        self.tool = tool
        self.look = look

    def __call__(self, prompt: Any, _: int) -> str:
        text = codec().decode(prompt)
        if "<tools>" not in text:
            return "A title" if "title generator" in text else SUMMARY
        if SUMMARY in text or text.count("<tool_response>") > LOOKS:
            return ANSWER
        asked = {"command": f"tail -c {self.look} orders.txt", "description": "see", "is_background": False}
        return call(self.tool, json.dumps(asked))


@pytest.mark.parametrize("name", AGENTS)
async def test_a_summary_is_a_side_call_and_the_answer_is_in_the_main_row(name: str, tmp_path: Path) -> None:
    tool, look, window = AGENTS[name]
    (work := tmp_path / "work").mkdir()
    (work / "orders.txt").write_text(ORDERS)
    async with gateway(engine(Brain(tool, look), max_model_len=window)) as g:
        g.core.turns.told_window = window
        session = await g.session()
        ended = await launched(NODE_AGENTS[name], session, tmp_path, work)
        turns = await g.tree(session)
        rows = await g.finalize(session)
    asked = [turn for turn in turns if SUMMARY in turn["spans"][1]["text"]]
    told = [(turn["role"], turn["prompt_tokens"], turn["finish"]) for turn in turns]
    assert asked, f"it was not asked for a summary: {told}, {ended.tail}"
    assert {(turn["role"], turn["role_why"], turn["fork"]) for turn in asked} == {
        ("side", "compaction", "compaction")
    }
    others = {turn["role_why"] for turn in turns if turn["role"] != "main"} - {"compaction"}
    assert others <= {"title"}
    (row,) = (row for row in rows if row["main"])
    if name in STOPS_THEN:
        assert ended.code == 0, ended.tail
        return
    assert ANSWER in ended.out, ended.tail
    assert ANSWER in codec().decode(row["response_ids"])
    assert SUMMARY in codec().decode(row["prompt_ids"]), "it goes on from the summary"
    assert row["fork_reason"] == "compaction"
