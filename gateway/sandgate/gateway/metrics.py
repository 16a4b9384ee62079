"""Prometheus metrics of the gateway: names, units and bounded labels. Nothing per token, nothing per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.engine.nodes import SameNode

OUTCOMES = ("ok", *(one.value for one in FailureClass), "aborted")
LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class GatewayMetrics:
    """The metrics of one gateway, in a registry of its own, so that tests can have several gateways."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._count_turns(partial(Counter, registry=self.registry))
        self._count_sessions(partial(Counter, registry=self.registry))
        self._time(partial(Histogram, buckets=LATENCY_S, registry=self.registry))
        self._gauge(partial(Gauge, registry=self.registry))

    def _count_turns(self, counter: Callable[..., Counter]) -> None:
        self.turns = counter("sandgate_turns", "Turns committed")
        placed = counter(
            "sandgate_turns_by_node",
            "Turns committed, by whether their engine is on the gateway's node",
            ["same_node"],
        )
        self.placed = {same: placed.labels(same.value) for same in SameNode}
        self.tokens = counter("sandgate_sampled_tokens", "Tokens sampled and committed")
        self.context = counter("sandgate_context_tokens", "Tokens added as context")
        forks = counter("sandgate_forks", "Turns that left their branch, by reason", ["reason"])
        self.forks = {reason.value: forks.labels(reason.value) for reason in ForkReason}
        self._errors = counter("sandgate_errors", "Requests refused or failed, by reason", ["reason"])
        self.replays = counter("sandgate_replayed_turns", "Committed answers given again to a retry")
        self.joined = counter("sandgate_joined_calls", "Retries that joined a call in flight")
        self.resampled = counter("sandgate_resampled_turns", "Turns sampled anew after a kill cut one short")
        self.cut = counter("sandgate_cut_turns", "Turns whose client let go of them in the middle")
        self.spelt = counter(
            "sandgate_special_tokens_in_text",
            "Control tokens that clients' text spells, in what turns add to their context",
        )

    def _count_sessions(self, counter: Callable[..., Counter]) -> None:
        ended = counter(
            "sandgate_sessions_ended",
            "Sessions finalized or aborted, by the class of their failure; ok: none",
            ["outcome"],
        )
        self.ended = {outcome: ended.labels(outcome) for outcome in OUTCOMES}
        self.written = counter("sandgate_output_groups", "Groups written to files")
        self.unwritten = counter("sandgate_output_failures", "Attempts to write a group that failed")
        self.left_out = counter(
            "sandgate_sessions_left_out", "Ended sessions whose rows cannot be given to a trainer"
        )

    def _time(self, histogram: Callable[..., Histogram]) -> None:
        self.render_s = histogram("sandgate_render_seconds", "Messages to ids")
        self.engine_s = histogram("sandgate_engine_seconds", "Engine call")
        self.commit_s = histogram("sandgate_commit_seconds", "Journal commit")

    def _gauge(self, gauge: Callable[..., Gauge]) -> None:
        self.in_flight = gauge("sandgate_in_flight", "Generations in flight")
        self.sessions = gauge("sandgate_sessions_open", "Sessions that take turns")
        self.version = gauge("sandgate_policy_version", "Policy version last told")
        self.unlabelled = gauge(
            "sandgate_engines_unlabelled",
            "Engines not used because the label of their weights lost its version",
        )
        self.engines = gauge("sandgate_engines", "Engines that the gateway was told of")
        self.engines_up = gauge("sandgate_engines_healthy", "Those of them that take turns")
        self.paused = gauge("sandgate_paused", "1 while a weight update holds new turns")
        self.trainer_s = gauge(
            "sandgate_trainer_age_seconds",
            "Since a trainer was last heard, or since the start if groups were leased before; NaN: none ever came",
        )
        self.owed = gauge("sandgate_groups_owed", "Whole groups that no trainer has acknowledged yet")
        self.leased = gauge("sandgate_groups_leased", "Those of them that a trainer has")
        self.healthy = gauge("sandgate_journal_healthy", "1 if turns can be made durable")
        self.free = gauge("sandgate_journal_free_bytes", "Free on the journal's volume; NaN: in a database")
        self.size = gauge("sandgate_journal_volume_bytes", "Size of the journal's volume; NaN: in a database")

    def error(self, reason: str) -> None:
        """Counts one refusal; `reason` is a code of contract.errors, never a message."""
        self._errors.labels(reason).inc()
