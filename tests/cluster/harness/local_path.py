"""The storage that kind and k3s have by default: local-path-provisioner makes a folder of a node for each claim.

Unlike volumes.py's, such a volume is gone with its claim, its folder is everybody's, and no fsGroup is applied to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.harness.images import PYTHON
from tests.cluster.harness.rest import Rest

SPACE = "local-path-storage"
PROVISIONER = "rancher.io/local-path"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}
SETUP = '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n'
TEARDOWN = '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n'
HELPER: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "helper-pod"},
    "spec": {"containers": [{"name": "helper-pod", "image": PYTHON, "imagePullPolicy": "Never"}]},
}


def create(rest: Rest, disk: Path, folder: Path) -> list[str]:
    """What it needs in the cluster and in `folder`; gives its command, which wants a --kubeconfig. Volumes are below
    `disk` on each node."""
    folder.mkdir()
    paths = {"nodePathMap": [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [str(disk)]}]}
    config, helper = folder / "config.json", folder / "helper.json"
    config.write_text(json.dumps(paths))
    helper.write_text(json.dumps(HELPER))  # JSON is YAML
    rest.create("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    account = {"metadata": {"name": "local-path-provisioner-service-account"}}
    rest.create(f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
    scripts = {"setup": SETUP, "teardown": TEARDOWN}
    body = {"metadata": {"name": "local-path-config"}, "data": scripts}
    rest.create(f"/api/v1/namespaces/{SPACE}/configmaps", body)
    rest.create("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS)
    return ["start", f"--config={config}", f"--helper-pod-file={helper}", f"--helper-image={PYTHON}"]
