"""A trainer in a pod: its image, its rights, and the programs that docs/cluster.md shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cluster import pods
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import build_image
from tests.images.ours import ROOT, WHEEL

Json = dict[str, Any]
PAGE = ROOT / "docs" / "cluster.md"
TRAINER = "localhost/sandgate-trainer:e2e"


def prepare(cluster: Cluster, namespace: str) -> None:
    """The image is on all nodes, and the account of the page is there."""
    dockerfile = Path(__file__).with_name("trainer.Dockerfile")
    cluster.load_image(build_image(dockerfile, ROOT, TRAINER, paths=WHEEL))
    (account,) = re.findall(r"```yaml\n(# A trainer.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=account)


def program(number: int) -> str:
    """Of the page's programs."""
    found: str = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[number]
    return found


TRAIN, UPDATE = 0, 1
"""Programs: it trains on groups; it loads new weights into managed engines."""


def trainer_pod(name: str, text: str, *argv: str) -> Json:
    """Labelled as the page says."""
    container = {"image": TRAINER, "command": ["python", "-W", "error", "-c", text, *argv]}
    mark = {"sandgate.dev/trainer": "true"}
    return pods.pod(name, labels=mark, container=container, serviceAccountName="trainer")


def log(cluster: Cluster, namespace: str, pod: str) -> str:
    return cluster.kubectl("-n", namespace, "logs", pod)
