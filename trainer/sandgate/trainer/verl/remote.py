"""Agents elsewhere: told by HTTP where their session is, and waited for until they call /complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from sandgate.contract.errors import SandgateError
from sandgate.contract.session import SessionHandle

START_S = 60.0
"""Seconds for the service to take an order; the agent's own time is `completion_timeout_s`."""
CONNECTS = 3
"""Attempts to connect. An order that may have arrived is not sent again: it would start a second agent."""
ANSWER_CHARS = 500
"""Of a refusal, in the error."""


class NotStarted(SandgateError):
    """The service of a remote agent did not take the order."""


class RemoteRunner:
    """A runner for agents that another service runs: POSTs the session and the prompt to `url`, and any 2xx means that
    the agent was started. Its runner needs `completion_timeout_s`: the agent's POST to `complete_url` is the end, and
    its reward_info the reward. The service must reach the gateways' addresses.

        {"session_id", "base_url", "anthropic_base_url", "api_key", "complete_url",
         "raw_prompt", "sample_index", "tools_kwargs"}
    """

    remote = True
    """Ends by /complete alone."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = START_S
    ) -> None:
        """`headers`: of each order, such as the service's own authorization."""
        self.url, self.headers, self.timeout_s = url, dict(headers or {}), timeout_s

    async def __call__(
        self,
        *,
        session: SessionHandle,
        raw_prompt: Any,
        sample_index: int,
        tools_kwargs: Any = None,
        **_: Any,
    ) -> None:
        """Raises NotStarted."""
        order = {
            "session_id": session.session_id,
            "base_url": session.base_url,
            "anthropic_base_url": session.anthropic_base_url,
            "api_key": session.api_key,
            "complete_url": session.complete_url,
            "raw_prompt": raw_prompt,
            "sample_index": sample_index,
            "tools_kwargs": tools_kwargs,
        }
        body = json.dumps(order, default=_plain).encode()
        headers = {"content-type": "application/json"} | self.headers
        transport = httpx.AsyncHTTPTransport(retries=CONNECTS)
        try:
            async with httpx.AsyncClient(transport=transport, timeout=self.timeout_s) as http:
                answer = await http.post(self.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise NotStarted(f"{self.url}: {type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise NotStarted(f"{self.url} answered {answer.status_code}: {answer.text[:ANSWER_CHARS]}")


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, which dataset columns are made of."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a remote agent cannot be told a {type(value).__name__}")
