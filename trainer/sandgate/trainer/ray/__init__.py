"""Ray: our gateways as actors, and the manager that routes sessions to them. Imports Ray when it is used."""

from __future__ import annotations

from sandgate.trainer.ray.actor import GatewaySettings as GatewaySettings
from sandgate.trainer.ray.manager import AgentGatewayManager as AgentGatewayManager
from sandgate.trainer.ray.manager import RayGateway as RayGateway
from sandgate.trainer.ray.manager import gateway_actor as gateway_actor
