"""`sandgate logs`: of a run's folder, and of pods through an API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from sandgate.trainer.cli.command import app
from sandgate.trainer.runs.logs import Program, of_run

SESSION = "shop-q1-0123456789ab-0-0"


def ask(*words: object) -> Any:
    return CliRunner().invoke(app, ["logs", *(str(word) for word in words)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    logs = tmp_path / "out" / "logs"
    logs.mkdir(parents=True)
    (logs / f"{SESSION}.log").write_bytes(b"thinking \xf0\x9f\xa5\x9d\n\xff\n")
    (logs / f"{SESSION}.verifier.log").write_text("judging\n")
    (logs / "shop-q2-0123456789ab-0-0.log").write_text("other\n")
    (logs / "gateway-0.log").write_text("listening\n")
    return tmp_path / "out"


SAID: dict[str, tuple[list[str], int, str]] = {
    "by its id": ([SESSION], 0, "thinking 🥝\n\ufffd\n"),
    "by the beginning of it": (["shop-q1"], 0, "thinking 🥝\n\ufffd\n"),
    "the verifier's": (["shop-q1", "--verifier"], 0, "judging\n"),
    "of several": (["shop-q"], 2, f"error: several sessions begin with 'shop-q': {SESSION}, shop-q2-"),
    "of none": (["shop-q3"], 2, "error: "),
    "of a session without a verifier": (["shop-q2", "--verifier"], 2, "error: "),
    "of nothing": ([""], 2, "error: is empty"),
    "a document without an end": ([SESSION, "--json", "-f"], 2, "error: a document has an end"),
}


@pytest.mark.parametrize(("words", "code", "begins"), SAID.values(), ids=SAID)
def test_the_log_of_a_run(out: Path, words: list[str], code: int, begins: str) -> None:
    said = ask(*words, "--out", out)
    assert said.exit_code == code
    assert said.output.startswith(begins)


def test_as_json(out: Path) -> None:
    said = json.loads(ask(SESSION, "--out", out, "--json", "--verifier").stdout)
    assert said == {"program": "verifier", "log": "judging\n"}


def test_no_run_there(tmp_path: Path) -> None:
    said = ask(SESSION, "--out", tmp_path)
    assert (said.exit_code, said.output) == (2, f"error: {tmp_path}/logs: no such directory\n")


def test_a_log_that_grows_is_followed(out: Path) -> None:
    with (out / "logs" / f"{SESSION}.verifier.log").open("a") as file:

        def more(_: float) -> None:
            file.write("and on\n")
            file.flush()

        found = of_run(out, SESSION, Program.VERIFIER, follow=True, wait=more)
        assert [next(found), next(found)] == [b"judging\n", b"and on\n"]


# -- a cluster --------------------------------------------------------------------------------------------------------

NAMES = {SESSION: "Running", "shop-gone-0123456789ab-0-0": "Gone", "shop-new-0123456789ab-0-0": "New"}
FINISHED = {"type": "Finished", "status": "True", "reason": "AgentExit", "message": "KeyError: 'kiwi'"}


class ApiServer(BaseHTTPRequestHandler):
    """As much of one as is asked."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        head, _, rest = url.path.partition("/namespaces/lab/")
        name = rest.partition("/")[2]
        if rest == f"pods/{SESSION}":
            containers = [{"name": "agent"}, {"name": "proxy"}]
            self._json({"kind": "Pod", "metadata": {"name": SESSION}, "spec": {"containers": containers}})
        elif rest == f"pods/{SESSION}/log":
            assert parse_qs(url.query)["container"] == ["agent"]
            self._chunks(b"one\n", b"two\n", f"{parse_qs(url.query).get('follow')}\n".encode())
        elif "agentsessions" in rest and name in NAMES:
            ended = [FINISHED] if NAMES[name] == "Gone" else []
            self._json({"metadata": {"name": name}, "status": {"conditions": ended}})
        elif rest == "agentsessions":
            self._json({"metadata": {}, "items": [{"metadata": {"name": one}} for one in NAMES]})
        else:
            assert head
            self._json({"kind": "Status", "message": f"{rest} not found"}, 404)

    def _json(self, body: object, status: int = 200) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _chunks(self, *chunks: bytes) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in (*chunks, b""):
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")

    def log_message(self, *_: object) -> None:
        """Not to stderr."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    yield
    server.shutdown()
    serving.join()
    server.server_close()


IN_LAB: dict[str, tuple[list[str], int, str]] = {
    "of a pod's own program": ([SESSION], 0, "one\ntwo\n"),
    "by the beginning": (["shop-q1"], 0, "one\ntwo\n"),
    "followed": ([SESSION, "-f"], 0, "one\ntwo\n['true']\n"),
    "of several": (["shop-"], 2, "error: several sessions begin with 'shop-'"),
    "whose pod was collected": (["shop-gone"], 2, "error: the pod of shop-gone-0123456789ab-0-0 is gone"),
    "that has not begun": (["shop-new"], 2, "error: shop-new-0123456789ab-0-0 has no agent yet"),
    "whose verifier has not begun": ([SESSION, "--verifier"], 2, f"error: {SESSION} has no verifier yet"),
    "that is not there": (["shop-x"], 2, "error: agentsessions lab/shop-x: not found"),
}


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("words", "code", "begins"), IN_LAB.values(), ids=IN_LAB)
def test_the_log_of_a_pod(words: list[str], code: int, begins: str) -> None:
    said = ask(*words)
    assert said.exit_code == code, said.output
    assert said.output.startswith(begins)


@pytest.mark.usefixtures("lab")
def test_of_a_pod_that_is_gone_it_is_said_how_it_ended() -> None:
    assert "It ended: AgentExit KeyError: 'kiwi'" in ask("shop-gone").output
