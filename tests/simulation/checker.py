"""The judge."""
from __future__ import annotations
from tests.simulation.history import History
def verdict(history: History) -> list[str]:
    return list(history.wrong)
