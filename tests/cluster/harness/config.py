"""Configuration files of a node's programs, as data. Times are short, so that tests need not wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.harness.control import DNS_SERVICE, PODS
from tests.cluster.harness.flavour import flavour
from tests.cluster.harness.images import PAUSE
from tests.cluster.harness.network import Wire
from tests.cluster.harness.packages import CNI_PLUGINS

UNUSED_PLUGINS = [
    *(
        f"io.containerd.snapshotter.v1.{name}"
        for name in ("btrfs", "zfs", "aufs", "devmapper", "blockfile", "erofs")
    ),
    "io.containerd.internal.v1.opt",
    "io.containerd.tracing.processor.v1.otlp",
]
PODS_PER_NODE = 200


def containerd_toml(folder: Path) -> str:
    """Of containerd 2."""
    text = json.dumps  # strings and lists of JSON are TOML's
    return f"""version = 3
root = {text(str(folder / "containerd"))}
state = {text(str(folder / "containerd-state"))}
disabled_plugins = {text(UNUSED_PLUGINS)}

[grpc]
address = {text(str(folder / "containerd.sock"))}
[ttrpc]
address = {text(str(folder / "containerd.ttrpc.sock"))}

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
pinned_images = {{ sandbox = {text(PAUSE)} }}

[plugins."io.containerd.cri.v1.runtime"]
# OOM scores below one's own are not for containers in containers to set.
restrict_oom_score_adj = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{text(str(CNI_PLUGINS))}]
conf_dir = {text(str(folder / "cni"))}
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
Root = {text(str(folder / "runc"))}
SystemdCgroup = false
"""


def conflist(wire: Wire) -> dict[str, Any]:
    """Each pod on a cable of its own, routed: between pods of one node, too, packets pass the node's rules."""
    subnet = {"subnet": wire.pods}
    ipam = {
        "type": "host-local",
        "dataDir": "/run/ipam",
        "ranges": [[subnet]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "1.0.0", "name": "sandgate", "plugins": plugins}


def kubelet(wire: Wire, folder: Path, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": wire.ip,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"node-{wire.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"node-{wire.name}.key"),
        "containerRuntimeEndpoint": f"unix://{folder / 'containerd.sock'}",
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE],
        "resolvConf": str(folder / "resolv.conf"),
        "podLogsDir": str(folder / "log"),
        "maxPods": PODS_PER_NODE,
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{flavour.prefix}{wire.name}",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "crashLoopBackOff": {
            "maxContainerRestartPeriod": "10s"
        },  # who is killed often is back soon: tests go on
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 20,
        "syncFrequency": "10s",
        # a volume is measured again after one to two of these (the default is a minute): who writes too much to
        # one is seen within the tests' patience
        "volumeStatsAggPeriod": "20s",
        "serializeImagePulls": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
    }


def kube_proxy(wire: Wire, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(folder / "proxy.kubeconfig")},
        "hostnameOverride": wire.name,
        "mode": "nftables",
        "clusterCIDR": PODS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "min": 0},
        "oomScoreAdj": 0,
    }
