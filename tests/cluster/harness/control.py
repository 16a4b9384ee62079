"""etcd, the API server, the controller manager and the scheduler: on the host or in a network namespace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.harness.pki import Pki
from tests.cluster.harness.process import Ledger, spawn
from tests.cluster.harness.programs import binary
from tests.cluster.harness.rest import Rest
from tests.support.waiting import until_now

SERVICES = "10.233.0.0/16"
API_SERVICE = "10.233.0.1"
DNS_SERVICE = "10.233.0.10"
PODS = "10.232.0.0/16"
ISSUER = "https://kubernetes.default.svc.cluster.local"
READY_WITHIN_S = 90.0
"""Three seconds when nothing else runs; ten times that on a machine that compiles."""
NODE_GRACE = "20s"
"""A silent node is NotReady after this; 40 s by default, which tests would wait for again and again."""
KEEPER = ("sh", "-c", 'while :; do setpriv --pdeathsig KILL -- "$0" "$@"; sleep 1; done')
"""A scheduler ends itself when it saw the API server contradict itself, an API server when a hook of its start fails.
SIGKILL to the keeper is SIGKILL to what it keeps."""
MADE_LATE = (
    "/api/v1/namespaces/default/services/kubernetes",
    "/api/v1/namespaces/kube-node-lease",
    "/api/v1/namespaces/kube-public",
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking",
)
"""What an API server makes by itself, up to a second after it said that it was ready. (Of its endpoints none, where it
listens on loopback; a cluster with nodes takes longer to come up than they do.)"""
FAST = ("--kube-api-qps=200", "--kube-api-burst=400")

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["*"]},
        # What a cluster without us does all day.
        {"level": "None", "userGroups": ["system:nodes"], "verbs": ["get", "list", "watch"]},
        {
            "level": "None",
            "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            "namespaces": ["kube-system", "kube-node-lease"],
        },
        {"level": "Metadata"},
    ],
}
ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": dict.fromkeys(("enforce", "warn", "audit"), "privileged"),
            },
        }
    ],
}


@dataclass(frozen=True)
class Place:
    """Where a control plane listens. `prefix`: the command that brings a process there and then execs it."""

    address: str
    api_port: int
    etcd_port: int
    peer_port: int
    prefix: tuple[str, ...] = field(default=())


class Control:
    """A control plane whose state is the folder: another Python may go on with it."""

    def __init__(self, folder: Path, place: Place, *, kept: bool = False) -> None:
        """`kept`: what ends by itself is started again, as a kubelet would."""
        self.folder = folder
        self.kept = kept
        self.place = place
        self.ledger = Ledger(folder / "pids")
        self.pki = Pki(folder / "pki")
        self.kubeconfig = folder / "admin.kubeconfig"
        self.audit_log = folder / "audit.log"

    def make_files(self, servers: Sequence[str], url: str) -> None:
        """Certificates and configuration. `servers`: further names of the API server; `url`: where tests find it."""
        (self.folder / "log").mkdir()
        pki = self.pki
        pki.folder.mkdir()
        pki.ca("ca")
        pki.ca("front-proxy-ca")
        pki.service_account_keys()
        names = [
            f"DNS:kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local")
        ]
        own = [*names, "DNS:localhost", "IP:127.0.0.1", f"IP:{API_SERVICE}", *servers]
        pki.cert("apiserver", "/CN=kube-apiserver", server=own)
        pki.cert("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        pki.cert("front-proxy-client", "/CN=front-proxy-client", ca="front-proxy-ca")
        pki.cert("admin", "/O=system:masters/CN=admin")
        pki.kubeconfig("admin", url, self.kubeconfig)
        for name, body in (("audit.json", AUDIT_POLICY), ("admission.json", ADMISSION)):
            (self.folder / name).write_text(json.dumps(body))

    def start_etcd(self) -> None:
        here, client, peer = "http://127.0.0.1", self.place.etcd_port, self.place.peer_port
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={here}:{client}",
            f"--advertise-client-urls={here}:{client}",
            f"--listen-peer-urls={here}:{peer}",
            f"--initial-advertise-peer-urls={here}:{peer}",
            f"--initial-cluster=default={here}:{peer}",
            "--log-level=warn",
        )

    def start_apiserver(self) -> None:
        """Waits until it is ready: what needs the roles it creates fails before. What it makes later is there, too:
        who looks at everything twice sees no difference but his own."""
        file, pki = self.folder.joinpath, self.pki.path
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.place.etcd_port}",
            f"--advertise-address={self.place.address}",
            f"--bind-address={'127.0.0.1' if self.place.address == '127.0.0.1' else '0.0.0.0'}",
            f"--secure-port={self.place.api_port}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",  # as everywhere; namespaces decide, by Pod Security
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            f"--admission-control-config-file={file('admission.json')}",
            f"--audit-policy-file={file('audit.json')}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=100000",  # of megabytes: a log that is begun anew at 100 loses what is counted
            f"--client-ca-file={pki('ca.crt')}",
            f"--tls-cert-file={pki('apiserver.crt')}",
            f"--tls-private-key-file={pki('apiserver.key')}",
            f"--kubelet-certificate-authority={pki('ca.crt')}",
            f"--kubelet-client-certificate={pki('kubelet-client.crt')}",
            f"--kubelet-client-key={pki('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={pki('sa.pub')}",
            f"--service-account-signing-key-file={pki('sa.key')}",
            f"--requestheader-client-ca-file={pki('front-proxy-ca.crt')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki('front-proxy-client.crt')}",
            f"--proxy-client-key-file={pki('front-proxy-client.key')}",
            "--enable-aggregator-routing=true",  # webhooks are called at endpoints: no kube-proxy runs here
            "--profiling=false",
        )
        rest = self.rest()
        self.wait(rest.answers, "the API server is ready")
        for path in MADE_LATE:
            self.wait(partial(rest.answers, path), f"the API server made {path}")
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        self.wait(lambda: bool(rest.get(leases)["items"]), "the API server made a Lease that says who it is")

    def start_controllers(self) -> None:
        """The controller manager; the API server must be ready."""
        pki = self.pki.path
        self._start(
            "kube-controller-manager",
            *self._kubeconfigs("controller-manager"),
            f"--service-account-private-key-file={pki('sa.key')}",
            f"--root-ca-file={pki('ca.crt')}",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={pki('ca.crt')}",
            f"--cluster-signing-key-file={pki('ca.key')}",
            "--allocate-node-cidrs=false",
            f"--cluster-cidr={PODS}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--node-monitor-grace-period={NODE_GRACE}",
            "--node-monitor-period=2s",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *FAST,
        )

    def start_scheduler(self) -> None:
        self._start(
            "kube-scheduler",
            *self._kubeconfigs("scheduler"),
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *FAST,
        )

    def stop(self, *names: str) -> None:
        """SIGKILL to components by the names of their programs, e.g. `etcd`; all when none is named."""
        self.ledger.kill(*names)

    def rest(self, *, token: str = "") -> Rest:
        """As admin, or as the holder of a token."""
        pki = self.pki.path
        if token:
            return Rest(self.url, ca=pki("ca.crt"), token=token)
        return Rest(self.url, ca=pki("ca.crt"), cert=pki("admin.crt"), key=pki("admin.key"))

    @property
    def url(self) -> str:
        """Where tests on the host find the API server."""
        config = json.loads(self.kubeconfig.read_text("utf-8"))
        url: str = config["clusters"][0]["cluster"]["server"]
        return url

    def wait(self, condition: Any, what: str, within_s: float = READY_WITHIN_S) -> None:
        """Like until_now; names the logs when it fails."""
        until_now(condition, what=f"{what} (logs: {self.folder / 'log'})", within_s=within_s)

    def _kubeconfigs(self, component: str) -> list[str]:
        file = self.folder / f"{component}.kubeconfig"
        options = ("--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig")
        return [f"{option}={file}" for option in options]

    def _start(self, component: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        argv = [*self.place.prefix, *(KEEPER if self.kept else ()), str(binary(component)), *flags]
        self.ledger.add(component, spawn(argv, self.folder / "log" / f"{component}.log", env=env))
