"""Init container of a sandbox pod: waits for the gateway, probes the network policy, fetches the task.

It is one file, standard library only, for Python 3.8 and later: the fetcher's image has nothing else. When it fails its
termination message is `{"reason", "detail"}`. Its settings are environment variables:

SANDGATE_GATEWAY      origin of the session's gateway: it must answer before anything else
SANDGATE_PROBE        comma separated; addresses that must *not* answer: `kubernetes` (the API server) and `host:port`
SANDGATE_TASK_URL     where the task document is ...
SANDGATE_KEY          ... with this key ...
SANDGATE_TASK_FILE    ... and where it goes
SANDGATE_RESULT       text of the result document, written to ...
SANDGATE_RESULT_FILE  ... this file

Why the policy is probed: network policies come into force some time after a pod has its address (1.7 s were seen), and
never on a cluster whose network plugin ignores them. An address that does not answer proves nothing while the whole
network is still down. So the gateway must answer before *and* after the addresses did not.
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
"""Seconds that the network policy may take to come into force."""
GATEWAY_S = 120.0
"""Seconds that the gateway may be away: its pod may move to another node with its volume."""
ATTEMPTS = 5
"""Attempts in a row that must fail ..."""
ATTEMPT_S = 0.3
"""... seconds of each. A connection inside a cluster takes about a millisecond."""
HTTP_S = 5.0
"""Time-out between bytes of an answer, in seconds."""
PAUSE_S = 0.25
"""Seconds between tries at the gateway."""
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
"""HTTP statuses after which another try may succeed."""


class Failed(Exception):
    """The init container cannot go on. `reason` is one of EXIT_CODES."""

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
    """Raises TryAgain unless the gateway answers."""
    status = get(f"{origin}/healthz", {}, len)
    if status != 200:
        raise TryAgain(f"{urlsplit(origin).netloc} answers /healthz with status {status}")


def patiently(ask: Callable[[], None], reason: str) -> float:
    """Calls `ask` until it does not raise TryAgain. Returns the seconds that took. Raises Failed(reason) after
    GATEWAY_S."""
    began, last = time.monotonic(), ""
    while True:
        try:
            ask()
            return time.monotonic() - began
        except TryAgain as error:
            if time.monotonic() - began > GATEWAY_S:
                raise Failed(reason, f"{error}, {GATEWAY_S:.0f} s after the first try") from None
            if str(error) != last:
                last = str(error)
                say(f"waiting: {last}")
        time.sleep(PAUSE_S)


# -- the network policy -----------------------------------------------------------------------------------------------


def forbidden_addresses(text: str, env: Mapping[str, str]) -> list[tuple[str, int]]:
    """(host, port) of every address that must not answer. Raises Failed."""
    addresses = []
    for address in filter(None, text.split(",")):
        if address == "kubernetes":  # the kubelet tells every container where the API server is
            address = f"{env.get('KUBERNETES_SERVICE_HOST', '')}:{env.get('KUBERNETES_SERVICE_PORT', '443')}"
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit():
            raise Failed(SETTINGS, f"SANDGATE_PROBE: {address!r} is not host:port")
        addresses.append((host, int(port)))
    return addresses


def answering(where: list[tuple[str, int]], seconds: float) -> list[str]:
    """The addresses that accept a TCP connection within `seconds`; all are tried at once. Takes `seconds` after
    the names are resolved, or less if one accepts."""
    with selectors.DefaultSelector() as waiting:
        try:
            for host, port in where:
                for family, kind, proto, _, address in resolve(host, port):
                    try:
                        sock = socket.socket(family, kind, proto)
                    except OSError as error:
                        if error.errno == errno.EAFNOSUPPORT:  # a kernel without IPv6 reaches none
                            continue
                        raise
                    waiting.register(sock, selectors.EVENT_WRITE, f"{host}:{port}")
                    sock.setblocking(False)
                    if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
                        waiting.unregister(sock)
                        sock.close()
            until = (
                time.monotonic() + seconds
            )  # from here: a name may take longer to resolve than an attempt lasts
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
    """The addresses of a host; none for a name that does not resolve, which cannot be reached either."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []


def probe(where: list[tuple[str, int]], gateway: Callable[[], None]) -> str:
    """Waits until none of `where` answers in ATTEMPTS attempts in a row, between two answers of the gateway. Returns a
    sentence about it. Raises Failed."""
    began, closed, leaks = time.monotonic(), 0, 0
    patiently(gateway, GATEWAY)
    while closed < ATTEMPTS:
        opened = answering(where, ATTEMPT_S)
        if not opened:
            closed += 1
        else:
            closed, leaks = 0, leaks + 1
            if time.monotonic() - began > PROBE_S:
                raise Failed(
                    POLICY,
                    f"{', '.join(opened)} can be reached from this pod {PROBE_S:.0f} s after its start:"
                    " no NetworkPolicy is enforced here, or agent.egress opens too much (an ipBlock has `except`)",
                )
            time.sleep(ATTEMPT_S / 3)
        if closed == ATTEMPTS and patiently(gateway, GATEWAY) > ATTEMPT_S:
            closed = 0  # the network was away: it proves nothing that no address answered
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
    """Writes the task document to `path`. Returns its bytes. Raises TryAgain, Failed."""
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


# -- the whole --------------------------------------------------------------------------------------------------------


def run(env: Mapping[str, str]) -> None:
    """Does everything that `env` asks for. Raises Failed."""
    origin = env.get("SANDGATE_GATEWAY", "").rstrip("/")
    if urlsplit(origin).scheme not in ("http", "https"):
        raise Failed(SETTINGS, f"SANDGATE_GATEWAY: {origin!r} is not an http:// or https:// origin")
    forbidden = forbidden_addresses(env.get("SANDGATE_PROBE", ""), env)
    seconds = patiently(lambda: ask_gateway(origin), GATEWAY)
    say(f"the gateway {urlsplit(origin).netloc} answers ({seconds:.1f} s)")
    if forbidden:
        say(f"the wall is up: {probe(forbidden, lambda: ask_gateway(origin))}")
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
    """The variable `name`. Raises Failed if it is missing or empty."""
    if not env.get(name):
        raise Failed(SETTINGS, f"{name}: is missing")
    return env[name]


def main(env: Mapping[str, str]) -> int:
    """Runs, and returns the exit code: 0, or one of EXIT_CODES."""
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
