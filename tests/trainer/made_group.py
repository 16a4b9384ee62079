"""What `groups.random_group` makes. A module of its own: AReaL's environment has nothing that makes one."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandgate.contract.trajectory import Trajectory


@dataclass
class RandomGroup:
    """One group, as it was and as it would be without forks."""

    forked: list[Trajectory] = field(default_factory=list)
    plain: list[Trajectory] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    """Session -> its score, of those that count and sampled something."""
    main_turns: dict[str, list[str]] = field(default_factory=dict)
    """Session -> the turns of its main conversation, of those that count."""
    sessions: int = 0
