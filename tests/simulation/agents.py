"""Agents as they really are: tools, sub-agents, edited and compacted histories, twins, duplicates, n > 1."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.chat import Client, Said
from tests.support.gateway import BUY

if TYPE_CHECKING:
    from tests.simulation.world import World

SELL: dict[str, Any] = {**BUY, "function": {**BUY["function"], "name": "sell"}}
Talk = list[dict[str, Any]]


@dataclass(slots=True)
class Agent:
    """One episode."""

    world: World
    rng: Random
    client: Client
    asked: int = 0
    tools: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> None:
        """A few steps of one conversation, with side calls. Raises chat.Over, chat.GaveUp."""
        rng = self.rng
        self.tools = rng.choice(([], [BUY], [BUY, SELL]))
        talk: Talk = [{"role": "system", "content": "You run errands."}] if rng.random() < 0.7 else []
        talk.append(self._question("buy 7 kiwi"))
        for _ in range(rng.randint(1, 6)):
            await self._step(talk)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.1, 3.0, 20.0)))

    async def _step(self, talk: Talk) -> None:
        rng = self.rng
        what = rng.choices(
            ("go on", "helpers", "twins", "edit", "compact", "tools", "side"), (8, 1.5, 1, 1, 1, 0.7, 1)
        )[0]
        if what == "helpers":
            await self._together(*(self._helper() for _ in range(rng.randint(2, 3))))
        elif what == "twins":
            body, ask = self._body(talk), self._last(talk)
            await self._together(*(self.client.ask(ask, body) for _ in range(2)))
            talk[-1] = self._question("again")
        elif what == "edit" and len(talk) > 3:
            at = rng.randrange(len(talk) - 1)
            if talk[at]["role"] in ("user", "assistant"):
                talk[at] = {**talk[at], "content": f"edited {self.asked}"}
        elif what == "compact" and len(talk) > 4:
            talk[:] = [*talk[:1], self._question("summary: all is well. Go on")]
        elif what == "tools":
            self.tools = rng.choice(([], [BUY], [BUY, SELL]))
        elif what == "side":
            await self._ask([self._question("name this conversation")])
        said = await self._ask(talk)
        talk.append(self._echo(said))
        self._reply(talk, said)

    async def _helper(self) -> None:
        talk = [{"role": "system", "content": "You help."}, self._question("look this up")]
        for _ in range(self.rng.randint(1, 2)):
            said = await self._ask(talk)
            talk.append(self._echo(said))
            self._reply(talk, said)

    async def _together(self, *coroutines: Any) -> None:
        """All of them, even if one fails; then its failure."""
        for result in await asyncio.gather(*coroutines, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _ask(self, talk: Talk) -> Said:
        rng, ask, body = self.rng, self._last(talk), self._body(talk)
        choices = await self.client.ask(ask, body)
        if self.client.flags and rng.random() < 0.07:  # a middle box sends it once more
            await self.client.ask(ask, body, retry=1)
        return rng.choice(choices)

    def _body(self, talk: Talk) -> dict[str, Any]:
        rng = self.rng
        body: dict[str, Any] = {"model": "shop", "messages": copy.deepcopy(talk), "n": 1}
        if self.tools:
            body["tools"] = self.tools
        if rng.random() < 0.5:
            body["stream"] = True
            if rng.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.12:
            body["n"] = rng.randint(2, 3)
        if rng.random() < 0.3:
            body["logprobs"] = True
        body["max_tokens"] = rng.choice((3, 12, 200, 200, 100_000))
        return body

    def _question(self, text: str) -> dict[str, Any]:
        self.asked += 1
        return {"role": "user", "content": f"{text} #q:{self.client.session}:{self.asked}#"}

    def _last(self, talk: Talk) -> str:
        """The name of the last question."""
        found: str = talk[-1]["content"].rpartition("#q:")[2].rstrip("#")
        return found

    def _reply(self, talk: Talk, said: Said) -> None:
        """Tool results, or what a user says next; the last message holds a question's name."""
        for at in sorted(said.calls):
            result = {"role": "tool", "tool_call_id": said.calls[at][0], "content": f"receipt {at}"}
            talk.append(result)
        if said.calls and self.rng.random() < 0.8:
            talk[-1]["content"] += self._question("")["content"]
        else:
            talk.append(self._question("and now?"))

    def _echo(self, said: Said) -> dict[str, Any]:
        """As clients send it back: some drop reasoning, write calls anew, or make parts of a text."""
        rng, message = self.rng, said.message()
        if rng.random() < 0.2:
            message.pop("reasoning_content", None)
        if rng.random() < 0.15 and isinstance(message["content"], str) and message["content"]:
            message["content"] = [{"type": "text", "text": message["content"]}]
        if rng.random() < 0.15:
            for call in message.get("tool_calls", ()):
                try:
                    again = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
                except ValueError:
                    continue
                call["function"]["arguments"] = again
        return message
