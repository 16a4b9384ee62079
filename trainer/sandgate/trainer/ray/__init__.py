"""Ray: our gateways as actors, the manager that routes sessions to them, trajectories as data sets. Imports Ray when it
is used; data sets are in `sandgate.trainer.ray.dataset`, which loads Arrow."""

from __future__ import annotations

from sandgate.trainer.ray.actor import GatewaySettings as GatewaySettings
from sandgate.trainer.ray.manager import AgentGatewayManager as AgentGatewayManager
from sandgate.trainer.ray.manager import RayGateway as RayGateway
from sandgate.trainer.ray.manager import gateway_actor as gateway_actor
