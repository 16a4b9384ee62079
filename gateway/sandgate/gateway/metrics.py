"""Prometheus metrics of the gateway: names, units and bounded labels. Nothing per token, nothing per session."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sandgate.contract.errors import ForkReason

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class GatewayMetrics:
    """The metrics of one gateway, in a registry of its own, so that tests can have several gateways."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.turns = Counter("sandgate_turns", "Turns committed", registry=registry)
        self.tokens = Counter("sandgate_sampled_tokens", "Tokens sampled and committed", registry=registry)
        self.context = Counter("sandgate_context_tokens", "Tokens added as context", registry=registry)
        forks = Counter(
            "sandgate_forks", "Turns that left their branch, by reason", ["reason"], registry=registry
        )
        self.forks = {reason.value: forks.labels(reason.value) for reason in ForkReason}
        self._errors = Counter(
            "sandgate_errors", "Requests refused or failed, by reason", ["reason"], registry=registry
        )
        self.replays = Counter(
            "sandgate_replayed_turns", "Committed answers given again to a retry", registry=registry
        )
        self.joined = Counter(
            "sandgate_joined_calls", "Retries that joined a call in flight", registry=registry
        )
        self.resampled = Counter(
            "sandgate_resampled_turns", "Turns sampled anew after a kill cut one short", registry=registry
        )
        self.cut = Counter(
            "sandgate_cut_turns", "Turns whose client let go of them in the middle", registry=registry
        )
        self.spelt = Counter(
            "sandgate_special_tokens_in_text",
            "Control tokens that clients' text spells, in what turns add to their context",
            registry=registry,
        )
        self.in_flight = Gauge("sandgate_in_flight", "Generations in flight", registry=registry)
        self.sessions = Gauge("sandgate_sessions_open", "Sessions that take turns", registry=registry)
        self.render_s = Histogram(
            "sandgate_render_seconds", "Messages to ids", buckets=LATENCY_S, registry=registry
        )
        self.engine_s = Histogram(
            "sandgate_engine_seconds", "Engine call", buckets=LATENCY_S, registry=registry
        )
        self.commit_s = Histogram(
            "sandgate_commit_seconds", "Journal commit", buckets=LATENCY_S, registry=registry
        )
        self.version = Gauge("sandgate_policy_version", "Policy version last told", registry=registry)
        self.unlabelled = Gauge(
            "sandgate_engines_unlabelled",
            "Engines not used because the label of their weights lost its version",
            registry=registry,
        )
        self.written = Counter("sandgate_output_groups", "Groups written to files", registry=registry)
        self.unwritten = Counter(
            "sandgate_output_failures", "Attempts to write a group that failed", registry=registry
        )
        self.left_out = Counter(
            "sandgate_sessions_left_out",
            "Ended sessions whose rows cannot be given to a trainer",
            registry=registry,
        )
        self.healthy = Gauge("sandgate_journal_healthy", "1 if turns can be made durable", registry=registry)

    def error(self, reason: str) -> None:
        """Counts one refusal; `reason` is a code of contract.errors, never a message."""
        self._errors.labels(reason).inc()
