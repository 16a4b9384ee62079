"""GET /v1/models and /v1/models/{id}: the one model of a gateway, as OpenAI's and Anthropic's SDKs type it. (pure)"""

from __future__ import annotations

from typing import Any

from sandgate.gateway.protocols.base import ModelNotFound

UNKNOWN_SINCE = "1970-01-01T00:00:00Z"
"""Anthropic's word for a model of which it is not known since when it is there."""


def models(path: str, model: str, *, anthropic: bool) -> dict[str, Any]:
    """The answer to a path below `/v1`. Raises ModelNotFound."""
    name = path.removeprefix("/v1/models").removeprefix("/")
    shown = _anthropic(model) if anthropic else _openai(model)
    if name == model:
        return shown
    if name:
        raise ModelNotFound(f"The model `{name[:200]}` does not exist")
    if anthropic:
        return {"data": [shown], "has_more": False, "first_id": model, "last_id": model}
    return {"object": "list", "data": [shown]}


def _openai(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "sandgate"}


def _anthropic(model: str) -> dict[str, Any]:
    told = {"id": model, "type": "model", "display_name": model, "created_at": UNKNOWN_SINCE}
    return {**told, "lifecycle": "active"}
