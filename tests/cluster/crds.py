"""The definitions of crds/ on a test's API server, and what of them the tests ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from sandgate.contract.crd import crds
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.support.waiting import until_now
from tests.tidy.source import ROOT

Json = dict[str, Any]


def install(api: Api) -> None:
    """As docs say: a server-side apply of crds/. They stay; tests of one server share them."""
    api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    for one in crds():
        name, short = f"crd/{one['metadata']['name']}", one["spec"]["names"]["shortNames"][0]
        until_now(partial(established, api, name), what=f"{name} is established", within_s=60)
        until_now(partial(explained, api, short), what=f"{short} is discovered", within_s=30)


def established(api: Api, name: str) -> bool:
    """`kubectl wait` ends at once with an error where the server has not written any condition yet."""
    said = api.kubectl("get", name, "-o", "json", check=False)
    conditions = json.loads(said).get("status", {}).get("conditions") or [] if said else []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def explained(api: Api, short: str) -> bool:
    """Discovery and its OpenAPI follow a moment after Established, each on its own."""
    return "FIELDS:" in api.kubectl("explain", f"{short}.spec", check=False)


def path(namespace: str, plural: str = "rolloutjobs", name: str = "", *, query: str = "") -> str:
    """Of a collection or an object. Validation is strict, as kubectl asks for it."""
    tail = f"/{name}" if name else ""
    more = f"&{query}" if query else ""
    return f"/apis/sandgate.dev/v1alpha1/namespaces/{namespace}/{plural}{tail}?fieldValidation=Strict{more}"


def refusal(api: Api, namespace: str, body: Json, plural: str = "rolloutjobs") -> Refused | None:
    """Would it be refused? Nothing is stored."""
    try:
        api.rest().create(path(namespace, plural, query="dryRun=All"), body)
    except Refused as refused:
        return refused
    return None


def schemas(at: str, schema: Json) -> Iterator[tuple[str, Json]]:
    """Every schema from here downwards, by path; list items end in []."""
    yield at, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(f"{at}.{name}" if at else name, inner)
    if "items" in schema:
        yield from schemas(f"{at}[]", schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schemas(f"{at}{{}}", schema["additionalProperties"])


def roots() -> dict[str, Json]:
    """Kind -> schema of the whole object."""
    return {
        one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for one in crds()
    }
