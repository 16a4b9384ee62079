"""The chart as an archive: the same bytes each time, and what a registry gives back installs as the folder does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import package_chart
from scripts.generators.chart_version import versioned
from tests.chart.released import Release
from tests.chart.rendering import CHART, KUBERNETES, helm
from tests.cluster.harness.api import Api
from tests.support.registry import registry

ROOT = CHART.parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def pack(folder: Path, *options: str) -> Path:
    """By the command that `make chart` runs."""
    command = [sys.executable, str(ROOT / "scripts" / "package_chart.py"), "--to", str(folder), *options]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a registry's folder of charts."""
    with registry(tmp_path_factory.mktemp("registry")) as address:
        yield f"oci://{address}/team/charts"


def digest(archive: bytes) -> str:
    """What is compared: to say how two archives differ takes minutes."""
    return hashlib.sha256(archive).hexdigest()


def template(chart: str, *options: str) -> str:
    return helm("template", "sandgate", chart, f"--kube-version={KUBERNETES}", *options)


def test_chart_and_app_have_the_version_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_a_chart_without_a_line_for_each_version_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        versioned("version: 1\n", "2")


def test_packed_twice_it_is_the_same_bytes_whatever_the_times_and_modes_of_its_files(tmp_path: Path) -> None:
    copy = tmp_path / "sandgate"
    shutil.copytree(
        CHART, copy, ignore=shutil.ignore_patterns("__pycache__")
    )  # installed.py is imported by a test
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    subprocess.run(["git", "init", "-q"], check=True, cwd=copy)
    assert list(package_chart.files(copy)) == list(package_chart.files())
    assert digest(package_chart.packed(package_chart.files(copy))) == digest(
        package_chart.packed(package_chart.files())
    )


def test_what_git_does_not_know_is_not_packed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True, cwd=tmp_path)
    (tmp_path / ".gitignore").write_text("secret\n")
    (tmp_path / "secret").write_text("no")
    (tmp_path / "Chart.yaml").write_text("yes")
    assert list(package_chart.files(tmp_path)) == [".gitignore", "Chart.yaml"]


def test_the_archive_renders_what_the_folder_renders(archive: Path) -> None:
    assert template(str(archive)) == template(str(CHART))
    assert "0 chart(s) failed" in helm("lint", "--strict", str(archive))


def test_its_readme_is_in_it(archive: Path) -> None:
    assert helm("show", "readme", str(archive)).strip() == (CHART / "README.md").read_text("utf-8").strip()


def test_another_version_is_of_the_chart_and_of_the_images_it_asks_for(tmp_path: Path) -> None:
    made = pack(tmp_path, "--version", "1.2.3-rc.1")
    assert made.name == "sandgate-1.2.3-rc.1.tgz"
    said = yaml.safe_load(helm("show", "chart", str(made)))
    assert (said["version"], said["appVersion"]) == ("1.2.3-rc.1", "1.2.3-rc.1")
    assert "image: sandgate-operator:1.2.3-rc.1" in template(str(made))


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3+build", "1.2.3 "])
def test_a_version_that_is_none_is_refused(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        package_chart.main(["--to", str(tmp_path), "--version", version])
    assert "must be as 1.2.3" in capsys.readouterr().err


@pytest.fixture(scope="module")
def pushed(archive: Path, charts: str) -> tuple[str, ...]:
    """Where helm finds it: chart and options."""
    helm("push", "--plain-http", str(archive), charts)
    return f"{charts}/sandgate", "--plain-http", f"--version={VERSION}"


def test_a_registry_gives_back_the_same_bytes(archive: Path, pushed: tuple[str, ...], tmp_path: Path) -> None:
    helm("pull", *pushed, f"--destination={tmp_path}")
    (pulled,) = tmp_path.glob("*.tgz")
    assert digest(pulled.read_bytes()) == digest(archive.read_bytes())


def test_from_a_registry_it_renders_what_the_folder_renders(pushed: tuple[str, ...]) -> None:
    assert template(*pushed) == template(str(CHART))


def test_from_a_registry_it_is_installed(apiserver: Api, pushed: tuple[str, ...]) -> None:
    with apiserver.namespace("chart-oci") as namespace:
        release = Release(apiserver, namespace)
        release.helm("install", *pushed, values={"crds": {"install": False}, "fullnameOverride": "oci"})
        try:
            where = f"--kubeconfig={apiserver.kubeconfig}", f"--namespace={namespace}"
            (found,) = json.loads(helm("list", *where, "--output=json"))
            assert (found["chart"], found["app_version"]) == (f"sandgate-{VERSION}", VERSION)
        finally:
            release.uninstall()


def test_the_page_names_the_commands() -> None:
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert "make chart" in page
    assert re.search(r"helm push \S+\.tgz oci://", page)
    assert re.search(r"helm install sandgate oci://\S+/sandgate --version", page)
