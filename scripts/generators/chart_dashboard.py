"""charts/sandgate/files/dashboard.json, jobs.json: Grafana's views of the operator, and of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

PATH, JOBS_PATH = "charts/sandgate/files/dashboard.json", "charts/sandgate/files/jobs.json"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3
"""Grafana's grid is 24 wide."""
RATE = "[$__rate_interval]"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """`unit` is Grafana's name; `queries` are legend -> PromQL."""

    title: str
    unit: str
    queries: dict[str, str]


def quantiles(metric: str, by: str = "", where: str = "") -> dict[str, str]:
    """p50 and p99 of a histogram, per value of a label where one is given."""
    legend = f" {{{{{by}}}}}" if by else ""
    buckets = f"sum by ({', '.join(filter(None, ['le', by]))}) (rate({metric}_bucket{where}{RATE}))"
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


JOB = '{namespace=~"$namespace", sandgate_dev_job=~"$job"}'
"""What is chosen above; series of gateways and engines have these labels by the chart's PodMonitor."""


def total(metric: str, by: str = "") -> str:
    """A gauge, summed over pods, per value of a label where one is given."""
    return f"sum by ({by}) ({metric}{JOB})" if by else f"sum({metric}{JOB})"


def rate(metric: str, by: str = "") -> str:
    """A counter's, a second."""
    return f"sum by ({by}) (rate({metric}{JOB}{RATE}))" if by else f"sum(rate({metric}{JOB}{RATE}))"


HERE = f'sum(rate(sandgate_turns_by_node_total{JOB[:-1]}, same_node="true"}}{RATE}))'
JOB_PANELS = (
    Panel(
        "Sessions open",
        "short",
        {"{{sandgate_dev_job}}": total("sandgate_sessions_open", "sandgate_dev_job")},
    ),
    Panel("Sessions ended", "ops", {"{{outcome}}": rate("sandgate_sessions_ended_total", "outcome")}),
    Panel(
        "Groups for the trainer",
        "short",
        {"owed": total("sandgate_groups_owed"), "on a lease": total("sandgate_groups_leased")},
    ),
    Panel(
        "Turns",
        "ops",
        {"turns": rate("sandgate_turns_total"), "cut": rate("sandgate_cut_turns_total")},
    ),
    Panel(
        "Tokens a second",
        "short",
        {"sampled": rate("sandgate_sampled_tokens_total"), "context": rate("sandgate_context_tokens_total")},
    ),
    Panel("Forks", "ops", {"{{reason}}": rate("sandgate_forks_total", "reason")}),
    Panel("Refused and failed calls", "ops", {"{{reason}}": rate("sandgate_errors_total", "reason")}),
    Panel(
        "Retries",
        "ops",
        {
            "answered from the journal": rate("sandgate_replayed_turns_total"),
            "joined": rate("sandgate_joined_calls_total"),
            "sampled anew": rate("sandgate_resampled_turns_total"),
        },
    ),
    Panel(
        "Turns that stay on their node",
        "percentunit",
        {"share": f"{HERE} / {rate('sandgate_turns_by_node_total')}"},
    ),
    Panel("Engine: seconds a call", "s", quantiles("sandgate_engine_seconds", where=JOB)),
    Panel("Messages to ids", "s", quantiles("sandgate_render_seconds", where=JOB)),
    Panel("Journal: seconds a commit", "s", quantiles("sandgate_commit_seconds", where=JOB)),
    Panel(
        "Journal: free of the volume",
        "percentunit",
        {"{{pod}}": f"sandgate_journal_free_bytes{JOB} / sandgate_journal_volume_bytes{JOB}"},
    ),
    Panel(
        "Engines",
        "short",
        {
            "known": f"max(sandgate_engines{JOB})",
            "take turns": f"min(sandgate_engines_healthy{JOB})",
            "lack weights": f"max(sandgate_engines_unlabelled{JOB})",
        },
    ),
    Panel(
        "Generations",
        "short",
        {
            "in flight at gateways": total("sandgate_in_flight"),
            "running at vLLM": total("vllm:num_requests_running"),
            "waiting at vLLM": total("vllm:num_requests_waiting"),
            "running at SGLang": total("sglang:num_running_reqs"),
            "waiting at SGLang": total("sglang:num_queue_reqs"),
        },
    ),
    Panel("vLLM: KV cache in use", "percentunit", {"{{pod}}": f"vllm:kv_cache_usage_perc{JOB}"}),
    Panel(
        "Weight updates",
        "short",
        {"version": f"max(sandgate_policy_version{JOB})", "turns are held": f"max(sandgate_paused{JOB})"},
    ),
    Panel(
        "Trainer: last heard",
        "s",
        {"{{sandgate_dev_job}}": f"min by (sandgate_dev_job) (sandgate_trainer_age_seconds{JOB})"},
    ),
    Panel(
        "Files",
        "ops",
        {"groups": rate("sandgate_output_groups_total"), "failures": rate("sandgate_output_failures_total")},
    ),
)
CHOSEN = {"namespace": "namespace", "job": "sandgate_dev_job"}
"""Variable -> label."""


def every_query() -> list[str]:
    """Of all panels."""
    return [query for panel in (*PANELS, *JOB_PANELS) for query in panel.queries.values()]


def generate() -> dict[str, str]:
    chosen = [
        {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values(sandgate_turns_total, {label})",
            "includeAll": True,
            "allValue": ".*",
            "refresh": 2,
        }
        for name, label in CHOSEN.items()
    ]
    return {
        PATH: board("Sandgate operator", "sandgate-operator", PANELS, []),
        JOBS_PATH: board("Sandgate jobs", "sandgate-jobs", JOB_PANELS, chosen),
    }


def board(title: str, uid: str, panels: Sequence[Panel], chosen: list[dict[str, Any]]) -> str:
    made = {
        "title": title,
        "uid": uid,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *chosen]
        },
        "panels": [drawn(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(made, indent=1) + "\n"


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
