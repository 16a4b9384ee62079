"""The engine of a chaos job, as it runs in its pods: random words, slowly, and a book of what was asked for.

`engine.py MODEL BOOK`. The book is a folder of the node's disk: it outlives the pod. An answer is decided before its
first token, so a line that is written then tells all of it, whatever dies afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.scripted.script import Ask, Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.tokens.load import find_folder, read_checkpoint

PORT = 8000
TOKEN_S = 0.04
"""An answer of some 30 tokens takes a second: whatever dies, dies in the middle of some."""
WORDS = 3


class Booked(Player):
    """Notes `{"id", "prompt", "plan", "at"}` of each generation before it starts."""

    def __init__(self, book: Path, folder: str) -> None:
        checkpoint = read_checkpoint(find_folder(folder))
        self._book = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        super().__init__(
            self._words,
            encode=checkpoint.vocab.encode,
            decode=checkpoint.vocab.decode,
            eos_ids=checkpoint.eos_ids,
            vocab_size=checkpoint.vocab.size,
            token_s=TOKEN_S,
        )

    def _words(self, ids: Ids, number: int) -> str:
        return " ".join(secrets.token_hex(4) for _ in range(WORDS))

    def _plan(self, ask: Ask) -> Any:
        run = super()._plan(ask)
        line = {"id": ask.request_id, "prompt": list(ask.ids), "plan": run.ids[run.done :], "at": time.time()}
        os.write(self._book, json.dumps(line).encode() + b"\n")
        return run


async def main(folder: str, book: str) -> None:
    """Until the pod ends."""
    player = Booked(Path(book) / f"{os.environ['HOSTNAME']}-{os.getpid()}-{time.time_ns()}.jsonl", folder)
    async with ScriptedServer(player, model="shop", host="0.0.0.0", port=PORT):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
