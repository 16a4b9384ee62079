"""The real Kueue in a cluster of ours: its manager as a process beside the API server, as its deployment is a pod.

Its CRDs, its webhooks and its defaults are those of its module. Of its webhooks only those of its own kinds: who makes
pods or Jobs in the same cluster meanwhile does not depend on it.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness.machines import API_PORT, STATE, Machines
from tests.cluster.harness.network import CONTROL, CONTROL_IP, enter
from tests.cluster.harness.process import spawn
from tests.cluster.harness.programs import binary

GROUP = "kueue.x-k8s.io"
HEALTH_PORT, WEBHOOK_PORT = 9081, 9443
CERTS = "kueue/metrics/certs"
"""Below /etc: where it looks for its certificate, whatever its configuration says."""
INSIDE = 'mount -t overlay -o "lowerdir=$1:/etc" overlay /etc && shift && exec "$@"'
"""An /etc of its own, with that."""
READY_S = 90.0
Json = dict[str, Any]


def configuration(certs: Path) -> Json:
    """What differs from its defaults: where it listens, who signed its certificate, no second replica."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kube-system",
        "health": {"healthProbeBindAddress": f"{CONTROL_IP}:{HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": CONTROL_IP, "port": WEBHOOK_PORT, "certDir": str(certs)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {
            "frameworks": ["batch/job"],
            "externalFrameworks": [
                f"{kind}.v1alpha1.sandgate.dev" for kind in ("RolloutJob", "AgentSession")
            ],
        },
        "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False, "TopologyAwareScheduling": False},
    }


def webhooks(manifests: str, ca: bytes) -> list[Json]:
    """Of its own kinds, at its address."""
    found = []
    for body in yaml.safe_load_all(manifests):
        own = [one for one in body["webhooks"] if all(r["apiGroups"] == [GROUP] for r in one["rules"])]
        for one in own:
            path = one["clientConfig"]["service"]["path"]
            one["clientConfig"] = {
                "url": f"https://{CONTROL_IP}:{WEBHOOK_PORT}{path}",
                "caBundle": base64.b64encode(ca).decode(),
            }
        found.append({**body, "metadata": {"name": f"kueue-{body['kind'].lower()}"}, "webhooks": own})
    return found


@contextmanager
def kueue(machines: Machines) -> Iterator[None]:
    """Runs, and is ready. Afterwards nothing of it is left, its kinds and their objects included."""
    part, folder = binary("kueue").parent, STATE / "kueue"
    control, pki, api = machines.control, machines.control.pki, machines.api
    machines.ledger.kill("kueue")
    shutil.rmtree(folder, ignore_errors=True)
    certs = folder / "etc" / CERTS
    certs.mkdir(parents=True)
    pki.cert("kueue", "/O=system:masters/CN=kueue", server=[f"IP:{CONTROL_IP}"])
    for kind in ("crt", "key"):
        shutil.copyfile(pki.path(f"kueue.{kind}"), certs / f"tls.{kind}")
    kubeconfig = pki.kubeconfig("kueue", f"https://{CONTROL_IP}:{API_PORT}", folder / "kubeconfig")
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(certs)))
    rules = webhooks((part / "webhooks.yaml").read_text("utf-8"), pki.path("ca.crt").read_bytes())
    api.kubectl("apply", "--server-side", "-f", str(part / "crds"))
    api.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(part / "crds"))
    inside = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", INSIDE, "sh"]
    argv = [*enter(CONTROL), *inside, str(folder / "etc"), str(binary("kueue")), f"--config={config}"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}
    try:
        machines.ledger.add("kueue", spawn(argv, STATE / "log" / "kueue.log", env=env))
        api.apply(*rules)
        control.wait(lambda: _takes(machines), "Kueue answers", within_s=READY_S)
        yield
    finally:
        for body in rules:
            api.kubectl("delete", body["kind"], body["metadata"]["name"], "--ignore-not-found")
        api.kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(part / "crds"), check=False)
        machines.ledger.kill("kueue")


def _takes(machines: Machines) -> bool:
    """Its webhooks answer: a flavor would be taken."""
    flavor = {"apiVersion": f"{GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    said = machines.api.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps(flavor), check=False
    )
    return "created" in said
