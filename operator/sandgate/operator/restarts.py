"""What a new driver makes of a session that it finds at a gateway, where sandboxes end with their driver. (pure)"""

from __future__ import annotations

from collections.abc import Callable

from sandgate.contract.session import SessionSummary
from sandgate.operator.plan.actions import Ref, SessionObserved

Recall = Callable[[Ref, SessionSummary], SessionObserved | None]
"""What is known of it; None for one that needs nothing any more."""


def lost(ref: Ref, said: SessionSummary) -> SessionObserved | None:
    """What had not ended is lost."""
    if said.state.ended:
        return None
    return SessionObserved(ref=ref, opened_at=said.created_at, summary=said, lost=True)
