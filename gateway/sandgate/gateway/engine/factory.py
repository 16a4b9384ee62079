"""Engine kinds: how an engine of each `engine.kind` is made. A new kind: a value of `EngineKind` and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from sandgate.contract.choices import EngineKind
from sandgate.gateway.engine.api import Engine
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.engine.vllm import VllmEngine


class Connect(Protocol):
    """The arguments that each row is called with; see `VllmEngine.connect`."""

    async def __call__(
        self,
        urls: Sequence[str],
        *,
        model: str,
        logprobs_mode: str,
        timeout_s: float,
        vocab_size: int,
        version_now: Callable[[], int],
        labels: Labels,
        patient: bool,
    ) -> Engine: ...


ENGINES: Final[Mapping[EngineKind, Connect]] = {EngineKind.VLLM: VllmEngine.connect}
"""Every kind has its row: other kinds are refused before, where settings and manifests are read."""
