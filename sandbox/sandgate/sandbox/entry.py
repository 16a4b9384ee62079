"""The init container of a sandbox: is the wall up, does the gateway answer, here is your task.

One file of its own, standard library only, Python 3.8 and later: it is all that the fetcher's image holds. It is told
by variables, and leaves `{"reason", "detail"}` as its termination message when it fails:

SANDGATE_GATEWAY      origin of the session's gateway: it must answer before anything else
SANDGATE_PROBE        comma separated; what must *not* answer: `kubernetes` (the API server) and `host:port`
SANDGATE_TASK_URL     where the task document is ...
SANDGATE_KEY          ... with this key ...
SANDGATE_TASK_FILE    ... and where it goes
SANDGATE_RESULT       text of the result document, written to ...
SANDGATE_RESULT_FILE  ... this file

Why the wall is probed: network policies come into force some time after a pod has its address (1.7 s were seen), and
on a cluster whose network plugin ignores them, never. A closed door proves nothing while the whole network is still
down, so the gateway must answer before *and* after the doors were seen closed.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

PROBE_S = 30.0
"""How long a wall may take to come up."""
GATEWAY_S = 120.0
"""How long the gateway may be away: a pod that moves to another node with its volume."""
ATTEMPTS = 5
"""In a row that must fail ..."""
ATTEMPT_S = 0.3
"""... of this length each. A connection inside a cluster takes about a millisecond."""
HTTP_S = 5.0
"""Of one answer, between bytes."""
PAUSE_S = 0.25
"""Between tries at the gateway."""
TASK_BYTES_MAX = 32 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
SAID_MAX = 1024
"""Characters of the termination message's text; the kubelet keeps 4096 bytes."""

SETTINGS, POLICY, GATEWAY, TASK = (
    "BadSettings",
    "NetworkPolicyNotEnforced",
    "GatewayUnreachable",
    "TaskNotDelivered",
)
EXIT_CODES = {SETTINGS: 2, POLICY: 3, GATEWAY: 4, TASK: 5}
NOT_NOW = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that another try may mend."""


class Failed(Exception):
    """It cannot go on. `reason` is one of EXIT_CODES."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class TryAgain(Exception):
    """Not now."""


def say(text: str) -> None:
    """A line of the log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stderr.flush()


# -- the gateway ------------------------------------------------------------------------------------------------------


def get(url: str, headers: Mapping[str, str], sink: Callable[[bytes], object]) -> int:
    """Status of a GET; the body of a 200 goes to `sink`. No proxies, no redirects. Raises Retry."""
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=HTTP_S)
    try:
        connection.request("GET", parts.path or "/", headers=dict(headers))
        answer = connection.getresponse()
        missing = answer.length  # bytes still to come; None if the gateway does not say
        while answer.status == 200:
            chunk = answer.read(CHUNK_BYTES)
            if not chunk:
                break
            sink(chunk)
            missing = None if missing is None else missing - len(chunk)
        if answer.status == 200 and missing:
            raise TryAgain(f"{parts.netloc} broke off {missing} bytes before the end")
        return answer.status
    except socket.gaierror as error:
        raise TryAgain(f"the name {parts.hostname} does not resolve ({error.strerror or error})") from None
    except (OSError, http.client.HTTPException) as error:
        raise TryAgain(f"{parts.netloc} does not answer ({str(error) or type(error).__name__})") from None
    finally:
        connection.close()


def ask_gateway(origin: str) -> None:
    """It answers. Raises Retry."""
    status = get(f"{origin}/healthz", {}, len)
    if status != 200:
        raise TryAgain(f"{urlsplit(origin).netloc} answers /healthz with status {status}")


def patiently(ask: Callable[[], None], reason: str) -> float:
    """Ask until it does not raise Retry; seconds that took. Raises Failed(reason) after GATEWAY_S."""
    began, said = time.monotonic(), ""
    while True:
        try:
            ask()
            return time.monotonic() - began
        except TryAgain as error:
            if time.monotonic() - began > GATEWAY_S:
                raise Failed(reason, f"{error}, {GATEWAY_S:.0f} s after the first try") from None
            if str(error) != said:
                said = str(error)
                say(f"waiting: {said}")
        time.sleep(PAUSE_S)


# -- the wall ---------------------------------------------------------------------------------------------------------


def doors(text: str, env: Mapping[str, str]) -> list[tuple[str, int]]:
    """(host, port) of everything that must not answer. Raises Failed."""
    found = []
    for one in filter(None, text.split(",")):
        if one == "kubernetes":  # the kubelet tells every container where the API server is
            one = f"{env.get('KUBERNETES_SERVICE_HOST', '')}:{env.get('KUBERNETES_SERVICE_PORT', '443')}"
        host, _, port = one.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit():
            raise Failed(SETTINGS, f"SANDGATE_PROBE: {one!r} is not host:port")
        found.append((host, int(port)))
    return found


def answering(where: list[tuple[str, int]], seconds: float) -> list[str]:
    """Those that accept a TCP connection within `seconds`; all are tried at once. Takes `seconds`, or less if one
    does."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as waiting:
        try:
            for host, port in where:
                for family, kind, proto, _, address in resolve(host, port):
                    sock = socket.socket(family, kind, proto)
                    waiting.register(sock, selectors.EVENT_WRITE, f"{host}:{port}")
                    sock.setblocking(False)
                    if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
                        waiting.unregister(sock)
                        sock.close()
            while (left := until - time.monotonic()) > 0:
                if not waiting.get_map():  # all refused: as long as any other attempt, they are counted
                    time.sleep(left)
                    break
                opened = set()
                for key, _ in waiting.select(left):
                    sock = key.fileobj  # type: ignore[assignment]
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        opened.add(key.data)
                    waiting.unregister(sock)
                    sock.close()
                if opened:
                    return sorted(opened)
            return []
        finally:
            for key in list(waiting.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]


def resolve(host: str, port: int) -> list[tuple]:  # type: ignore[type-arg]
    """Its addresses; none for a name that does not resolve, which cannot be reached either."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []


def probe(where: list[tuple[str, int]], gateway: Callable[[], None]) -> str:
    """Wait until none of `where` answers ATTEMPTS times in a row, between two answers of the gateway. What was seen,
    in words. Raises Failed."""
    began, held, leaks = time.monotonic(), 0, 0
    patiently(gateway, GATEWAY)
    while held < ATTEMPTS:
        opened = answering(where, ATTEMPT_S)
        if not opened:
            held += 1
        else:
            held, leaks = 0, leaks + 1
            if time.monotonic() - began > PROBE_S:
                raise Failed(
                    POLICY,
                    f"{', '.join(opened)} can be reached from this pod {PROBE_S:.0f} s after its start:"
                    " no NetworkPolicy is enforced here",
                )
            time.sleep(ATTEMPT_S / 3)
        if held == ATTEMPTS and patiently(gateway, GATEWAY) > ATTEMPT_S:
            held = 0  # the network was away: it proves nothing that the doors were closed
    seconds = time.monotonic() - began
    return f"{len(where)} forbidden addresses do not answer; open at first: {leaks} times; {seconds:.1f} s"


# -- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def whole(path: str) -> Iterator[Callable[[bytes], object]]:
    """A file that appears complete or not at all, readable by any user. Yields what writes to it."""
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            yield file.write
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def fetch(url: str, key: str, path: str) -> int:
    """The task document into `path`; its bytes. Raises Retry, Failed."""
    size = 0

    def counted(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)
        if size > TASK_BYTES_MAX:
            raise Failed(TASK, f"the task has more than {TASK_BYTES_MAX} bytes")
        write(chunk)

    with whole(path) as write:
        status = get(url, {"Authorization": f"Bearer {key}"}, counted)
        if status in NOT_NOW:
            raise TryAgain(f"the gateway answers {urlsplit(url).path} with status {status}")
        if status != 200:
            raise Failed(TASK, f"the gateway answers {urlsplit(url).path} with status {status}")
    return size


# -- all of it --------------------------------------------------------------------------------------------------------


def run(env: Mapping[str, str]) -> None:
    """Everything that `env` asks for. Raises Failed."""
    origin = env.get("SANDGATE_GATEWAY", "").rstrip("/")
    if urlsplit(origin).scheme not in ("http", "https"):
        raise Failed(SETTINGS, f"SANDGATE_GATEWAY: {origin!r} is not an http:// or https:// origin")
    walls = doors(env.get("SANDGATE_PROBE", ""), env)
    seconds = patiently(lambda: ask_gateway(origin), GATEWAY)
    say(f"the gateway {urlsplit(origin).netloc} answers ({seconds:.1f} s)")
    if walls:
        say(f"the wall is up: {probe(walls, lambda: ask_gateway(origin))}")
    if url := env.get("SANDGATE_TASK_URL", ""):
        key, path = env.get("SANDGATE_KEY", "").strip(), wanted(env, "SANDGATE_TASK_FILE")
        if not key or not key.isascii() or not key.isprintable():  # http.client would quote it in its error
            raise Failed(SETTINGS, "SANDGATE_KEY: is no key")
        seen: list[int] = []
        patiently(lambda: seen.append(fetch(url, key, path)), TASK)
        say(f"task: {seen[-1]} bytes in {path}")
    if "SANDGATE_RESULT" in env:
        path = wanted(env, "SANDGATE_RESULT_FILE")
        with whole(path) as write:
            write(env["SANDGATE_RESULT"].encode("utf-8", "surrogateescape"))
        say(f"result: {path}")


def wanted(env: Mapping[str, str], name: str) -> str:
    """Raises Failed."""
    if not env.get(name):
        raise Failed(SETTINGS, f"{name}: is missing")
    return env[name]


def main(env: Mapping[str, str]) -> int:
    """Exit code: 0, or one of EXIT_CODES."""
    try:
        run(env)
        return 0
    except Failed as error:
        failed = error
    except OSError as error:  # a full or read-only volume
        failed = Failed(TASK, f"{error.filename}: {error.strerror}")
    except ValueError as error:  # a URL that is none; its text may quote what it was given
        failed = Failed(SETTINGS, f"a value cannot be understood ({type(error).__name__})")
    say(f"failed: {failed.reason}: {failed}")
    try:
        with open(env.get("SANDGATE_TERMINATION_LOG", "/dev/termination-log"), "w", encoding="utf-8") as log:
            json.dump({"reason": failed.reason, "detail": str(failed)[:SAID_MAX]}, log)
    except OSError as error:
        say(f"no termination message: {error.strerror}")
    return EXIT_CODES[failed.reason]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 of a container ignores it by default
    sys.exit(main(os.environ))
