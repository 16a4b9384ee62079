"""Every endpoint of a gateway's control API (docs/reference/gateway.md): its routes and its clients are made from here.

(pure)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from sandgate.contract.control_call import ANSWER_BYTES_MAX, Json, Read, T
from sandgate.contract.control_call import ControlCall as Call

NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method and a path template, as FastAPI writes it."""

    method: str
    path: str

    def call(
        self,
        read: Read[T],
        ids: Mapping[str, str] = NO_TEXTS,
        *,
        json: Json = None,
        params: Mapping[str, str] = NO_TEXTS,
        headers: Mapping[str, str] = NO_TEXTS,
        wait_s: float = 0.0,
        also: tuple[int, ...] = (),
        most: int = ANSWER_BYTES_MAX,
    ) -> Call[T]:
        """A request of it; `ids` fill the path, and cannot leave their place in it."""
        path = self.path.format(**{name: quote(text, safe="") for name, text in ids.items()})
        return Call(
            method=self.method,
            path=path,
            read=read,
            json=json,
            params=params,
            headers=headers,
            wait_s=wait_s,
            also=also,
            most=most,
        )


CREATE_SESSIONS = Endpoint("POST", "/v1/sessions")
LIST_SESSIONS = Endpoint("GET", "/v1/sessions")
SESSION = Endpoint("GET", "/v1/sessions/{session_id}")
WAIT = Endpoint("GET", "/v1/sessions/{session_id}/wait")
SESSION_TASK = Endpoint("GET", "/v1/sessions/{session_id}/task")
REWARD = Endpoint("POST", "/v1/sessions/{session_id}/reward")
COMPLETE = Endpoint("POST", "/v1/sessions/{session_id}/complete")
FINALIZE = Endpoint("POST", "/v1/sessions/{session_id}/finalize")
TRAJECTORIES = Endpoint("GET", "/v1/sessions/{session_id}/trajectories")
ABORT = Endpoint("POST", "/v1/sessions/{session_id}/abort")
TREE = Endpoint("GET", "/v1/sessions/{session_id}/tree")
LEASE = Endpoint("POST", "/v1/leases")
RENEW = Endpoint("POST", "/v1/leases/{lease_id}/renew")
RENEW_LEASES = Endpoint("POST", "/v1/leases/renew")
ACK = Endpoint("POST", "/v1/leases/{lease_id}/ack")
NACK = Endpoint("POST", "/v1/leases/{lease_id}/nack")
ACK_LEASES = Endpoint("POST", "/v1/leases/ack")
CLOSE_GROUP = Endpoint("POST", "/v1/groups/close")
PUSH_TASKS = Endpoint("POST", "/v1/tasks")
TASKS = Endpoint("GET", "/v1/tasks")
FORGET_TASKS = Endpoint("POST", "/v1/tasks/forget")
EVENTS = Endpoint("GET", "/v1/events")
PAUSE = Endpoint("POST", "/v1/pause")
RESUME = Endpoint("POST", "/v1/resume")
POLICY_VERSION = Endpoint("PUT", "/v1/policy-version")
ENGINES = Endpoint("PUT", "/v1/engines")
HEARTBEAT = Endpoint("POST", "/v1/heartbeat")
STATUS = Endpoint("GET", "/v1/status")
HEALTHZ = Endpoint("GET", "/healthz")
READYZ = Endpoint("GET", "/readyz")
METRICS = Endpoint("GET", "/metrics")

ENDPOINTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Endpoint))
"""All of them; a test holds that a gateway serves these and no others under /v1."""
