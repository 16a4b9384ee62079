"""A server that is asked, and what was learned about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from sandgate.gateway.tokens.api import Codec


@dataclass(slots=True)
class CheckedEngine:
    """One server, and what was learned about it."""

    http: httpx.Client
    codec: Codec | None = None
    model: str = ""
    max_model_len: int = 0
    probe: list[int] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, JSON or None)."""
        answer = self.http.request(method, path, json=body)
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, None

    def generate(self, **sampling: Any) -> tuple[int, Any]:
        """A short generation after the probe prompt."""
        body = {
            "model": self.model,
            "token_ids": self.probe,
            "sampling_params": {"max_tokens": 4, "temperature": 1.0, "logprobs": 0, "seed": 0} | sampling,
            "stream": False,
        }
        return self.ask("POST", "/inference/v1/generate", body)
