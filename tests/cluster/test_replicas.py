"""`python -m sandgate.operator` as the chart starts it: two replicas on a real API server, killed, stopped, blinded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.replica.leader_lease import DURATION_S, LOOK_EVERY_S
from tests.cluster.crds import install
from tests.cluster.harness.api import Api, free_ports
from tests.support.relay import relay
from tests.support.waiting import until

Json = dict[str, Any]
STARTED_S = 60.0
"""Python and kopf are loaded on a machine that does other things too."""


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    install(apiserver)
    with apiserver.namespace("replicas") as name:
        yield name


@dataclass
class Process:
    life: asyncio.subprocess.Process
    url: str
    log: Path

    async def page(self, name: str) -> tuple[int, Json]:
        """Status 0: nobody answers."""
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.url}/{name}") as answer:
                return answer.status, json.loads(await answer.text())
        except aiohttp.ClientError:
            return 0, {}

    async def does(self, phase: str) -> bool:
        assert self.life.returncode is None, self.log.read_text()
        status, said = await self.page("readyz")
        return status == 200 and said["phase"] == phase

    def logs(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def ended(self) -> int:
        async with asyncio.timeout(STARTED_S):
            return await self.life.wait()


@asynccontextmanager
async def operator(
    folder: Path, name: str, namespace: str, kubeconfig: Path, *options: str
) -> AsyncIterator[Process]:
    port = free_ports(1)[0]
    argv = ["--namespace", namespace, "--lease-namespace", namespace, "--http", f"127.0.0.1:{port}"]
    argv += ["--kubeconfig", str(kubeconfig), *options]
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        life = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandgate.operator", *argv, stderr=file, stdout=file, env={"POD_NAME": name}
        )
    try:
        yield Process(life, f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            life.kill()
        await life.wait()


async def test_the_next_replica_leads_at_once_after_sigterm_and_soon_after_a_kill(
    apiserver: Api, namespace: str, tmp_path: Path
) -> None:
    start = (tmp_path, "one", namespace, apiserver.kubeconfig)
    async with (
        operator(*start) as one,
        operator(tmp_path, "two", namespace, apiserver.kubeconfig, "--lease=sandgate-operator") as two,
    ):
        for who in (one, two):
            await until(lambda who=who: ready(who), what="both are ready", within_s=STARTED_S)  # type: ignore[misc]

        async def one_leads() -> bool:
            return await one.does("leading") or await two.does("leading")

        await until(one_leads, what="one of them leads", within_s=STARTED_S)
        first, second = (one, two) if await one.does("leading") else (two, one)
        assert await second.does("standby")

        first.life.send_signal(signal.SIGTERM)
        assert await first.ended() == 0
        clock = asyncio.get_running_loop().time
        since = clock()
        await until(lambda: second.does("leading"), what="the other leads")
        assert clock() - since < DURATION_S / 2 + LOOK_EVERY_S, "it did not wait for the Lease to run out"
        assert "draining" in [line["message"] for line in first.logs()]

        async with operator(tmp_path, "three", namespace, apiserver.kubeconfig) as third:
            await until(lambda: third.does("standby"), what="a third stands by", within_s=STARTED_S)
            second.life.kill()
            await until(lambda: third.does("leading"), what="the third leads", within_s=3 * DURATION_S)


async def ready(process: Process) -> bool:
    return (await process.page("readyz"))[0] == 200


async def test_whoever_lost_the_lease_ends_at_once(apiserver: Api, namespace: str, tmp_path: Path) -> None:
    kube = KubeClient(from_kubeconfig([apiserver.kubeconfig]))
    async with operator(tmp_path, "robbed", namespace, apiserver.kubeconfig, "--lease=robbed") as one:
        await until(lambda: one.does("leading"), what="it leads", within_s=STARTED_S)
        await kube.patch("Lease", namespace, "robbed", {"spec": {"holderIdentity": "thief"}})
        assert await one.ended() == 1
        assert "lost the Lease: held by thief" in [line["message"] for line in one.logs()]
    await kube.aclose()


async def test_a_blind_operator_ends(apiserver: Api, namespace: str, tmp_path: Path) -> None:
    async with relay(from_kubeconfig([apiserver.kubeconfig])) as between:
        file = config_of(tmp_path, between.url)
        async with operator(tmp_path, "blind", namespace, file, "--no-lease") as one:
            await until(lambda: one.does("leading"), what="it leads", within_s=STARTED_S)
            await asyncio.wait_for(between.watched(3), STARTED_S)
            between.error = {"kind": "Status", "code": 500, "message": "the cache is broken"}
            between.cut()
            assert await one.ended() == 1
            said = [line["message"] for line in one.logs()]
            assert any("watches ended" in line and "the cache is broken" in line for line in said)


async def test_without_our_kinds_it_waits_and_says_so(apiserver: Api, namespace: str, tmp_path: Path) -> None:
    async with relay(from_kubeconfig([apiserver.kubeconfig])) as between:
        between.freeze()
        file = config_of(tmp_path, between.url)
        async with operator(tmp_path, "early", namespace, file) as one:
            await until(lambda: answers(one), what="it answers probes", within_s=STARTED_S)
            status, said = await one.page("readyz")
            assert (status, said["reasons"]) == (503, ["waits for the API server"])
            one.life.send_signal(signal.SIGTERM)
            assert await one.ended() == 0


async def answers(process: Process) -> bool:
    return (await process.page("healthz"))[0] == 200


def config_of(folder: Path, server: str) -> Path:
    """A kubeconfig that knows nothing but where to go."""
    file = folder / "kubeconfig"
    context = {"name": "x", "context": {"cluster": "c"}}
    cluster = {"name": "c", "cluster": {"server": server}}
    file.write_text(yaml.safe_dump({"current-context": "x", "contexts": [context], "clusters": [cluster]}))
    return file
