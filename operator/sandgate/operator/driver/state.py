"""What the parts of one job's driver share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandgate.contract.job import RolloutJob, Task
from sandgate.operator.observed.job import Observed


@dataclass(slots=True, kw_only=True)
class DriverState:
    """Of one job. Not for several threads."""

    job: RolloutJob
    observed: Observed
    """Another one after a resync."""
    now: Callable[[], float]
    tasks: dict[str, Task] = field(default_factory=dict)
    """Those that are not settled."""
    opened: dict[str, None] = field(default_factory=dict)
    """Live sessions that their gateway is known to hold."""
    unstopped: dict[str, None] = field(default_factory=dict)
    """Sessions that are to be stopped and whose sandbox was not told yet."""
