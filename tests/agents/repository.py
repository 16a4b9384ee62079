"""A small repository with a fault and its tests, and who mends it: words for each agent, in the order of its turns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.agents.real_agent import call
from tests.support.gateway import codec

TASK = "The tests of this repository fail. Mend price.py, and say in one sentence what was wrong."
ANSWER = "The discount was added, not taken off; the tests pass now."
THOUGHT = "<think>\nThe tests first.\n</think>\n\n"
COMPACTING = re.compile(
    "detailed summary of (the|our|this) conversation|context checkpoint compaction", re.IGNORECASE
)
"""How Claude Code and Codex ask for a summary."""
SUMMARY = "<summary>\nThe discount in price.py is to be taken off, and a first change was wrong.\n</summary>"
LOOKED = "price.py adds the discount where it should take it off."
SUB_TASK = "Read price.py and say what is wrong with total()."
FILES = {
    "price.py": 'def total(items, discount=0):\n    """What a basket costs."""\n    return sum(items) + discount\n',
    "test_price.py": (
        "import unittest\n\nfrom price import total\n\n\n"
        "class Total(unittest.TestCase):\n"
        "    def test_plain(self):\n        self.assertEqual(total([1, 2]), 3)\n\n"
        "    def test_discount(self):\n        self.assertEqual(total([5, 5], discount=3), 7)\n"
    ),
    "orders.txt": "".join(f"{number:04} kiwi {number * 7 % 13} plum\n" for number in range(1500)),
}
"""The last one fills a context."""
TESTS = f"{sys.executable} -B -m unittest -q"
WRONG = ("sum(items) + discount", "sum(items) * discount")
RIGHT = ("sum(items) * discount", "sum(items) - discount")

Line = str | Callable[[str], str]
"""What is said next; or that, of the prompt's text."""


def made(folder: Path) -> Path:
    """The repository, with one commit."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "as it was"]):
        subprocess.run([*git, *words], cwd=folder, check=True, timeout=20)
    return folder


def tests_pass(folder: Path) -> bool:
    """Its own."""
    done = subprocess.run(TESTS.split(), cwd=folder, check=False, capture_output=True, timeout=60)
    return done.returncode == 0


@dataclass(frozen=True)
class Said:
    """One generation: what the engine was sent, and what it was to say."""

    prompt: list[int]
    text: str
    who: str
    """main, subagent or side."""


@dataclass
class Brain:
    """Says the next line of whoever asks: the main conversation, a sub-agent, or a compaction."""

    lines: Sequence[Line]
    sub_lines: Sequence[Line] = ()
    said: list[Said] = field(default_factory=list)

    def __call__(self, prompt: Any, _: int) -> str:
        text = codec().decode(prompt)
        who = self._who(text)
        line: Line = SUMMARY
        if who != "side":
            lines = self.lines if who == "main" else self.sub_lines
            line = lines[sum(said.who == who for said in self.said)]
        said = line if isinstance(line, str) else line(text)
        self.said.append(Said(list(prompt), said, who))
        return said

    def _who(self, prompt: str) -> str:
        users = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
        if COMPACTING.search(users[-1]):
            return "side"
        asked = [text for text in users if not text.startswith("<tool_response>")]
        return "subagent" if self.sub_lines and any(SUB_TASK in text for text in asked) else "main"


class Coder:
    """What an agent's model says in a repository at `work`, with that agent's tools."""

    words: tuple[str, ...] = ()
    env: ClassVar[Mapping[str, str]] = {}
    """Its command line and environment, where reading orders.txt is to make it compact its history."""
    lines: list[Line]
    sub_call: list[Line]
    """Has a sub-agent look, and waits for it."""
    sub_lines: list[Line]

    def __init__(self, work: Path) -> None:
        raise NotImplementedError

    def shell(self, command: str) -> str:
        """Calls it."""
        raise NotImplementedError


class ClaudeCode(Coder):
    """It compacts at 45,000 tokens, of which its own prompt has 41,000."""

    env: ClassVar[Mapping[str, str]] = {
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000",
        "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "25",
    }

    def __init__(self, work: Path) -> None:
        self.path = str(work / "price.py")
        tests = self.shell(TESTS)
        self.lines = [
            THOUGHT + call("Read", f'{{"file_path" : "{self.path}"}}'),
            self._edit(*WRONG),
            tests,
            "That was wrong.\n" + self._edit(*RIGHT),
            tests,
            ANSWER,
        ]
        self.sub_lines = [call("Read", json.dumps({"file_path": self.path})), LOOKED]
        asked = {"description": "look", "subagent_type": "general-purpose", "prompt": SUB_TASK}
        self.sub_call = [call("Agent", json.dumps(asked))]

    def shell(self, command: str) -> str:
        return call("Bash", json.dumps({"description": "see", "command": command}))

    def _edit(self, before: str, after: str) -> str:
        """Not in the order of the schema."""
        return call(
            "Edit", f'{{"file_path": "{self.path}", "new_string": "{after}",  "old_string": "{before}"}}'
        )


class Codex(Coder):
    """It edits by patches; sub-agents run beside it until they are waited for. Its own prompt has 19,000 tokens."""

    words = ("-c", "model_auto_compact_token_limit=22000")

    def __init__(self, work: Path) -> None:
        tests = self.shell(TESTS)
        self.lines = [
            THOUGHT + self.shell("cat price.py test_price.py"),
            self._patch(*WRONG),
            tests,
            "That was wrong.\n" + self._patch(*RIGHT),
            tests,
            ANSWER,
        ]
        self.sub_lines = [self.shell(f"cat {work}/price.py"), LOOKED]
        self.sub_call = [
            call("multi_agent_v1__spawn_agent", json.dumps({"message": SUB_TASK})),
            self._wait,
        ]

    def shell(self, command: str) -> str:
        return call("exec_command", f'{{ "cmd":{json.dumps(command)} ,"yield_time_ms": 9000}}')

    def _patch(self, before: str, after: str) -> str:
        hunk = f"@@\n-    return {before}\n+    return {after}\n"
        return self.shell(
            f"apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: price.py\n{hunk}*** End Patch\nEOF\n"
        )

    def _wait(self, prompt: str) -> str:
        (name,) = re.findall(r'"agent_id":\s*"([^"]+)"', prompt.rpartition("<tool_response>")[2])
        return call("multi_agent_v1__wait_agent", json.dumps({"targets": [name], "timeout_ms": 60_000}))


CODERS: dict[str, type[Coder]] = {"Claude Code": ClaudeCode, "Codex": Codex}
