"""`helm test`: what its hooks are, and what its program says of a real API server and of replicas."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from tests.chart.released import Release, in_force, released
from tests.chart.rendering import CHART, Rendered, render
from tests.chart.test_rbac import granted
from tests.cluster.harness.api import Api
from tests.support.waiting import until_now

NAMESPACED = {"scope": "namespace", "watchNamespaces": ["a", "b"]}
ROLES = "/apis/rbac.authorization.k8s.io/v1"
PLACES = {"ClusterRole": f"{ROLES}/clusterroles", "ClusterRoleBinding": f"{ROLES}/clusterrolebindings"}
"""Of what the hooks have for the whole cluster."""


def program() -> Any:
    """files/installed.py, anew."""
    spec = importlib.util.spec_from_file_location("installed", CHART / "files" / "installed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hooks(rendered: Rendered) -> list[Mapping[str, Any]]:
    return [one for one in rendered.objects if "helm.sh/hook" in (one["metadata"].get("annotations") or {})]


def wanted(rendered: Rendered) -> Any:
    return json.loads(rendered.one("Pod")["spec"]["containers"][0]["args"][-1])


@pytest.mark.parametrize(
    "values", [{}, NAMESPACED, {"rbac": {"create": False}}], ids=["wide", "narrow", "bare"]
)
def test_hooks_go_when_the_test_was_good_and_before_the_next(values: dict[str, Any]) -> None:
    found = hooks(render(values))
    assert {"Pod", "ServiceAccount"} <= {one["kind"] for one in found}
    for one in found:
        said = one["metadata"]["annotations"]
        assert said["helm.sh/hook"] == "test"
        assert said["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert one["kind"] == "Pod" or said["helm.sh/hook-weight"] == "-1", "there before the pod"


def test_its_pod_asks_for_what_the_values_say() -> None:
    """A ResourceQuota or a LimitRange may ask for more than our own."""
    asked = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    found = render({"operator": {"helmTest": {"resources": asked}}}).one("Pod")["spec"]["containers"][0][
        "resources"
    ]
    assert found == {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ({}, "subjectaccessreviews.authorization.k8s.io"),
        (NAMESPACED, "localsubjectaccessreviews.authorization.k8s.io"),
    ],
    ids=["wide", "narrow"],
)
def test_its_account_may_ask_what_others_may_and_nothing_else(values: dict[str, Any], right: str) -> None:
    found = hooks(render(values))
    rules = [rule for one in found if one["kind"].endswith("Role") for rule in one["rules"]]
    assert set(granted(rules)) == {(right, "create")}
    bound = [one["subjects"] for one in found if one["kind"].endswith("Binding")]
    assert bound
    assert {subject["name"] for subjects in bound for subject in subjects} == {"sandgate-test"}


def test_where_roles_are_the_administrators_it_makes_none_and_asks_for_no_rights() -> None:
    rendered = render({"rbac": {"create": False}})
    assert {one["kind"] for one in hooks(rendered)} == {"Pod", "ServiceAccount"}
    assert wanted(rendered)["reviews"] == []


def test_it_asks_for_every_right_of_the_operators_roles() -> None:
    rendered = render({"shards": ["a"], "kueue": {"enabled": True}})
    everywhere, home = wanted(rendered)["reviews"]
    assert set(granted(everywhere["rules"])) <= set(
        granted(rendered.one("ClusterRole", "sandgate-operator")["rules"])
    )
    assert ("workloads.kueue.x-k8s.io", "create") in set(granted(everywhere["rules"]))
    assert (everywhere["namespace"], home["namespace"]) == ("", "sg-system")
    assert home["rules"] == rendered.one("Role", "sandgate-operator-lease")["rules"]


def test_in_namespace_scope_it_asks_in_each_namespace_that_is_watched_and_at_home() -> None:
    rendered = render(NAMESPACED)
    assert [(one["namespace"], one["local"]) for one in wanted(rendered)["reviews"]] == [
        ("a", True),
        ("b", True),
        ("sg-system", True),
    ]
    roles = [one for one in hooks(rendered) if one["kind"] == "Role"]
    assert {one["metadata"]["namespace"] for one in roles} == {"a", "b", "sg-system"}


class Replica(BaseHTTPRequestHandler):
    """/readyz of an operator replica."""

    phase: ClassVar[str] = "leading"
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        body = json.dumps({"phase": self.phase}).encode()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@contextmanager
def replica(phase: str = "leading", status: int = 200) -> Iterator[str]:
    kind = type("One", (Replica,), {"phase": phase, "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/readyz"
        finally:
            server.shutdown()


def test_a_leader_that_is_ready_is_good_and_a_missing_replica_is_named() -> None:
    with replica() as url:
        assert program().not_ready(url, 1, 1) == ""
        assert program().not_ready(url, 2, 1) == "1 of 2 replicas are ready"


def test_replicas_of_which_none_leads_are_named() -> None:
    with replica("standby") as url:
        assert program().not_ready(url, 1, 1) == "0 replicas lead, not 1"


def test_a_replica_that_is_not_ready_is_no_good() -> None:
    with replica("leading", 503) as url, pytest.raises(OSError, match="503"):
        program().not_ready(url, 1, 1)


@contextmanager
def as_its_pod(release: Release, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program, with the token, address and rights of its pod at this API server; and with what it asks for."""
    api, rest = release.api, release.api.rest()
    given = {"shards": ["a"], "crds": {"install": False}}
    rendered = render(given, release=release.name, namespace=release.namespace)
    made = [one for one in hooks(rendered) if one["kind"] != "Pod"]
    accounts = f"/api/v1/namespaces/{release.namespace}/serviceaccounts"
    for one in made:
        rest.create(PLACES.get(one["kind"], accounts), one)
    where = urlsplit(api.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(where.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(where.port))
    (home / "token").write_text(api.token(release.namespace, "sandgate-test"))
    (home / "ca.crt").write_bytes(api.ca.read_bytes())
    installed = program()
    installed.ACCOUNT = str(home)
    try:
        yield installed, wanted(rendered)
    finally:
        for one in made:
            where_it_is = "-n", release.namespace, one["kind"], one["metadata"]["name"]
            api.kubectl("delete", "--ignore-not-found", *where_it_is)


def test_it_finds_kinds_and_rights_at_a_real_api_server_and_names_what_is_taken_away(
    apiserver: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        released(apiserver, "chart-tested", {"shards": ["a"]}) as release,
        as_its_pod(release, tmp_path, monkeypatch) as (installed, asked),
        replica() as url,
    ):
        in_force(release, release.namespace)

        def said() -> str:
            return str(installed.complaint(url, 1, 1, asked))

        until_now(lambda: said() == "", what="all is well")
        apiserver.kubectl("-n", release.namespace, "delete", "rolebinding", "sandgate-operator-lease")
        until_now(lambda: said() != "", what="the right is gone")
        assert said().startswith("system:serviceaccount:chart-tested:sandgate-operator may not: get leases")
        assert "sandgate-operator-a in chart-tested" in said()
        apiserver.kubectl("delete", "clusterrole", "sandgate-test")
        until_now(lambda: "403" in said(), what="it may not ask any more, and says so")
