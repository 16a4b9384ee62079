"""Our images as they are built: small, without root, without what belongs to people, builders or this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness.cache import cache
from tests.cluster.harness.images import PYTHON_IMAGE, buildah, image
from tests.images.ours import IMAGES, ROOT, build
from tests.tidy.source import module_names
from tests.tidy.test_house import FORBIDDEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
MORE_MAX = {"operator": 60 * MIB, "gateway": 440 * MIB, "fetcher": MIB, "shop": 60 * MIB}
"""Bytes that an image adds to its base. The gateway's: pyarrow, numpy, tokenizers, the renderers' own OpenAI SDK."""
FOREIGN = {
    "operator": {"torch", "kubernetes", "vllm", "typer", "pyarrow", "tokenizers", "pip"},
    "gateway": {"torch", "kubernetes", "vllm", "typer", "kopf", "pip"},
    "shop": {"sandgate", "pip"},
    "fetcher": {"sandgate", "openai"},
}
"""Packages that must not be there."""


def why_not() -> str:
    if os.geteuid() != 0:
        return "images are built by root here (buildah, chroot isolation)"
    if shutil.which("buildah") is None or shutil.which("debootstrap") is None:
        return "buildah and debootstrap are needed to build images"
    return ""


@dataclass(frozen=True)
class Built:
    name: str
    config: dict[str, Any]
    root: Path
    """Its file system, as its layers make it."""
    container: str

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As its own user, with what the image sets."""
        store = cache() / "containers"
        where = [
            "--root",
            str(store / "root"),
            "--runroot",
            str(store / "run"),
            "--storage-driver",
            "overlay",
        ]
        argv = ["buildah", *where, "run", "--isolation", "chroot", self.container, "--", *command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def container_of(name: str) -> Iterator[Built]:
    found = buildah("pull", "-q", f"oci-archive:{build(name)}")
    container = buildah("from", "--pull-never", found)
    try:
        config = json.loads(buildah("inspect", "--type", "image", found))["OCIv1"]
        yield Built(name, config, Path(buildah("mount", container)), container)
    finally:
        buildah("rm", container)
        with suppress(subprocess.CalledProcessError):  # another test has a container of it yet
            buildah("rmi", found)


@pytest.fixture(scope="module", params=IMAGES)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    if why := why_not():
        pytest.skip(why)
    with container_of(request.param) as one:
        yield one


def test_it_runs_as_a_number_that_is_not_root(built: Built) -> None:
    """By a name the kubelet could not tell that it is not root."""
    assert built.config["config"]["User"] == "65532:65532"
    assert built.run("id", "-u").stdout == "65532\n"


def test_it_holds_nothing_that_its_user_could_write(built: Built) -> None:
    for top in ("opt", "shop"):
        for path in (built.root / top).rglob("*"):
            status = path.lstat()
            assert status.st_uid == 0, path
            assert path.is_symlink() or not status.st_mode & 0o022, path


def test_it_is_small(built: Built) -> None:
    image(PYTHON_IMAGE)
    more = sum(
        path.lstat().st_size
        for top in ("opt", "shop")
        for path in (built.root / top).rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    assert more < MORE_MAX[built.name], f"{more / MIB:.1f} MiB"


def test_it_holds_no_stranger(built: Built) -> None:
    packages = built.root.glob("opt/*/lib/python3*/site-packages/*")
    names = {path.name.split("-")[0].lower() for path in packages}
    assert not names & FOREIGN[built.name]


def test_it_tells_nothing_of_the_machine_that_built_it(built: Built) -> None:
    """No path, package index, certificate or key: in our files, in pip's settings, in the image's own history."""
    assert not FORBIDDEN.search(json.dumps(built.config))
    assert not (built.root / "root/.config/pip").exists()
    settings = built.root / "etc/pip.conf"
    assert not settings.exists() or not settings.read_bytes()
    hosts = re.compile("|".join(map(re.escape, package_indexes())) or "(?!)")
    for path in (built.root / "opt").rglob("*"):
        if path.is_symlink() or not path.is_file() or path.suffix in (".pyc", ".so"):
            continue
        text = path.read_text("utf-8", "ignore")
        assert not hosts.search(text), path
        where = path.relative_to(built.root).parts
        if "direct_url.json" in where or any(part.startswith("sandgate") for part in where[2:]):
            assert not FORBIDDEN.search(text), path


def package_indexes() -> list[str]:
    """URLs in this machine's pip settings."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    return re.findall(r"https?://[^\s'\"]+", listed.stdout)


@pytest.mark.parametrize("room", ["operator", "gateway"])
def test_its_process_starts_without_libraries_for_people(room: str) -> None:
    if why := why_not():
        pytest.skip(why)
    with container_of(room) as one:
        helped = one.run("python", "-m", f"sandgate.{room}", "--help")
        assert helped.returncode == 0, helped.stderr
        assert helped.stderr == ""
        assert f"sandgate {room}" in helped.stdout
        assert one.config["config"]["Entrypoint"] == ["python", "-m", f"sandgate.{room}"]


def test_every_module_of_the_operator_can_be_imported_in_its_image() -> None:
    """What its extra lacks, a pod would miss at the worst time."""
    if why := why_not():
        pytest.skip(why)
    local = ("operator.local", "operator.__main__")
    names = [f"sandgate.{name}" for name in sorted(module_names()) if name.startswith("operator.")]
    names = [name for name in names if not name.removeprefix("sandgate.").startswith(local)]
    program = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    with container_of("operator") as one:
        done = one.run("python", "-c", program)
        assert done.returncode == 0, done.stderr


def test_the_gateway_can_keep_its_journal_in_a_database() -> None:
    """psycopg brings its own libpq: the base has none."""
    if why := why_not():
        pytest.skip(why)
    with container_of("gateway") as one:
        done = one.run(
            "python", "-c", "import sandgate.gateway.journal.postgres, psycopg; print(psycopg.pq.__impl__)"
        )
        assert (done.stdout, done.stderr) == ("binary\n", "")


def test_the_fetcher_says_what_it_lacks() -> None:
    if why := why_not():
        pytest.skip(why)
    with container_of("fetcher") as one:
        done = one.run(*one.config["config"]["Entrypoint"])
        assert (done.returncode, "SANDGATE_GATEWAY" in done.stderr) == (2, True)


def test_the_shop_s_agent_and_verifier_find_what_they_import() -> None:
    if why := why_not():
        pytest.skip(why)
    with container_of("shop") as one:
        done = one.run("python", "-c", "import agent, verifier")
        assert done.returncode == 0, done.stderr


def test_the_script_for_people_builds_the_same() -> None:
    """With the base that is here; into a store of its own, which is removed."""
    if why := why_not():
        pytest.skip(why)
    base = f"oci-archive:{image(PYTHON_IMAGE)}"
    more = {"BUILD_ARGS": "--isolation chroot --network host -q"}
    command = [str(ROOT / "images" / "build.sh"), "--base", base, "--tag", "by-script", "fetcher"]
    env = {**os.environ, **more, "STORAGE_DRIVER": "vfs"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    try:
        assert done.stdout.splitlines()[-1] == "sandgate-fetcher:by-script"
    finally:
        remove = ["buildah", "rmi", "sandgate-fetcher:by-script"]
        subprocess.run(remove, env=env, capture_output=True, check=True)


def test_the_script_tags_as_the_chart_asks(tmp_path: Path) -> None:
    """A builder that only takes down what it is told."""
    told = tmp_path / "told"
    builder = tmp_path / "buildah"
    builder.write_text(f'#!/bin/sh\necho "$@" >>{told}\n')
    builder.chmod(0o755)
    version = yaml.safe_load((ROOT / "charts/sandgate/Chart.yaml").read_text("utf-8"))["appVersion"]
    names = ["operator", "gateway", "fetcher"]
    images = [f"registry.example.com/team/sandgate-{name}:{version}" for name in names]
    done = subprocess.run(
        [str(ROOT / "images" / "build.sh"), "--registry", "registry.example.com/team", "--push", *names],
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == images
    pushed = [line for line in told.read_text("utf-8").splitlines() if line.startswith("push ")]
    assert pushed == [f"push {image}" for image in images]


def test_the_script_refuses_what_it_does_not_know() -> None:
    command = [str(ROOT / "images" / "build.sh"), "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "--no-such-option" in done.stderr) == (2, True)
