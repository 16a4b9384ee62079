"""Engine kinds: whose API `engine.kind` means. A new kind: a value of `EngineKind` and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandgate.contract.choices import EngineKind
from sandgate.gateway.engine.pool import EnginePool
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VllmEngine

ENGINES: Final[Mapping[EngineKind, type[EnginePool]]] = {
    EngineKind.VLLM: VllmEngine,
    EngineKind.SGLANG: SglangEngine,
}
"""Every kind has its row: other kinds are refused before, where settings and manifests are read."""


async def why_not(url: str, *, kind: EngineKind, model: str, mode: str) -> str:
    """Why a gateway with engines of this kind and logprobs mode `mode` would not use this one; empty if it would.
    Raises EngineFailed if it is of another kind or cannot be read, EngineUnavailable if it does not answer now."""
    http, url, dialect = Transport(), url.rstrip("/"), ENGINES[kind].dialect
    try:
        found = await dialect.probe(http, url, model=model, logprobs_mode=mode)
        return dialect.against(await dialect.measure(http, url, found.way, model=model), mode)
    finally:
        await http.aclose()
