"""What an engine's HTTP API has of its own, behind one interface: a `Way` to ask for tokens, and probes.

`EnginePool` has all the rest: replicas, retries, resumes, aborts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.gateway.engine.api import EngineFacts
from sandgate.gateway.engine.health import Probe
from sandgate.gateway.engine.logprobs import Kind
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.way import Way


@dataclass(slots=True)
class Found:
    """What one replica said of itself."""

    facts: EngineFacts
    way: Way
    notes: list[str] = field(default_factory=list)
    """Warnings for the engine's operator, one sentence each."""
    unserved: str = ""
    """Why it answers no request for the model: it is not used before it does."""


class Dialect(Protocol):
    """One engine's API."""

    @property
    def gauges(self) -> Sequence[str]:
        """Names of the gauges in /metrics that together say what it has running and waiting."""
        ...

    @property
    def serves_adapters(self) -> bool:
        """A LoRA adapter can be loaded while it runs, and is asked for as a model of that name: a request for one that
        is not there is refused as `ModelNotServed`."""
        ...

    @property
    def over_sampled(self) -> tuple[str, ...]:
        """Penalties that it counts over the tokens sampled since the request only: a generation with one cannot go on
        behind a cut."""
        ...

    @property
    def unasked(self) -> Way:
        """How a replica is talked to that has not been asked yet what it is."""
        ...

    async def probe(self, http: Transport, url: str, *, model: str, logprobs_mode: str) -> Found:
        """Asks a replica what it is. Raises EngineUnavailable if it does not answer, EngineFailed if it is another
        server or one that must not be used."""
        ...

    async def label_of(self, http: Transport, url: str, way: Way) -> str | None:
        """The label of its weights; None if it does not report one. Raises EngineUnavailable if no answer came."""
        ...

    async def names_of(self, http: Transport, url: str) -> frozenset[str]:
        """Names of the models and adapters that it serves now. Raises EngineUnavailable if no answer came."""
        ...

    async def check(self, http: Transport, url: str) -> Probe:
        """Whether it is healthy. A weight update that holds it is no illness."""
        ...

    async def measure(self, http: Transport, url: str, way: Way, *, model: str) -> Kind:
        """The kind of its logprobs. Raises EngineFailed, EngineUnavailable."""
        ...

    def against(self, kind: Kind, mode: str) -> str:
        """Why a replica with logprobs of this kind must not be used where the settings say `mode`; empty: it may."""
        ...
