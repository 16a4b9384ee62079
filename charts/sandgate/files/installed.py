"""`helm test`: the API server serves both kinds, the operator's account has the rights that it needs, every replica is
ready, and one of each shard leads. Standard library only.

Arguments: URL of /readyz at the operator's headless Service, number of replicas in all, number of shards, and JSON of
what the account must be allowed: {"user", "groups", "reviews": [{"namespace", "local", "rules"}]}.
"""

import http.client
import json
import os
import socket
import ssl
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

Json = Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
KINDS = {"RolloutJob", "AgentSession"}
PATIENCE_S = 90
"""An operator that was just installed gets that long, and so do roles to come into force."""
NAMED_MAX = 10
"""Rights that a complaint names."""


class ApiServer:
    """One connection, as this pod's account."""

    def __init__(self) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
        self.connection = http.client.HTTPSConnection(host, int(port), timeout=5, context=context)
        with open(f"{ACCOUNT}/token") as file:
            self.headers = {
                "Authorization": f"Bearer {file.read().strip()}",
                "Content-Type": "application/json",
            }

    def __enter__(self) -> "ApiServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def call(self, path: str, body: Json = None) -> Json:
        """Raises OSError for anything but a 2xx."""
        verb, text = ("GET", None) if body is None else ("POST", json.dumps(body))
        self.connection.request(verb, path, text, self.headers)
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status // 100 != 2:
            raise OSError(f"{verb} {path}: {answer.status} {said[:300].decode('utf-8', 'replace')}")
        return json.loads(said)


def missing_kinds(server: ApiServer) -> str:
    found = server.call("/apis/sandgate.dev/v1alpha1")["resources"]
    missing = KINDS - {one["kind"] for one in found}
    return f"not served: {', '.join(sorted(missing))}" if missing else ""


def asked(rules: list[Json]) -> Iterator[dict[str, str]]:
    """Each right of a role's rules: attributes of an access review."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                plural, _, below = resource.partition("/")
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        what = {"group": group, "resource": plural, "subresource": below}
                        yield {**what, "verb": verb, "name": name}


def in_words(one: dict[str, str]) -> str:
    resource = "/".join(filter(None, (one["resource"], one["subresource"])))
    where = f" in {one['namespace']}" if one["namespace"] else ""
    return (
        " ".join(filter(None, (one["verb"], f"{resource}.{one['group']}".rstrip("."), one["name"]))) + where
    )


def missing_rights(server: ApiServer, wanted: Json) -> str:
    missing = []
    for review in wanted["reviews"]:
        root, kind = "/apis/authorization.k8s.io/v1", "SubjectAccessReview"
        path = f"{root}/subjectaccessreviews"
        if review["local"]:
            kind = "LocalSubjectAccessReview"
            path = f"{root}/namespaces/{review['namespace']}/localsubjectaccessreviews"
        for one in asked(review["rules"]):
            what = {**one, "namespace": review["namespace"]}
            spec = {"user": wanted["user"], "groups": wanted["groups"], "resourceAttributes": what}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
            if review["local"]:
                body["metadata"] = {"namespace": review["namespace"]}
            if not server.call(path, body)["status"]["allowed"]:
                missing.append(in_words(what))
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return f"{wanted['user']} may not: {'; '.join(missing[:NAMED_MAX])}{more}" if missing else ""


def not_ready(url: str, replicas: int, shards: int) -> str:
    parts = urllib.parse.urlsplit(url)
    found = {info[4][0] for info in socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    leaders = 0
    for address in found:
        host = f"[{address}]" if ":" in address else address
        with direct.open(f"http://{host}:{parts.port}{parts.path}", timeout=5) as answer:
            leaders += json.load(answer)["phase"] == "leading"
    if len(found) != replicas:
        return f"{len(found)} of {replicas} replicas are ready"
    return "" if leaders == shards else f"{leaders} replicas lead, not {shards}"


def complaint(url: str, replicas: int, shards: int, wanted: Json) -> str:
    try:
        with ApiServer() as server:
            why = missing_kinds(server) or missing_rights(server, wanted)
        return why or not_ready(url, replicas, shards)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def main(url: str, replicas: int, shards: int, wanted: Json) -> int:
    until = time.monotonic() + PATIENCE_S
    while (why := complaint(url, replicas, shards, wanted)) and time.monotonic() < until:
        time.sleep(1)
    rights = sum(1 for review in wanted["reviews"] for _ in asked(review["rules"]))
    told = f"{rights} rights are there" if rights else "rights were not asked for (rbac.create is false)"
    good = f"{replicas} replicas are ready, leaders: {shards}; {', '.join(sorted(KINDS))} are served; {told}"
    sys.stdout.write((why or good) + "\n")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])))
