"""The API server that tests get is a real one: it validates, admits, lets in and writes down."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.support.waiting import until_now


def pod(**security: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "nowhere/nothing", "securityContext": security}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}


RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_pod_security_is_enforced(apiserver: Api) -> None:
    with apiserver.namespace("pods") as namespace:
        with pytest.raises(Refused, match="violates PodSecurity"):
            apiserver.rest().create(f"/api/v1/namespaces/{namespace}/pods", pod())
        apiserver.rest().create(f"/api/v1/namespaces/{namespace}/pods", pod(**RESTRICTED))


def test_tokens_are_of_their_account_and_without_rights_until_given(apiserver: Api) -> None:
    with apiserver.namespace("tokens") as namespace:
        account = apiserver.rest(token=apiserver.token(namespace, "default"))
        with pytest.raises(Refused, match=f"system:serviceaccount:{namespace}:default") as refused:
            account.get(f"/api/v1/namespaces/{namespace}/pods")
        assert refused.value.status == 403
        in_namespace = ("-n", namespace, "create")
        apiserver.kubectl(*in_namespace, "role", "r", "--verb=list", "--resource=pods")
        apiserver.kubectl(
            *in_namespace, "rolebinding", "r", "--role=r", f"--serviceaccount={namespace}:default"
        )
        path = f"/api/v1/namespaces/{namespace}/pods"
        # The server learns of roles by a watch of its own.
        until_now(lambda: account.answers(path), what="the role is in force")
        assert account.get(path)["items"] == []


def test_every_write_is_in_the_audit_log_when_it_is_answered(apiserver: Api) -> None:
    with apiserver.namespace("audit") as namespace:
        mark = apiserver.audit_mark()
        body = {"metadata": {"name": "told"}}
        apiserver.rest().create(f"/api/v1/namespaces/{namespace}/configmaps", body)
        apiserver.rest().merge(f"/api/v1/namespaces/{namespace}/configmaps/told", {"data": {"a": "b"}})
        told = [e for e in apiserver.audit_since(mark) if e["objectRef"].get("name") == "told"]
        assert [(e["verb"], e["user"]["username"]) for e in told] == [("create", "admin"), ("patch", "admin")]
