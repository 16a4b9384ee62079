"""Real agents from their packages: what starts one, what its tools are called, and where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.environments import built, node_packages

FOLDER = Path(__file__).parent
DRIVERS = FOLDER / "drivers"
NODE = "node"
PROMPT = "What does a.txt say?"
FINAL = "It says kiwi."
Json = dict[str, Any]


@dataclass(frozen=True)
class RealAgent:
    """One client in one protocol. It calls a tool, calls another, and answers."""

    package: str
    """As its registry names it."""
    protocol: str
    environment: str
    """Folder beside this file whose pins are installed: package.json by scripts/node-env.sh, requirements.txt by
    scripts/agent-env.sh."""
    command: Callable[[Path, str], list[str]]
    """(where it is installed, base URL) -> what is run."""
    calls: tuple[str, str]
    """What the model says to call its tools: as text, odd on purpose."""
    final: str = FINAL
    """What the model says in the end."""
    files: dict[str, Callable[[str, str], Json]] = field(default_factory=dict)
    """Path below HOME -> its JSON, made of base URL and key."""
    asides: int = 0
    """Titles that it asks for beside the conversation."""
    elsewhere: bool = False
    """It asks for hosts beside the gateway, whatever its switches say; it does without them."""
    note: str = ""
    """What the tree notes of its echoes."""
    answered: str = "<tool_response>"
    """Stands once in the prompt for each tool's result."""
    tools_shown: bool = True
    """False: its tools are described in its own words."""
    rewrites: str = ""
    """It sends another history than was said: the reason for which its second and third turn fork."""

    @property
    def version(self) -> str:
        """Of its package, as it is pinned."""
        if self.environment == NODE:
            pins: dict[str, str] = json.loads((FOLDER / NODE / "package.json").read_text())["dependencies"]
        else:
            lines = (FOLDER / self.environment / "requirements.txt").read_text().splitlines()
            pins = dict(line.split("==") for line in lines if "==" in line)
        return pins[self.package]

    @property
    def installed(self) -> Path:
        """Raises AssertionError if it is not: tests/support/needs.py."""
        if self.environment == NODE:
            return node_packages(f"tests/agents/{NODE}")
        folder = f"tests/agents/{self.environment}"
        found = built("agent-env.sh", folder)
        assert found is not None, f"scripts/agent-env.sh {folder} was not run: tests/support/needs.py"
        return found


def call(name: str, arguments: str) -> str:
    """The JSON text is what a model might write: spaces, escapes, keys in any order."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


LOOK = (
    call("look", '{ "line":1.0 ,"path": "a.txt" }'),
    call("look", '{"path":"caf\\u00e9\\/b.txt",  "line": 1.2e1}'),
)
"""Of the drivers' one tool."""
