"""charts/sandgate/files/dashboard.json: Grafana's view of the operator, one row of the table below per panel."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PATH = "charts/sandgate/files/dashboard.json"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3
"""Grafana's grid is 24 wide."""
RATE = "[$__rate_interval]"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """`unit` is Grafana's name; `queries` are legend -> PromQL."""

    title: str
    unit: str
    queries: dict[str, str]


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    """p50 and p99 of a histogram, per value of a label where one is given."""
    legend = f" {{{{{by}}}}}" if by else ""
    buckets = f"sum by ({', '.join(filter(None, ['le', by]))}) (rate({metric}_bucket{RATE}))"
    return {f"p{q}{legend}": f"histogram_quantile(0.{q}, {buckets})" for q in (50, 99)}


PANELS = (
    Panel("Leaders", "short", {"{{pod}}": "max by (pod) (sandgate_operator_leader)"}),
    Panel("Jobs", "short", {"{{pod}}": "max by (pod) (sandgate_operator_jobs)"}),
    Panel("Sessions by state", "short", {"{{state}}": "sum by (state) (sandgate_operator_sessions)"}),
    Panel(
        "Actions",
        "ops",
        {"{{action}} {{outcome}}": f"sum by (action, outcome) (rate(sandgate_operator_actions_total{RATE}))"},
    ),
    Panel("Planning a key", "s", quantiles("sandgate_operator_plan_seconds")),
    Panel("Carrying out an action", "s", quantiles("sandgate_operator_action_seconds", "action")),
    Panel("Queue: keys", "short", {"{{pod}}": "max by (pod) (sandgate_operator_queue_length)"}),
    Panel("Queue: age of the first", "s", {"{{pod}}": "max by (pod) (sandgate_operator_queue_age_seconds)"}),
    Panel(
        "API server: calls",
        "reqps",
        {"{{verb}} {{kind}} {{code}}": f"sum by (verb, kind, code) (rate(sandgate_api_calls_total{RATE}))"},
    ),
    Panel("API server: seconds a call", "s", quantiles("sandgate_api_seconds", "verb")),
    Panel(
        "Watch events",
        "ops",
        {"{{kind}} {{type}}": f"sum by (kind, type) (rate(sandgate_operator_watch_events_total{RATE}))"},
    ),
    Panel(
        "Age of the last sweep and event",
        "s",
        {
            "sweep {{pod}}": "max by (pod) (sandgate_operator_sweep_age_seconds)",
            "event {{pod}}": "max by (pod) (sandgate_operator_last_event_age_seconds)",
        },
    ),
    Panel("Event loop: longest stall", "s", {"{{pod}}": "max by (pod) (sandgate_operator_loop_lag_seconds)"}),
)


def generate() -> dict[str, str]:
    board = {
        "title": "Sandgate operator",
        "uid": "sandgate-operator",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [drawn(number, panel) for number, panel in enumerate(PANELS)],
    }
    return {PATH: json.dumps(board, indent=1) + "\n"}


def drawn(number: int, panel: Panel) -> dict[str, Any]:
    """The panel in its place of the grid, as Grafana stores it."""
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }
