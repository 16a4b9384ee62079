"""AReaL's proxy client on httpx: one session from start to export, with its retries."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.trajectory import Json
from sandgate.trainer.areal.tensors import Columns, as_torch, from_wire

ATTEMPTS = 10
"""AReaL's, of a reward and of the end of a session."""
BACKOFF_S = (0.5, 5.0)
"""AReaL's: first and longest wait; each is twice the one before."""
CALL_S = 10.0
"""AReaL's, of a session call."""
EXPORT_S = 1800.0
"""Of an export: the gateway waits 600 s for the session's end, and then makes it. A gateway whose machine vanished says
nothing at all, and the episode would wait for ever."""
RETRIED = frozenset({408, 429, 502, 503, 504})

log = logging.getLogger("sandgate.trainer.areal")


@dataclass(frozen=True, slots=True)
class InteractionWithTokenLogpReward:
    """One exported interaction."""

    interaction_id: str
    reward: float | None
    """After discounting."""
    columns: Columns = field(repr=False)

    def to_tensor_dict(self) -> dict[str, Any]:
        """As torch tensors, in the dtypes of AReaL's document."""
        return as_torch(self.columns)


class OpenAIProxyClient:
    """A context: a session is started on the way in, retried until there is capacity, and ended on the way out."""

    def __init__(self, http: httpx.AsyncClient, base_url: str, task_id: str, admin_api_key: str) -> None:
        self._http = http
        self.base_url = base_url.rstrip("/")
        self.task_id = task_id
        self._admin_key = admin_api_key
        self.session_id: str | None = None
        self._session_key: str | None = None

    @property
    def session_api_key(self) -> str:
        """The agent's. Raises ValueError before the session was started."""
        if self._session_key is None:
            raise ValueError("the session was not started")
        return self._session_key

    async def __aenter__(self) -> Self:
        said = await self._post("rl/start_session", self._admin_key, {"task_id": self.task_id}, attempts=None)
        self.session_id, self._session_key = said["session_id"], said["api_key"]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session_key is not None:
            await self._post("rl/end_session", self._session_key, {})

    async def set_reward(self, interaction_id: str | None, reward: float) -> None:
        """Of that interaction, None: the last one. As in AReaL, a reward for nothing is logged and forgotten."""
        body = {"interaction_id": interaction_id, "reward": reward}
        try:
            await self._post("rl/set_reward", self.session_api_key, body)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 400:
                raise
            log.error("session %s: reward not set: %s", self.session_id, error.response.text)

    async def set_last_reward(self, reward: float) -> None:
        """Of the most recent interaction."""
        await self.set_reward(None, reward)

    async def export_interactions(
        self, discount: float = 1.0, style: str = "individual"
    ) -> dict[str, InteractionWithTokenLogpReward]:
        """In order of creation. Not retried. Raises httpx.HTTPStatusError, CorruptRecord."""
        if self.session_id is None:
            raise ValueError("the session was not started")
        body = {"session_id": self.session_id, "discount": discount, "style": style}
        said = await self._post("export_trajectories", self._admin_key, body, attempts=1, timeout_s=EXPORT_S)
        return parse(said)

    async def _post(
        self,
        path: str,
        key: str,
        body: Mapping[str, Json],
        *,
        attempts: int | None = ATTEMPTS,
        timeout_s: float = CALL_S,
    ) -> dict[str, Json]:
        return await _post(self._http, f"{self.base_url}/{path}", key, body, attempts, timeout_s)


async def grant_capacity(http: httpx.AsyncClient, base_url: str, admin_api_key: str) -> None:
    """One more session may start."""
    await _post(http, f"{base_url.rstrip('/')}/grant_capacity", admin_api_key, None, 1, CALL_S)


def parse(said: Mapping[str, Json]) -> dict[str, InteractionWithTokenLogpReward]:
    """The body of an export. Raises CorruptRecord."""
    try:
        return {
            name: InteractionWithTokenLogpReward(
                item["interaction_id"], item["reward"], from_wire(item["tensor_dict"])
            )
            for name, item in said["interactions"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(f"not an export of interactions: {error!r}") from error


async def _post(
    http: httpx.AsyncClient,
    url: str,
    key: str,
    body: Mapping[str, Json] | None,
    attempts: int | None,
    timeout_s: float,
) -> dict[str, Json]:
    """`attempts` None: for ever."""
    headers = {"authorization": f"Bearer {key}"}
    for attempt in itertools.count(1):
        try:
            answer = await http.post(url, json=body, headers=headers, timeout=timeout_s)
            answer.raise_for_status()
            found: dict[str, Json] = answer.json()
            return found
        except httpx.HTTPError as error:
            final = isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in RETRIED
            if final or attempt == attempts:
                raise
        await asyncio.sleep(min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** min(attempt - 1, 8)))
    raise AssertionError  # pragma: no cover - count() does not end
