"""An environment of verifiers: errands in a shop, what each is worth, and a harness that asks once, with its tools."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found, unused-ignore]
from openai import AsyncOpenAI

TRADE = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["item", "n"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": verb, "description": f"{verb.title()} n of an item.", "parameters": TRADE},
    }
    for verb in ("buy", "sell")
]
ASKED = [("buy", 2, "pear"), ("sell", 6, "rice"), ("sell", 3, "tea"), ("buy", 7, "kiwi")]


class Errand(vf.TaskData):
    """What is asked for."""

    verb: str
    item: str
    n: int


class ErrandTask(vf.Task[Errand]):
    """One errand."""

    @vf.reward
    async def traded(self, trace: vf.Trace) -> float:
        """1.0 if the very trade was called."""
        calls = [call for said in trace.assistant_messages for call in said.tool_calls or []]
        return float(any(one.name == self.data.verb and self._asked(one.arguments) for one in calls))

    def _asked(self, arguments: str) -> bool:
        try:
            return bool(json.loads(arguments) == {"item": self.data.item, "n": self.data.n})
        except ValueError:
            return False


class Errands(vf.Taskset[ErrandTask]):
    """The taskset: `taskset.id` is this module's name."""

    def load(self) -> Iterable[ErrandTask]:
        """In order."""
        for verb, n, item in ASKED:
            yield ErrandTask(Errand(prompt=f"{verb} {n} {item}", verb=verb, item=item, n=n), self.config.task)


class Clerk(vf.Harness[vf.HarnessConfig]):
    """Its loop runs in the environment's process; those that verifiers ships run a program of their own."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        """Ask at verifiers' endpoint, which asks the session's."""
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(
                model=ctx.model, messages=[{"role": "user", "content": data.prompt}], tools=TOOLS
            )
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Clerk", "Errands"]
