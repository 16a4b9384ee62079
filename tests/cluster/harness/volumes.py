"""Local volumes of each node, and the default StorageClass that binds a claim where its pod runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.cluster.harness.rest import Refused, Rest

PER_NODE = 40
SIZE = "10Gi"
"""What they say they hold; nothing limits them."""
PATH = "/api/v1/persistentvolumes"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def create(rest: Rest, folders: Mapping[str, Path]) -> None:
    """For each node, in its folder."""
    rest.create("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS)
    for node, folder in folders.items():
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        for number in range(PER_NODE):
            path = folder / str(number)
            path.mkdir(parents=True)
            spec = {
                "capacity": {"storage": SIZE},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "local",
                "local": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            }
            rest.create(PATH, {"metadata": {"name": f"{node}-{number}"}, "spec": spec})


def reclaim(rest: Rest) -> None:
    """Empty the volumes whose claims are gone, for others to use."""
    for volume in rest.get(PATH)["items"]:
        if volume["status"].get("phase") == "Released":
            folder = Path(volume["spec"]["local"]["path"])
            for inner in folder.iterdir():
                shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
            with suppress(Refused):  # another run was faster
                rest.merge(f"{PATH}/{volume['metadata']['name']}", {"spec": {"claimRef": None}})
