"""PartialChoice: the tokens of a streamed choice that have arrived so far."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

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
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, first token) of each run of one version."""
    whole: GenerationResult | None = None
    """The whole sample, once the engine is done."""

    def take(self, delta: Delta) -> None:
        """Appends a delta of the engine."""
        if not self.versions or self.versions[-1][0] != delta.version:
            self.versions.append((delta.version, len(self.ids)))
        self.ids.extend(delta.ids)
        self.logprobs.extend(delta.logprobs)
        self.top.extend(delta.top)

    def sample(self) -> GenerationResult:
        """The whole sample, or what has arrived of it. Then versions are those known at the time: an engine reports its
        own at the end of an answer."""
        runs = pairwise([*self.versions, (0, len(self.ids))])
        return self.whole or GenerationResult(
            ids=self.ids,
            logprobs=self.logprobs,
            versions=tuple(VersionSpan(version, start, end) for (version, start), (_, end) in runs),
            finish="abort",
            top=tuple(self.top),
        )
