"""THE FRONT DOOR for other rooms: clients of a gateway's control API, which operator and trainer both use."""

from sandgate.gateway.client.control_client import (
    TIMEOUT_S,
    ControlClient,
    gateway_transport,
    new_lease_id,
    new_reward_id,
)
from sandgate.gateway.client.gateway_client import GatewayClient
from sandgate.gateway.client.retries import Retries

__all__ = [
    "TIMEOUT_S",
    "ControlClient",
    "GatewayClient",
    "Retries",
    "gateway_transport",
    "new_lease_id",
    "new_reward_id",
]
