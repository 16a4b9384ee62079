"""A chat client as SDKs are: retries with back-off, streams, and says what it was told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Asked, Told
from tests.simulation.network import Cut, Heard, Manner

if TYPE_CHECKING:
    from tests.simulation.world import World

TRIES_MAX = 60
"""With a back-off of at most 8 s: minutes, longer than any fault lasts."""
RETRIED = (408, 409, 429, 500, 502, 503, 504)
TURN = slice(len("chatcmpl-"), None)


class Over(Exception):
    """The session takes no more turns, or the question is refused for good."""


class GaveUp(Exception):
    """No answer in all these tries."""


@dataclass(slots=True)
class Said:
    """One choice as far as it was told."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Index -> [id, name, arguments]."""
    finish: str | None = None
    logprobs: list[float] | None = None

    def normal(self) -> tuple[Any, ...] | None:
        """To compare with; None if its end was not told."""
        if self.finish is None:
            return None
        calls = tuple(tuple(self.calls[at]) for at in sorted(self.calls))
        told = tuple(self.logprobs) if self.logprobs is not None else None
        return (self.text, self.reasoning, calls, self.finish, told)

    def message(self) -> dict[str, Any]:
        """For the next request's history."""
        out: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = [
                {"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2]}}
                for _, call in sorted(self.calls.items())
            ]
        if not self.calls and not self.text:
            out["content"] = ""
        return out


@dataclass(slots=True)
class Client:
    """Of one session. `flags`: it says x-stainless-retry-count; else it just asks again."""

    world: World
    rng: Random
    session: str
    key: str
    flags: bool

    async def ask(self, ask: str, body: dict[str, Any], *, retry: int = 0) -> list[Said]:
        """The choices. Raises Over, GaveUp."""
        rng, body = self.rng, dict(body)
        for attempt in range(retry, TRIES_MAX + retry):
            count = attempt if self.flags else 0
            asked = Asked(self.session, ask, body.get("n", 1), self.world.loop.time(), count > 0)
            try:
                heard = await self._once(asked, body, count)
            except Cut as cut:
                self.world.say(f"cut {ask} {cut}")
                self._note(asked, body, cut.heard)
            else:
                answer = self._note(asked, body, heard)
                if answer is not None:
                    return answer
                if heard.status not in (200, *RETRIED):
                    raise Over(f"{heard.status} {bytes(heard.body[:200])!r}")
            if body.get("stream") and rng.random() < 0.2:
                body["stream"] = False
                body.pop("stream_options", None)
            await asyncio.sleep(min(8.0, 0.25 * 2 ** (attempt - retry)) * rng.random())
        raise GaveUp(ask)

    async def _once(self, asked: Asked, body: dict[str, Any], count: int) -> Heard:
        world, rng = self.world, self.rng
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        if self.flags:
            headers["x-stainless-retry-count"] = str(count)
        manner = Manner(patience_s=rng.choice((2.0, 20.0, 45.0, 90.0)) if world.chaos else 600.0)
        if world.chaos and rng.random() < world.cuts:
            manner.cut_in_body = rng.random() < 0.15
            manner.cut_at = rng.choice((0, 1, rng.randrange(200), rng.randrange(3000)))
        world.history.asked.append(asked)
        world.say(f"ask {asked.ask} try={count} stream={bool(body.get('stream'))} n={asked.n}")
        path = rng.choice((f"/sessions/{self.session}/v1/chat/completions", "/v1/chat/completions"))
        raw = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
        return await world.network.request("POST", path, headers, raw, manner, asked)

    def _note(self, asked: Asked, body: dict[str, Any], heard: Heard) -> list[Said] | None:
        """Remember what was told; the answer, if it is whole."""
        world = self.world
        if heard.status == 500:
            world.wrong(f"{asked.ask}: status 500 {bytes(heard.body[:200])!r}")
        if heard.status != 200:
            if heard.whole:
                world.say(f"refused {asked.ask} {heard.status} {heard.headers.get('x-sandgate-reason')}")
            return None
        turn, choices, end = _stream_of(heard, asked.n) if body.get("stream") else _json_of(heard, asked.n)
        normal = tuple(choice.normal() for choice in choices)
        if any(normal):
            whole = heard.whole and all(normal)
            told = Told(asked, turn, normal, heard.sent_at(end), world.loop.time(), whole)
            world.history.told.append(told)
            world.say(f"told {asked.ask} turn={turn[:6]} whole={whole}")
            return choices if whole else None
        if heard.whole:
            world.say(f"failed {asked.ask} {bytes(heard.body[-120:])!r}")
        return None


def _json_of(heard: Heard, n: int) -> tuple[str, list[Said], int]:
    if not heard.whole:
        return "", [], 0
    body = json.loads(bytes(heard.body))
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        said = Said(message["content"] or "", message.get("reasoning_content") or "")
        for at, call in enumerate(message.get("tool_calls") or ()):
            said.calls[at] = [call["id"], call["function"]["name"], call["function"]["arguments"]]
        said.finish = choice["finish_reason"]
        if choice["logprobs"]:
            said.logprobs = _logprobs(choice["logprobs"]["content"])
        choices.append(said)
    assert len(choices) == n
    return body["id"][TURN], choices, len(heard.body)


def _stream_of(heard: Heard, n: int) -> tuple[str, list[Said], int]:
    """Also of half a stream: events that arrived whole."""
    choices = [Said() for _ in range(n)]
    turn, at, end = "", 0, 0
    raw = bytes(heard.body)
    while (stop := raw.find(b"\n\n", at)) >= 0:
        event, at = raw[at:stop], stop + 2
        if not event.startswith(b"data: {"):
            continue
        chunk = json.loads(event[6:])
        if "error" in chunk:
            break
        turn = chunk["id"][TURN]
        for choice in chunk["choices"]:
            _add(choices[choice["index"]], choice)
            end = end or (at if choice.get("finish_reason") else 0)
    return turn, choices, end


def _add(said: Said, choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    said.text += delta.get("content") or ""
    said.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls") or ():
        mine = said.calls.setdefault(call["index"], ["", "", ""])
        mine[0] += call.get("id") or ""
        mine[1] += call["function"].get("name") or ""
        mine[2] += call["function"].get("arguments") or ""
    if choice.get("logprobs"):
        said.logprobs = (said.logprobs or []) + _logprobs(choice["logprobs"]["content"])
    said.finish = choice.get("finish_reason") or said.finish


def _logprobs(content: Sequence[dict[str, Any]]) -> list[float]:
    return [token["logprob"] for token in content]
