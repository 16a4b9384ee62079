"""Seals a session at its gateway: finalizes it with its outcome, whatever its sandbox left."""

from __future__ import annotations

from sandgate.contract.errors import BadRequest, Gone, TooLarge
from sandgate.contract.session import SessionOutcome
from sandgate.operator.driver.backend import SessionClient


async def seal(client: SessionClient, session_id: str, outcome: SessionOutcome) -> None:
    """Finalize it. An outcome that the gateway refuses for its content is given without that, and says so: repeating it
    would be refused for ever. A session that somebody aborted ended so. Raises NotFound, and what passes by itself."""
    try:
        await client.finalize(session_id, outcome)
    except Gone:
        pass
    except (BadRequest, TooLarge) as error:
        await client.finalize(session_id, outcome.without_content(f"refused by the gateway: {error}"))
