"""Sessions of a cluster by the beginning of their names: asked of an API server, page by page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sandgate.contract.errors import BadRequest, InvalidBody, NotFound
from sandgate.trainer.client import cluster
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.runs.sources import Cluster, tree_of

NAMES = [f"shop-q{number}-0-0" for number in range(9)]
SESSIONS = "/apis/sandgate.dev/v1alpha1/namespaces/lab/agentsessions"


class ApiServer(BaseHTTPRequestHandler):
    """Lists AgentSessions as Kubernetes does, and knows none by its name."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path != SESSIONS:
            self._answer(404, {"kind": "Status", "message": "not found"})
            return
        first = int(query.get("continue") or 0)
        after = first + int(query["limit"])
        items = [{"metadata": {"name": name}} for name in NAMES[first:after]]
        self._answer(
            200, {"items": items, "metadata": {"continue": str(after) if after < len(NAMES) else ""}}
        )

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ClusterPlace]:
    """A kubeconfig of an API server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": "lab"}}],
        "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    yield ClusterPlace(kubeconfig=str(tmp_path / "kubeconfig"))
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("page", [2, 3, 500])
def test_pages_are_read_until_enough_is_found(
    place: ClusterPlace, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PAGE", page)
    assert Cluster(place).named("shop-q7", 9) == ["shop-q7-0-0"]
    assert Cluster(place).named("shop", 4) == NAMES[:4]
    assert Cluster(place).named("", 99) == NAMES
    assert Cluster(place).named("other", 9) == []


def test_a_session_of_a_cluster_that_is_not_named_well_enough(place: ClusterPlace) -> None:
    with pytest.raises(InvalidBody, match=r"begin with 'shop': shop-q0-0-0, .*shop-q5-0-0, \.\.\. and more$"):
        tree_of(Cluster(place), "shop")
    with pytest.raises(NotFound, match="other"):
        tree_of(Cluster(place), "other")


NO_KUBECONFIG: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"[]",
    "no text": b"\xff\xfe",
    "a value that is not what it is tagged as": b"a: !!int ''",
    "a tag of another program": b"a: !!python/object:os.system {}",
    "nesting without an end": b"[" * 5000,
    "a section that is a number": b"current-context: lab\ncontexts: 5",
}


@pytest.mark.parametrize("raw", NO_KUBECONFIG.values(), ids=NO_KUBECONFIG)
def test_a_kubeconfig_that_is_none_is_said(tmp_path: Path, raw: bytes) -> None:
    (file := tmp_path / "kubeconfig").write_bytes(raw)
    with pytest.raises(BadRequest, match="no cluster: "):
        tree_of(Cluster(ClusterPlace(kubeconfig=str(file))), "shop-q1")


def test_a_token_that_no_header_carries_is_said(place: ClusterPlace) -> None:
    file = Path(place.kubeconfig)
    file.write_text(file.read_text().replace('"user": {}', '"user": {"token": "a\\nb"}'))
    with pytest.raises(InvalidBody, match="no request can be made") as refused:
        tree_of(Cluster(place), "shop-q1")
    assert "a\\nb" not in str(refused.value)
