"""group_size: how large the group of a session is to be, as its gateway knows."""

from __future__ import annotations

from collections.abc import Mapping

from sandgate.contract.errors import SandgateError
from sandgate.trainer.client.rollout_client import AsyncRolloutClient


async def group_size(clients: Mapping[str, AsyncRolloutClient], session: str) -> int | None:
    """Of its gateway, whichever of these that is. None: no answer; another session may be asked about."""
    for client in clients.values():
        try:
            return int((await client.session(session))["group_size"])
        except (KeyError, SandgateError):  # it is older, another's, or away for a moment
            continue
    return None
