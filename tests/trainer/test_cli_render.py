"""`sandgate render`: YAML that is whole, safe to show, and refused where the job cannot run in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.trainer.cli.command import main
from tests.contract.manifests import spoilt

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "job.yaml"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as exited:
        main(["render", *argv])
    said = capsys.readouterr()
    return int(exited.value.code or 0), said.out, said.err


def test_the_example_s_objects_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(SHOP), "-n", "rl")
    found: list[dict[str, Any]] = list(yaml.safe_load_all(out))
    assert code == 0
    kinds = {one["kind"] for one in found}
    assert kinds >= {"StatefulSet", "Deployment", "Service", "NetworkPolicy", "AgentSession", "Pod", "Secret"}
    assert {one["metadata"]["namespace"] for one in found} == {"rl"}
    assert "*id" not in out  # YAML anchors are for machines
    agent = next(one for one in found if one["kind"] == "Pod")
    session = next(one for one in found if one["kind"] == "AgentSession")
    assert agent["metadata"]["name"] == session["metadata"]["name"]


def test_as_json_it_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, str(SHOP), "--json")
    made = json.loads(out)
    assert made["kind"] == "List"
    assert made["items"] == list(yaml.safe_load_all(run(capsys, str(SHOP))[1]))


def test_the_installation_s_settings_decide_what_the_job_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"gateway_image": "mine:7", "cluster_domain": "k8s.example"}))
    _, out, _ = run(capsys, str(SHOP), "--settings", str(settings))
    assert "image: mine:7" in out
    assert ".svc.k8s.example:8000" in out


def test_a_job_that_only_runs_on_one_machine_is_refused_naming_the_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(spoilt(("spec.tasks", {"file": "tasks.jsonl"}))))
    code, out, err = run(capsys, str(job))
    assert (code, out) == (2, "")
    assert err.startswith("error: spec.tasks.file: ")


@pytest.mark.parametrize("name", ["", "Bad_NS", "a/b", "x" * 64, "\udcff"])
def test_a_namespace_that_none_is_called_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, str(SHOP), "-n", name)
    assert (code, out) == (2, "")
    assert err.endswith(
        "is not a namespace's name (up to 63 lower case letters, digits and dashes) [field --namespace]\n"
    )


NO_SETTINGS = {
    "a key that is unknown": (b'{"gateway_imag": "x"}', "unknown key 'gateway_imag' [field gateway_imag]"),
    "no text": (b'{"gateway_image": "\xff"}', "not JSON: "),
    "nothing": (b"", "not JSON: "),
    "YAML": (b"gateway_image: x", "not JSON: "),
    "an object without an end": (b'{"a":' * 30_000, "not JSON: "),
    "a list": (b"[]", "must be an object"),
    "a number that is text": (b'{"history": "7"}', "history must be int"),
    "a number below zero": (b'{"history": -1}', "history must be 0 to 2147483647 [field history]"),
    "a number beyond all": (b'{"history": 1e999}', "history must be int"),
    "a number where text belongs": (b'{"pull_secrets": [1]}', "pull_secrets must hold text only"),
    "a label that is a number": (b'{"dns_labels": {"a": 1}}', "dns_labels must hold text only"),
    "a text where an object belongs": (
        b'{"engine_scrapers": ["x"]}',
        "engine_scrapers must hold objects only",
    ),
}


@pytest.mark.parametrize(("raw", "why"), NO_SETTINGS.values(), ids=NO_SETTINGS)
def test_settings_that_are_no_settings_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, raw: bytes, why: str
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_bytes(raw)
    code, out, err = run(capsys, str(SHOP), "--settings", str(settings))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {settings}: ")
    assert why in err
