"""How an engine of each `engine.kind` is reached. Another kind is one more value of `EngineKind`, and its row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from sandgate.contract.choices import EngineKind
from sandgate.gateway.engine.api import Engine
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.engine.vllm import VllmEngine


class Connect(Protocol):
    """What a row is called with; see `VllmEngine.connect`."""

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
"""Every kind has its row: what is not served is refused before, where settings and manifests are read."""
