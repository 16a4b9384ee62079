"""Counters and Prometheus metrics of the trainer's client. No Prometheus library."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sandgate.trainer.metrics_text import PREFIX, labels_of

GAUGES = frozenset({"buffered", "buffered_bytes", "version"})
"""These go up and down; the rest only grow."""


@dataclass(slots=True)
class Counters:
    """Groups, unless the name says otherwise. leased = given + buffered + stale + repeated + lost before it was given,
    + nacked because the stream was closed."""

    leased: int = 0
    leased_bytes: int = 0
    """Of token arrays and binaries."""
    given: int = 0
    """Handed to the trainer."""
    acked: int = 0
    """Acknowledged after it was trained on, or stored."""
    nacked: int = 0
    """Given back: the trainer's block raised, or it was closed with groups that it had not asked for yet."""
    stale: int = 0
    """Too many policy versions behind: acknowledged, and never handed out."""
    repeated: int = 0
    """Trained on in an earlier life of the trainer, says its checkpoint: acknowledged, and not handed out again."""
    lost: int = 0
    """Their lease ended before it was renewed, or another trainer has them: not handed out, or not acknowledged."""
    renewals: int = 0
    waited_s: float = 0.0
    """The trainer waited for a group, in seconds."""
    buffered: int = 0
    """Leased ahead, now."""
    buffered_bytes: int = 0
    weight_updates: int = 0
    paused_s: float = 0.0
    """Gateways were on hold for weight updates, in seconds."""
    version: int = 0
    """The policy version of the trainer's weights, as far as is known."""

    def prometheus(self, **labels: str) -> str:
        """In the text format 0.0.4, for whatever the trainer exposes; `labels` go to every sample."""
        told = labels_of(labels)
        lines: list[str] = []
        for one in fields(self):
            name = PREFIX + one.name + ("" if one.name in GAUGES else "_total")
            lines.append(f"# TYPE {name} {'gauge' if one.name in GAUGES else 'counter'}")
            lines.append(f"{name}{told} {getattr(self, one.name)}")
        return "\n".join(lines) + "\n"
