"""The fetcher on real sockets: walls, gateways, tasks; and that a key is never said."""

from __future__ import annotations

import ast
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandgate.sandbox import entry

KEY = "sk-sg-secret"
TASK = "/v1/sessions/s/task"
Answer = tuple[int, bytes, int]
"""Status, body, and by how many bytes the body is shorter than it says."""


class Gateway(ThreadingHTTPServer):
    """Answers what it is told to, per path, the last answer for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[Answer]] = defaultdict(lambda: [(404, b"", 0)])
        self.answers["/healthz"] = [(200, b"ok", 0)]
        self.asked: list[tuple[str, str]] = []

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        told = self.server.answers[self.path]
        status, body, missing = told.pop(0) if len(told) > 1 else told[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with serving() as one:
        yield one


@contextmanager
def serving() -> Iterator[Gateway]:
    with Gateway() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield one
        finally:
            one.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in less time, but for what ends a wait: tests of that have a short one of their own."""
    for name, value in (("ATTEMPT_S", 0.03), ("PAUSE_S", 0.01)):
        monkeypatch.setattr(entry, name, value)


@pytest.fixture(autouse=True)
def no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below .invalid never resolve, here without asking a resolver that may take its time."""
    resolve = socket.getaddrinfo

    def known(host: str, *args: Any, **more: Any) -> Any:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)


@dataclass
class Ran:
    code: int
    log: str
    message: dict[str, str] = field(default_factory=dict)


class Run(Protocol):
    def __call__(self, **env: str) -> Ran: ...


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], gateway: Gateway) -> Run:
    def go(**env: str) -> Ran:
        said = tmp_path / "termination-log"
        said.write_text("")
        code = entry.main(
            {
                "SANDGATE_GATEWAY": gateway.origin,
                "SANDGATE_TERMINATION_LOG": str(said),
                **{f"SANDGATE_{name}": value for name, value in env.items()},
            }
        )
        text = said.read_text()
        return Ran(code, capsys.readouterr().err, json.loads(text) if text else {})

    return go


# -- the wall -------------------------------------------------------------------------------------------------------


@contextmanager
def door(*, shut_after: int | None = None) -> Iterator[str]:
    """Something that accepts connections, for ever or so many times."""
    listener = socket.create_server(("127.0.0.1", 0))
    where = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.settimeout(0.05)
    stop = threading.Event()

    def accept() -> None:
        left = shut_after
        while not stop.is_set() and left != 0:
            try:
                listener.accept()[0].close()
            except TimeoutError:
                continue
            left = None if left is None else left - 1
        listener.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield where
    finally:
        stop.set()
        thread.join()


@contextmanager
def silence() -> Iterator[str]:
    """A port whose queue is full: the kernel drops what knocks, as a firewall does."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            knock = stack.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(listener.getsockname())
        host, port = listener.getsockname()
        yield f"{host}:{port}"


def refused() -> str:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_wall_that_drops_holds(run: Run) -> None:
    with silence() as where:
        ran = run(PROBE=where)
    assert (ran.code, ran.message) == (0, {})
    assert "1 forbidden addresses do not answer; open at first: 0 times" in ran.log


def test_a_wall_that_refuses_holds(run: Run) -> None:
    assert run(PROBE=refused()).code == 0


def test_a_name_that_does_not_resolve_cannot_be_reached(run: Run) -> None:
    assert run(PROBE="nowhere.invalid:443").code == 0


def test_no_wall_fails_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "PROBE_S", 0.2)
    with door() as where:
        ran = run(PROBE=where)
    assert ran.code == entry.EXIT_CODES["NetworkPolicyNotEnforced"] == 3
    assert ran.message["reason"] == "NetworkPolicyNotEnforced"
    assert ran.message["detail"].startswith(f"{where} can be reached from this pod")


def test_one_open_door_among_closed_ones_is_no_wall(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "PROBE_S", 0.2)
    with door() as where, silence() as dropped:
        ran = run(PROBE=f"{dropped},{refused()},{where}")
    assert (ran.code, ran.message["detail"].split()[0]) == (3, where)


def test_a_wall_that_comes_up_late_holds(run: Run) -> None:
    with door(shut_after=2) as where:
        ran = run(PROBE=where)
    assert ran.code == 0
    assert "open at first: 0" not in ran.log


def test_it_is_not_held_before_so_many_attempts_in_a_row(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [], [], [], ["x"], [], [], [], [], []]
    seen = iter(answers)
    monkeypatch.setattr(entry, "ATTEMPT_S", 1.0)  # a gateway that is slower was away
    monkeypatch.setattr(entry, "answering", lambda where, seconds: next(seen))
    assert run(PROBE="127.0.0.1:1").code == 0
    assert next(seen, "used up") == "used up"


def test_a_network_that_is_down_proves_nothing(gateway: Gateway, run: Run) -> None:
    """The gateway answers, goes away while the doors are tried, and is back later: they are tried again."""
    gateway.answers["/healthz"] = [(200, b"", 0)] * 2 + [(503, b"", 0)] * 5 + [(200, b"", 0)]
    knocks = []

    def closed(where: list[tuple[str, int]], seconds: float) -> list[str]:
        knocks.append(where)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "answering", closed)
        patch.setattr(entry, "ATTEMPT_S", 1.0)
        patch.setattr(entry, "PAUSE_S", 0.25)  # five of them are longer
        assert run(PROBE="127.0.0.1:1").code == 0
    assert len(knocks) == 2 * entry.ATTEMPTS


def test_the_api_server_is_where_the_kubelet_says() -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = entry.forbidden_addresses("kubernetes,[fd00::1]:53,db:5432", env)
    assert found == [("10.96.0.1", 443), ("fd00::1", 53), ("db", 5432)]


def test_an_address_of_a_family_that_the_kernel_has_not_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a node with ipv6.disable=1: a metadata service's IPv6 address beside the other stops no sandbox."""
    real = socket.socket

    def without_six(family: int = -1, *more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *more)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(socket, "socket", without_six)
        where = [("fd00:ec2::254", 80), ("127.0.0.1", port)]
        assert entry.answering(where, 5.0) == [f"127.0.0.1:{port}"]
        assert entry.answering(where[:1], 0.05) == []


# -- the gateway ----------------------------------------------------------------------------------------------------


def test_a_gateway_that_answers_late_is_waited_for(gateway: Gateway, run: Run) -> None:
    gateway.answers["/healthz"] = [(503, b"", 0), (503, b"", 0), (200, b"", 0)]
    ran = run()
    assert ran.code == 0
    assert ran.log.count("waiting:") == 1, "the same trouble is said once"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (lambda: "nowhere.invalid:8000", "the name nowhere.invalid does not resolve"),
        (refused, "does not answer"),
    ],
    ids=["by name", "by address"],
)
def test_a_gateway_that_never_answers_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, where: Callable[[], str], why: str
) -> None:
    monkeypatch.setattr(entry, "GATEWAY_S", 0.2)
    ran = run(GATEWAY=f"http://{where()}")
    assert (ran.code, ran.message["reason"]) == (4, "GatewayUnreachable")
    assert why in ran.message["detail"]


# -- task and result ------------------------------------------------------------------------------------------------


def test_a_task_arrives_whole_and_readable_for_anybody(gateway: Gateway, run: Run, tmp_path: Path) -> None:
    body = bytes(range(256)) * 1000
    gateway.answers[TASK] = [(503, b"", 0), (200, body[:70_000], 10), (200, body, 0)]
    path = tmp_path / "task.json"
    assert run(TASK_URL=gateway.origin + TASK, KEY=f"{KEY}\n", TASK_FILE=str(path)).code == 0
    assert path.read_bytes() == body
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert sorted(one.name for one in tmp_path.iterdir()) == ["task.json", "termination-log"]
    assert gateway.asked.count((TASK, f"Bearer {KEY}")) == 3
    assert gateway.asked[0] == ("/healthz", ""), "the key goes to nobody but the task's address"


@pytest.mark.parametrize("status", [401, 404, 410, 302], ids=str)
def test_a_refusal_is_final(gateway: Gateway, run: Run, tmp_path: Path, status: int) -> None:
    gateway.answers[TASK] = [(status, b"", 0)]
    ran = run(TASK_URL=gateway.origin + TASK, KEY=KEY, TASK_FILE=str(tmp_path / "task.json"))
    assert (ran.code, ran.message["reason"]) == (5, "TaskNotDelivered")
    assert f"status {status}" in ran.message["detail"]
    assert not (tmp_path / "task.json").exists()


def test_a_task_that_would_fill_the_volume_is_refused(
    gateway: Gateway, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "TASK_BYTES_MAX", 1000)
    gateway.answers[TASK] = [(200, b"x" * 1001, 0)]
    ran = run(TASK_URL=gateway.origin + TASK, KEY=KEY, TASK_FILE=str(tmp_path / "task.json"))
    assert (ran.code, ran.message["detail"]) == (5, "the task has more than 1000 bytes")
    assert [one.name for one in tmp_path.iterdir()] == ["termination-log"]


def test_a_result_is_written_as_it_is(run: Run, tmp_path: Path) -> None:
    text = '{"exit_code": 0, "message": "é $(A) $$"}'
    assert run(RESULT=text, RESULT_FILE=str(tmp_path / "result.json")).code == 0
    assert (tmp_path / "result.json").read_text("utf-8") == text


def test_a_volume_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    ran = run(RESULT="{}", RESULT_FILE=str(tmp_path / "none" / "result.json"))
    assert (ran.code, ran.message["reason"]) == (5, "TaskNotDelivered")
    assert "No such file or directory" in ran.message["detail"]


SETTINGS = {
    "a gateway that is no origin": ({"GATEWAY": "shop:8000"}, "SANDGATE_GATEWAY"),
    "no gateway": ({"GATEWAY": ""}, "SANDGATE_GATEWAY"),
    "a door without a port": ({"PROBE": "10.0.0.1"}, "SANDGATE_PROBE"),
    "an API server that nobody named": ({"PROBE": "kubernetes"}, "SANDGATE_PROBE"),
    "a task without a file": ({"TASK_URL": "http://a/b", "KEY": KEY}, "SANDGATE_TASK_FILE"),
    "a task without a key": ({"TASK_URL": "http://a/b", "TASK_FILE": "/t"}, "SANDGATE_KEY"),
    "a key that no header can hold": (
        {"TASK_URL": "http://a/b", "TASK_FILE": "/t", "KEY": f"{KEY}\nX: y"},
        "SANDGATE_KEY",
    ),
    "a result without a file": ({"RESULT": "{}"}, "SANDGATE_RESULT_FILE"),
}


@pytest.mark.parametrize(("env", "named"), SETTINGS.values(), ids=SETTINGS)
def test_wrong_settings_are_named(run: Run, env: dict[str, str], named: str) -> None:
    ran = run(**env)
    assert (ran.code, ran.message["reason"]) == (2, "BadSettings")
    assert ran.message["detail"].startswith(named)


# -- secrets --------------------------------------------------------------------------------------------------------

KEYS = (
    st.text(st.characters(codec="utf-8"), min_size=5, max_size=37)
    .filter(lambda key: key.strip() == key)
    .map("sk-{}".format)
)
"""No words that the log has anyway."""
TROUBLES = st.lists(
    st.sampled_from([(200, b"{}", 0), (200, b"{}", 5), (302, b"", 0), (401, b"", 0), (503, b"", 0)]),
    min_size=1,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=KEYS, answers=TROUBLES, lost=st.booleans())
def test_a_key_is_never_said(
    run: Run, gateway: Gateway, tmp_path: Path, key: str, answers: list[Answer], lost: bool
) -> None:
    gateway.answers[TASK] = list(answers)
    path = tmp_path / ("none/task.json" if lost else "task.json")
    ran = run(TASK_URL=gateway.origin + TASK, KEY=key, TASK_FILE=str(path))
    for said in (ran.log, json.dumps(ran.message), str(ran.message)):
        assert key not in said
        assert repr(key)[1:-1] not in said


# -- as the image runs it -------------------------------------------------------------------------------------------

PROGRAM = Path(entry.__file__)


def test_it_stands_alone_on_python_3_8() -> None:
    tree = ast.parse(PROGRAM.read_text("utf-8"), feature_version=(3, 8))
    tops = {
        (str(node.module) if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert tops - {"__future__"} <= sys.stdlib_module_names


def test_as_process_1_it_heeds_sigterm(tmp_path: Path) -> None:
    env = {"SANDGATE_GATEWAY": f"http://{refused()}", "SANDGATE_TERMINATION_LOG": str(tmp_path / "t")}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(PROGRAM)], env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process, process.stderr:
        assert "waiting:" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143


def test_a_name_that_is_slow_to_resolve_hides_no_address_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time went by before the first socket was looked at, and all of them seemed closed."""
    late, found = threading.Event(), entry.resolve

    def slowly(host: str, port: int) -> list[tuple[Any, ...]]:
        late.wait(0.2 if host == "slow.invalid" else 0.0)
        return [] if host == "slow.invalid" else found(host, port)

    monkeypatch.setattr(entry, "resolve", slowly)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert entry.answering([("127.0.0.1", port), ("slow.invalid", 80)], 0.1) == [f"127.0.0.1:{port}"]
