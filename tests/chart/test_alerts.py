"""The chart's alerts, by the real promtool: rules that fire when they should, and are silent on a healthy job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract.errors import SandgateError
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.vllm import VllmEngine
from scripts.generators.chart_dashboard import every_query
from tests.chart.alert_cases import CASES, HEALTHY, Case
from tests.chart.rendering import NAMESPACE, render
from tests.chart.scraped import OF_OTHERS, scraped
from tests.cluster.harness.needs import why_not
from tests.cluster.harness.programs import PARTS, binary

PAGE = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text("utf-8")
NAMES = re.compile(r"\b(?:sandgate|vllm|sglang)[:_]\w+|\bup\b")
NO_NAMES = re.compile(r"\{[^}]*\}|\bby \([^)]*\)")


def rules(**alerts: Any) -> Mapping[str, Any]:
    return render({"metrics": {"alerts": {"enabled": True, **alerts}}}).one("PrometheusRule")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in rules()["spec"]["groups"] for rule in group["rules"]]


def promtool(folder: Path, *args: str) -> None:
    """Fails the test with what it says."""
    if why := why_not("promtool", (), [PARTS["promtool"]]):
        pytest.skip(why)
    done = subprocess.run(
        [str(binary("promtool")), *args], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_none_until_asked_for() -> None:
    assert not render().all("PrometheusRule")


def test_promtool_takes_them(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()["spec"]))
    promtool(tmp_path, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_alert_fires_when_it_should_and_no_other_does(case: Case, tmp_path: Path) -> None:
    _unit(tmp_path, case)


def test_a_healthy_installation_is_silent_for_a_day(tmp_path: Path) -> None:
    _unit(tmp_path, Case({}, None, at="1d"))


def test_every_alert_has_a_case() -> None:
    assert {one["alert"] for one in alerts()} == {case.fires for case in CASES.values()} - {None}


def _unit(folder: Path, case: Case) -> None:
    """One unit test of promtool: a healthy installation but for the case's series."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()["spec"]))
    series = [
        {"series": name.replace("NAMESPACE", NAMESPACE), "values": values}
        for name, values in {**HEALTHY, **case.series}.items()
        if values
    ]
    fired = "count by (alertname) (ALERTS{alertstate='firing'})"
    want = [{"labels": f'{{alertname="{case.fires}"}}', "value": 1}] if case.fires else []
    test = {"expr": fired, "eval_time": case.at, "exp_samples": want}
    suite = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [test]}],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(suite))
    promtool(folder, "test", "rules", "test.yaml")


def test_every_alert_says_how_bad_it_is_and_links_to_its_section() -> None:
    where = "https://wiki.example/runbooks"
    found = [rule for group in rules(runbooks=where)["spec"]["groups"] for rule in group["rules"]]
    for rule in found:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook_url"] == f"{where}#{rule['alert'].lower()}"
    sections = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    assert sections == [rule["alert"] for rule in found]
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+)\*\*: ", part, re.MULTILINE) == ["Means", "Look", "Do"], part


def test_each_shard_is_to_have_a_leader() -> None:
    values = {"metrics": {"alerts": {"enabled": True}}, "shards": ["a", "b"]}
    (first, *_) = render(values).one("PrometheusRule")["spec"]["groups"][0]["rules"]
    assert first["expr"].endswith("< 3")
    assert f'namespace="{NAMESPACE}"' in first["expr"]


async def test_alerts_and_dashboards_ask_for_metrics_and_labels_that_there_are() -> None:
    known = await scraped()
    engines = {*VllmEngine.dialect.gauges, *SglangEngine.dialect.gauges}
    for query in [*(one["expr"] for one in alerts()), *every_query()]:
        asked = set(NAMES.findall(NO_NAMES.sub("", query)))
        assert asked, query
        assert asked <= known.keys() | engines | OF_OTHERS, query
        for name, labels in re.findall(r"(sandgate_\w+)\{([^}]*)\}", query):
            mine = set(re.findall(r"(\w+)[!=]", labels))
            assert mine <= known[name] | {"namespace", "pod", "sandgate_dev_job", "sandgate_dev_role"}, query


def test_reasons_and_outcomes_in_alerts_are_real() -> None:
    every: list[type[SandgateError]] = [SandgateError]
    for one in every:
        every += one.__subclasses__()
    for query in (one["expr"] for one in alerts()):
        for reason in re.findall(r'reason="(\w+)"', query):
            assert reason in {one.reason for one in every}, query
