"""Images are built from what git knows, once for each content, with this machine's pip, and run in the cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster import pods
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import build_image

DOCKERFILE = """
ARG BASE
FROM $BASE
COPY . /app
RUN python3 -m venv /venv && /venv/bin/pip install -q --no-deps six==1.17.0
"""
TAG = "localhost/sandgate-test/built:1"


@pytest.mark.slow
def test_an_image_is_built_once_and_runs(cluster: Cluster, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    subprocess.run(["git", "init", "-q"], check=True, cwd=context)
    (context / ".gitignore").write_text("secret\n")
    (context / "secret").write_text("no")
    (context / "file").write_text("yes\n")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(DOCKERFILE)
    archive = build_image(dockerfile, context, TAG)
    written = archive.stat().st_mtime_ns
    assert build_image(dockerfile, context, TAG).stat().st_mtime_ns == written
    cluster.load_image(archive)
    with cluster.namespace("image") as space:
        python = "/venv/bin/python -c 'import six; print(six.__version__)'"
        script = f"ls -A /app; cat /app/file; {python}; cat /etc/pip.conf 2>/dev/null"
        pods.start(cluster, space, pods.pod("p", script, container={"image": TAG}))
        pods.ended(cluster, space, "p")
        said = cluster.kubectl("-n", space, "logs", "p").splitlines()
    # The machine's pip settings were there for the build, and are not in the image.
    assert said == [".gitignore", "file", "yes", "1.17.0"]
