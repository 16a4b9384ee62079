"""`helm test`: every operator replica is ready, and the API server serves both kinds. Standard library only.

Arguments: URL of /readyz at the operator's headless Service, number of replicas in all.
"""

import json
import os
import socket
import ssl
import sys
import time
import urllib.parse
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
KINDS = {"RolloutJob", "AgentSession"}
PATIENCE_S = 90
"""An operator that was just installed gets that long."""


def missing_kinds() -> set[str]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    url = f"https://{host}:{port}/apis/sandgate.dev/v1alpha1"
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=5, context=context
    ) as answer:
        return KINDS - {one["kind"] for one in json.load(answer)["resources"]}


def not_ready(url: str, replicas: int) -> str:
    parts = urllib.parse.urlsplit(url)
    found = {info[4][0] for info in socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)}
    for address in found:
        host = f"[{address}]" if ":" in address else address
        with urllib.request.urlopen(f"http://{host}:{parts.port}{parts.path}", timeout=5) as answer:
            answer.read()
    return "" if len(found) == replicas else f"{len(found)} of {replicas} replicas are ready"


def complaint(url: str, replicas: int) -> str:
    try:
        if missing := missing_kinds():
            return f"not served: {', '.join(sorted(missing))}"
        return not_ready(url, replicas)
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def main(url: str, replicas: int) -> int:
    until = time.monotonic() + PATIENCE_S
    while (why := complaint(url, replicas)) and time.monotonic() < until:
        time.sleep(1)
    sys.stdout.write((why or f"{replicas} replicas are ready; {', '.join(sorted(KINDS))} are served") + "\n")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
