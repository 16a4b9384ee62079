"""PartialChoice: the tokens of a streamed choice that have arrived so far."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.engine.api import Delta, GenerationResult, VersionSpan
from sandgate.gateway.tokens.api import Parser


@dataclass(slots=True)
class PartialChoice:
    """One choice while it streams."""

    parser: Parser
    ids: Ids = field(default_factory=lambda: array("i"))
    logprobs: Floats = field(default_factory=lambda: array("f"))
    top: list[bytes] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    whole: GenerationResult | None = None
    """The whole sample, once the engine is done."""

    def take(self, delta: Delta) -> None:
        """Appends a delta of the engine."""
        start, end = len(self.ids), len(self.ids) + len(delta.ids)
        self.ids.extend(delta.ids)
        self.logprobs.extend(delta.logprobs)
        self.top.extend(delta.top)
        if self.spans and self.spans[-1].version == delta.version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(delta.version, start, end))

    def sample(self) -> GenerationResult:
        """The whole sample, or what has arrived of it. Then versions are those known at the time: an engine reports its
        own at the end of an answer."""
        return self.whole or GenerationResult(
            ids=self.ids,
            logprobs=self.logprobs,
            versions=tuple(self.spans),
            finish="abort",
            top=tuple(self.top),
        )
