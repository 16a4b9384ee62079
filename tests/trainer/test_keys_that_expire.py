"""A trainer's key expires, and a trainer that can read the next one goes on without a word."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, InvalidBody, Unauthorized, Unavailable
from sandgate.contract.keys import Scope
from sandgate.gateway.client import Retries
from sandgate.trainer import cluster_fleet, fleet
from sandgate.trainer.client import fleet as fleet_module
from sandgate.trainer.client.cluster import ClusterPlace, JobGateways, trainer_key
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from tests.support.gateway import Running, admin_key, gateway

START = 1_000_000.0
JOB = "shop-job"


@dataclass
class Clock:
    """Of a gateway."""

    now: float = START

    def __call__(self) -> float:
        return self.now


def key_until(at: float) -> str:
    return admin_key(Scope.TRAINER, job=JOB, expires_at=at)


@dataclass
class Source:
    """Gives keys, or raises, by a script; the last is given again."""

    script: list[str | Exception]
    asked: int = 0

    async def __call__(self) -> str:
        step = self.script[min(self.asked, len(self.script) - 1)]
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(step, Exception):
            raise step
        return step


OLD, NEW = key_until(START + 10), key_until(START + 1_000)


def client(g: Running, source: Callable[[], Awaitable[str]] | None) -> AsyncRolloutClient:
    return AsyncRolloutClient(g.origin, OLD, newer_key=source)


async def test_calls_that_meet_an_expired_key_together_ask_once_for_the_next() -> None:
    clock, source = Clock(), Source([NEW])
    async with gateway(now=clock) as g, client(g, source) as trainer:
        await trainer.heartbeat()
        assert source.asked == 0, "nobody asks while the key is good"
        clock.now += 20
        await asyncio.gather(*(trainer.heartbeat() for _ in range(8)))
        assert source.asked == 1
        await trainer.heartbeat()
        assert source.asked == 1


@dataclass(frozen=True)
class Refused:
    """What is given instead of a newer key, and what the caller is told."""

    script: list[str | Exception]
    error: type[Exception]
    words: str
    asked: int = 1


REFUSED = {
    "the same key": Refused([OLD], Unauthorized, "expired"),
    "another one that is no better, and then others for ever": Refused(
        [key_until(START + number) for number in range(9)], Unauthorized, "expired"
    ),
    "no right to read it": Refused([Forbidden("may not get secrets")], Forbidden, "may not get secrets"),
    "a Secret that somebody spoilt": Refused([InvalidBody("api_key is missing")], InvalidBody, "missing"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_without_a_newer_key_the_caller_is_told(case: Refused) -> None:
    clock, source = Clock(), Source(case.script)
    async with gateway(now=clock) as g, client(g, source) as trainer:
        clock.now += 20
        with pytest.raises(case.error, match=case.words):
            await trainer.heartbeat()
        assert source.asked == case.asked


async def test_a_place_of_keys_that_is_away_is_waited_for() -> None:
    clock, source = Clock(), Source([Unavailable("503", retry_after=0.0), OSError("no route"), NEW])
    async with gateway(now=clock) as g, client(g, source) as trainer:
        clock.now += 20
        await trainer.heartbeat()
        assert source.asked == 3


async def test_a_place_of_keys_that_hangs_holds_up_no_call_for_ever() -> None:
    clock, asked = Clock(), 0

    async def hangs() -> str:
        await asyncio.Event().wait()
        return NEW

    async def hangs_once() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return NEW

    async with gateway(now=clock) as g:
        async with AsyncRolloutClient(g.origin, OLD, newer_key=hangs_once, timeout_s=0.2) as trainer:
            clock.now += 20
            await asyncio.gather(*(trainer.heartbeat() for _ in range(3)))
            assert asked == 2
        async with AsyncRolloutClient(
            g.origin, OLD, newer_key=hangs, timeout_s=0.1, retries=Retries(attempts=2)
        ) as trainer:
            with pytest.raises(Unavailable, match="nobody gave a newer key within"):
                await trainer.heartbeat()


async def test_a_client_that_was_given_a_key_alone_says_that_it_expired() -> None:
    clock = Clock()
    async with gateway(now=clock) as g, client(g, None) as trainer:
        clock.now += 20
        with pytest.raises(Unauthorized, match="expired"):
            await trainer.heartbeat()


async def test_the_file_of_a_mounted_secret_is_read_again(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "api_key"
    file.write_text(OLD + "\n")
    async with gateway(now=clock) as g, fleet({"g": g.origin}, file, job=JOB) as trainer:
        await trainer.clients["g"].heartbeat()
        file.unlink()
        clock.now += 20
        waits = asyncio.ensure_future(trainer.clients["g"].heartbeat())
        await asyncio.wait([waits], timeout=0.2)
        assert not waits.done(), "a kubelet that exchanges files is waited for"
        file.write_text(NEW)
        await waits
        clock.now += 20
        await trainer.clients["g"].heartbeat()


# -- a job in a cluster ------------------------------------------------------------------------------------------------


@dataclass
class Secrets:
    """An API server that knows one Secret."""

    data: dict[str, str] = field(default_factory=dict)
    reads: int = 0

    @contextmanager
    def serving(self, folder: Path) -> Iterator[ClusterPlace]:
        secrets = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/api/v1/namespaces/lab/secrets/shop-job-trainer"
                secrets.reads += 1
                data = {name: base64.b64encode(text.encode()).decode() for name, text in secrets.data.items()}
                body: dict[str, Any] = {
                    "kind": "Secret",
                    "metadata": {"name": "shop-job-trainer"},
                    "data": data,
                }
                said = json.dumps(body if known else {"kind": "Status", "message": "not found"}).encode()
                self.send_response(200 if known else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        here = {"cluster": "lab", "user": "me", "namespace": "lab"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": here}],
            "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        try:
            yield ClusterPlace(kubeconfig=str(folder / "kubeconfig"))
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


async def test_a_fleet_of_a_cluster_reads_its_jobs_secret_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, secrets = Clock(), Secrets({"api_key": OLD})
    async with gateway(now=clock) as g:

        @contextmanager
        def found(job: str, place: ClusterPlace) -> Iterator[JobGateways]:  # its way there is another test's
            yield JobGateways(job, "lab", {"g": g.origin}, trainer_key(job, place))

        monkeypatch.setattr(fleet_module, "job_gateways", found)
        with secrets.serving(tmp_path) as place:
            async with cluster_fleet(JOB, place) as trainer:
                assert await trainer.lease() is None
                secrets.data["api_key"] = NEW
                assert secrets.reads == 1
                clock.now += 20
                assert await trainer.lease() is None
                assert secrets.reads == 2
                secrets.data.clear()
                clock.now += 2_000
                with pytest.raises(InvalidBody, match="api_key is missing"):
                    await trainer.clients["g"].heartbeat()
