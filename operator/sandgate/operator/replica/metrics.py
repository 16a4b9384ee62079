"""Prometheus metrics of the operator: names, units and bounded labels. Nothing per object."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sandgate.operator.cluster.health import OperatorHealth, ReplicaPhase

CALL_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
PLAN_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)
ACTION_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
SEEN = "1 for a watched namespace, 0 for one that is gone or forbidden; nothing where all are watched"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OperatorMetrics:
    """One registry per operator, so that tests can hold several."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._calls = Counter(
            "sandgate_api_calls",
            "Calls to the API server, by HTTP status or kind of failure",
            ["verb", "kind", "code"],
            registry=registry,
        )
        self._call_s = Histogram(
            "sandgate_api_seconds",
            "One call to the API server",
            ["verb", "kind"],
            buckets=CALL_S,
            registry=registry,
        )
        self._actions = Counter(
            "sandgate_operator_actions",
            "Actions carried out, by kind and outcome",
            ["action", "outcome"],
            registry=registry,
        )
        self._action_s = Histogram(
            "sandgate_operator_action_seconds",
            "Carrying out one action",
            ["action"],
            buckets=ACTION_S,
            registry=registry,
        )
        self._plan_s = Histogram(
            "sandgate_operator_plan_seconds", "Planning one key", buckets=PLAN_S, registry=registry
        )
        self._events = Counter(
            "sandgate_operator_watch_events", "Changes seen", ["kind", "type"], registry=registry
        )
        self._lists = Counter(
            "sandgate_operator_lists",
            "Lists that began a watch; all but the first of a kind and namespace may have missed deletions",
            ["kind"],
            registry=registry,
        )
        self._seen = Gauge("sandgate_operator_namespace_seen", SEEN, ["watched"], registry=registry)
        self._sweeps = Counter("sandgate_operator_sweeps", "Sweeps", ["outcome"], registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._phase = gauge("sandgate_operator_phase", "1 for what this replica does now", ["phase"])
        self._leader = gauge("sandgate_operator_leader", "1 if this replica leads")
        self._lag = gauge("sandgate_operator_loop_lag_seconds", "Longest stall lately")
        self._queue = gauge("sandgate_operator_queue_length", "Keys that wait")
        self._queue_s = gauge("sandgate_operator_queue_age_seconds", "Wait of the first")
        self._event_s = gauge("sandgate_operator_last_event_age_seconds", "Since a watch last told")
        self._sweep_s = gauge(
            "sandgate_operator_sweep_age_seconds", "Since a sweep succeeded, or since it leads if none has"
        )
        self._jobs = gauge("sandgate_operator_jobs", "RolloutJobs known")
        self._unready = gauge(
            "sandgate_operator_jobs_unready",
            "RolloutJobs that should run and whose gateways or engines are not ready, by the reason of condition Ready",
            ["reason"],
        )
        self._sessions = gauge("sandgate_operator_sessions", "Sessions known", ["state"])

    def called(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """One attempt at a call: kube.Observe."""
        self._calls.labels(verb, kind, code).inc()
        self._call_s.labels(verb, kind).observe(seconds)

    def acted(self, action: str, outcome: str, seconds: float) -> None:
        """An action was carried out, or not. `action`: its class; `outcome`: ok, or the reason code of the error."""
        self._actions.labels(action, outcome).inc()
        self._action_s.labels(action).observe(seconds)

    def planned(self, seconds: float) -> None:
        """A key was planned."""
        self._plan_s.observe(seconds)

    def saw(self, kind: str, event: str | None) -> None:
        """A change, or an object of a list."""
        self._events.labels(kind, event or "LISTED").inc()

    def listed(self, kind: str) -> None:
        """A watch began with a list."""
        self._lists.labels(kind).inc()

    def sees(self, namespace: str, visible: bool) -> None:
        """A namespace that the operator was told to watch can be watched, or cannot."""
        self._seen.labels(namespace).set(visible)

    def swept(self, *, ok: bool) -> None:
        """A sweep ended."""
        self._sweeps.labels("ok" if ok else "failed").inc()

    def render(
        self, phase: ReplicaPhase, loop_lag_s: float, hub: OperatorHealth | None, *, phase_age_s: float = 0.0
    ) -> bytes:
        """The exposition, with what is true right now. `phase_age_s`: how long it has led, where no sweep has
        succeeded: an alert must see that, and what liveness restarts has none each time."""
        for one in ReplicaPhase:
            self._phase.labels(one.value).set(one is phase)
        self._leader.set(phase is ReplicaPhase.LEADING)
        self._lag.set(loop_lag_s)
        if hub is not None:
            self._queue.set(hub.queue_length)
            self._queue_s.set(hub.queue_age_s)
            self._event_s.set(_or_nan(hub.last_event_age_s))
            self._sweep_s.set(phase_age_s if hub.sweep_age_s is None else hub.sweep_age_s)
            self._jobs.set(hub.jobs)
            self._unready.clear()
            for reason, count in hub.unready.items():
                self._unready.labels(reason).set(count)
            self._sessions.clear()
            for state, count in hub.sessions.items():
                self._sessions.labels(state).set(count)
        return generate_latest(self.registry)


def _or_nan(seconds: float | None) -> float:
    return float("nan") if seconds is None else seconds
