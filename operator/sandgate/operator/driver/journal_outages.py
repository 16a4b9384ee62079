"""JournalOutages: which gateways of a job cannot write their journals now, as they say in their status.

Such a gateway refuses turns, though it answers: an agent that dies meanwhile, or runs out of time, died of that, and no
session begins there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.failure_reasons import FailureReason
from sandgate.operator.driver.state import DriverState
from sandgate.operator.observed.events import GatewayChanged, GatewaysBlocked, OutageSeen
from sandgate.operator.plan.actions import Outage


@dataclass(slots=True)
class JournalOutages:
    """Of one job."""

    state: DriverState
    broken: dict[str, str] = field(init=False, default_factory=dict)
    """Gateway -> why its journal cannot be written."""
    outages: dict[str, Outage] = field(init=False, default_factory=dict)
    """Of these: what an agent that failed meanwhile, or ran out of time, failed of."""

    def heard(self, name: str, status: Mapping[str, Any]) -> bool | None:
        """What a gateway says of itself. True: it cannot write any more; False: it can again; None: that is no news."""
        journal = status["journal"]
        if not journal["healthy"] and name not in self.broken:
            self.broken[name] = str(journal["detail"])
            self.outages[name] = Outage(self.state.now(), None, FailureReason.GATEWAY_LOST)
            self.state.observe(OutageSeen(name, self.outages[name]))
            self._changed(name, ready=False)
            return True
        if journal["healthy"] and name in self.broken:
            self.over(name)
            self._changed(name, ready=True)
            return False
        return None

    def over(self, name: str) -> None:
        """It writes again, or does not answer at all, which is another outage."""
        if self.broken.pop(name, None) is not None:
            now = self.state.now()  # first: it may move the outages along
            self.state.observe(OutageSeen(name, replace(self.outages.pop(name), until=now)))

    @property
    def words(self) -> str:
        """Why no turn goes on there."""
        return "; ".join(f"{name}: {why}" for name, why in self.broken.items())

    def _changed(self, name: str, *, ready: bool) -> None:
        self.state.observe(GatewaysBlocked(self.words))
        self.state.observe(GatewayChanged(name, ready=ready))
