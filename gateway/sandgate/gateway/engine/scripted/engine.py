"""ScriptedEngine: an engine that plays a script, for tests, demos and users; same interface and checks as vLLM's.

`ScriptedEngine` runs in this process; `scripted_server` is the same behind vLLM's wire.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing

from sandgate.contract.errors import EngineUnavailable
from sandgate.gateway.engine import wire
from sandgate.gateway.engine.api import Delta, EngineFacts, EngineStatus, GenerationResult, Prompt
from sandgate.gateway.engine.generation import Generation
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.engine.responses import Unlabelled
from sandgate.gateway.engine.scripted.script import (
    Ask,
    Broken,
    Fault,
    Gate,
    Player,
    Reply,
    Script,
    ScriptedRefusal,
    logprob_of,
)

__all__ = ["Fault", "Gate", "Player", "Reply", "Script", "ScriptedEngine", "logprob_of"]

SEEN_MAX = 1_000
"""Prompts remembered for a test to look at."""


class ScriptedEngine:
    """An in-process `Engine` over one `Player`. Deterministic: ids come from the script, the logprob of token `id` at
    place `p` of the sample's context is `logprob_of(id, p)`.

    `script`: replies in order (the last one repeats), or a callable (prompt ids, request number from 0) -> reply. A
    reply is a `Reply`, ids, or text (then `encode` is needed).
    """

    def __init__(
        self,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        eos_ids: Sequence[int] = (),
        chunk: int = 1,
        max_model_len: int = 32_768,
        vocab_size: int = 0,
        url: str = "scripted://",
    ) -> None:
        self.player = Player(
            script,
            encode=encode,
            decode=decode,
            eos_ids=eos_ids,
            chunk=chunk,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        )
        self.facts = EngineFacts(
            name="scripted",
            version="1",
            logprobs_mode="processed_logprobs",
            max_model_len=max_model_len,
            models=["scripted"],
        )
        self.url = url
        self.prompts: deque[Prompt] = deque(maxlen=SEEN_MAX)
        """What was asked for, oldest first."""
        self.labels = Labels()
        self._latest = 0
        """The version of the latest prompt."""
        self._closed = False

    @property
    def generations(self) -> int:
        """Calls of `generate` so far."""
        return self.player.counts["generations"] - self.player.counts["resumed"]

    def status(self) -> list[EngineStatus]:
        """One replica, healthy until closed, unless its label has no version and should have one."""
        doubt = self._doubt()
        up = not self._closed and not doubt
        return [EngineStatus(self.url, up, self.player.running, doubt, bool(doubt))]

    async def version_told(self) -> None:
        """See `Labelled.version_told`."""
        self.labels.heed(self.player.label)

    def _doubt(self) -> str:
        return self.labels.against(self.player.label, self._latest)

    async def aclose(self) -> None:
        """Running generations end with EngineUnavailable."""
        self._closed = True
        self.player.abort_all()

    async def generate(
        self, prompt: Prompt, on_delta: Callable[[Delta], None] | None = None
    ) -> GenerationResult:
        """See `Engine.generate`."""
        self.prompts.append(prompt)
        self._latest = prompt.version
        made = Generation(prompt, told=prompt.version, streams=on_delta is not None)
        for attempt in itertools.count():
            if self._closed:
                raise EngineUnavailable("the scripted engine is closed")
            if doubt := self._doubt():
                raise EngineUnavailable(doubt)
            made.numbered = self.labels.demanded(made.told)
            try:
                await self._attempt(prompt, made, attempt, on_delta)
            except ScriptedRefusal as error:
                if wire.says_paused(error.status, error.body):
                    await self.player.resumed()
                    continue
                raise wire.refusal(
                    error.status, error.body, error.retry_after, prompt_tokens=len(prompt.ids)
                ) from None
            except Unlabelled as error:
                made.forget(error)
                raise EngineUnavailable(str(error)) from None
            except Broken as error:
                if made.ids:
                    made.cut(str(error), told=prompt.version)
            self.labels.heed(made.newest)
            if made.finish == "abort":
                made.cut("the engine aborted it", told=prompt.version)
            if made.finish is not None:
                return made.sample(self.url)
            if attempt > 2 * len(made.ids) + 32:
                raise EngineUnavailable("the script never lets this generation end")
        raise AssertionError("unreachable")

    async def _attempt(
        self, prompt: Prompt, made: Generation, attempt: int, on_delta: Callable[[Delta], None] | None
    ) -> None:
        ids, max_tokens = made.asks()
        name = prompt.request_id if attempt == 0 else f"{prompt.request_id}-r{attempt}"
        ask = Ask(
            request_id=name,
            ids=ids,
            max_tokens=max_tokens,
            stop_ids=prompt.stop_ids,
            stop=prompt.sampling.stop,
            top=prompt.top_logprobs,
            pictures=[png for picture in prompt.pictures for png in (picture.frames or (picture.png,))],
        )
        told = (ids, tuple((span.start, span.length) for span in prompt.media)) if prompt.pictures else None
        async with aclosing(self.player.play(ask)) as steps:
            async for step in steps:
                step.check(self.player.vocab_size)
                if told is not None:
                    step.prompt, step.images = told
                delta = made.take(step)
                if delta is not None and on_delta is not None:
                    on_delta(delta)
