"""`python -m tests.agents.report [NAME...]`: run real agents, all or those named, and write docs/agents-seen.md."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.agents.running import episode
from tests.agents.seen import AGENTS, PAGE, page, recorded, row_of
from tests.support.needs import NEEDS

PARTS = ("node-agents", "openai3-agents", "openai2-agents")


def main(names: list[str]) -> None:
    for part in PARTS:
        if not NEEDS[part].ready():
            NEEDS[part].make()
    rows = recorded()
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            rows[name] = row_of(name, AGENTS[name], asyncio.run(episode(AGENTS[name], Path(home))))
        print(rows[name], flush=True)
    PAGE.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or list(AGENTS))
