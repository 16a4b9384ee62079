"""The gateways of a local run: supervised processes that inherit their listening sockets from it.

We open the socket and keep it: while a killed gateway starts again, connections queue in the kernel, so that no agent
is ever refused.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError, Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.names import gateway_name
from sandgate.gateway.client import GatewayClient
from sandgate.operator.driver.engine_health import weights_missing
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.folder import Folder, replace
from sandgate.operator.local.journals import Journals
from sandgate.operator.local.progress import GatewayReady, ProcessRestarted, Tell
from sandgate.operator.local.resuming import still_there
from sandgate.operator.local.supervise import Supervised, log_path, own_env
from sandgate.operator.manifests.gateway_config import gateway_config
from sandgate.operator.plan.actions import Outage, Ref
from sandgate.sandbox.process import Guard, ProcessSpec

BACKLOG = 4096
"""Connections that wait while a gateway restarts; the kernel cuts it to net.core.somaxconn."""
READY_S = 180.0
"""A journal of a million turns is replayed in about a minute."""
DEADLINE_S = 300.0
"""How long calls wait for a gateway that is away: a restart replays its journal; a full disk may be emptied."""
STOP_S = 30.0
"""Running turns may finish: the gateway's own drain takes at most 25 s."""


@dataclass(frozen=True, slots=True)
class LocalGateway:
    """One gateway."""

    name: str
    origin: str
    client: GatewayClient
    process: Supervised


@dataclass(frozen=True, slots=True)
class LocalGateways:
    """All of a run (`driver.backend.Gateways`). Calls wait for one that is away."""

    found: Mapping[str, LocalGateway]
    state: DriverState
    journals: Journals | None = None

    def client(self, gateway: str) -> GatewayClient:
        """Of one that this run has."""
        return self.found[gateway].client

    def gateway_of(self, ref: Ref) -> str:
        """Of a session that has not ended."""
        if not (gateway := self.state.observed.placed.get(ref.name, "")):
            raise Unavailable(f"{ref.name}: has ended")
        return gateway

    async def absence(self, gateway: str, now: float) -> Outage | None:
        """Its last restart, once it answers again; or that it cannot write."""
        process = self.found[gateway].process
        said = await self.found[gateway].client.status()
        if self.journals is not None:
            self.journals.look({gateway: said})
            if (broken := self.journals.outages.get(gateway)) is not None:
                return broken
        if process.ended_at is None:
            return None
        return Outage(process.ended_at, process.back_at or now, FailureReason.GATEWAY_LOST)


@asynccontextmanager
async def gateways(
    job: RolloutJob,
    folder: Folder,
    manifest_dir: Path,
    urls: Sequence[str],
    guard: Guard,
    tell: Tell,
    *,
    retire_s: float = 0.0,
) -> AsyncIterator[dict[str, LocalGateway]]:
    """All of them, ready; at least as many as earlier runs had, whose journals they go on with. `retire_s`: see
    `run_local`. Raises Unavailable."""
    count = max(job.spec.gateway.replicas, folder.journals())
    key = mint(bytes.fromhex(folder.secret.read_text().strip()), Key(Scope.ADMIN, job=job.metadata.name))
    async with AsyncExitStack() as sockets, AsyncExitStack() as stack:
        found: dict[str, LocalGateway] = {}
        stack.push_async_callback(_stop, found)
        for index in range(count):
            sock = sockets.enter_context(listen())
            origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
            settings = config(job, folder, manifest_dir, urls, index=index, fd=sock.fileno(), origin=origin)
            settings["limits"]["retire_s"] = retire_s
            one = await _start(index, job, folder, settings, guard, tell, key, sock)
            found[one.name] = one
        for one in found.values():
            await one.process.first_ready(_offered(one.client), READY_S)
            tell(GatewayReady(name=one.name, origin=one.origin))
        yield found


async def _stop(found: dict[str, LocalGateway]) -> None:
    await asyncio.gather(*(one.process.stop(STOP_S) for one in found.values()))
    for one in found.values():  # after supervision, which asks by it
        await one.client.aclose()


async def _start(
    index: int,
    job: RolloutJob,
    folder: Folder,
    settings: dict[str, Any],
    guard: Guard,
    tell: Tell,
    key: str,
    sock: socket.socket,
) -> LocalGateway:
    origin, name = settings["origin"], gateway_name(job.metadata.name, index)
    replace(folder.config(index), json.dumps(settings, indent=1))

    def spec() -> ProcessSpec:
        still_there(folder.root, index)
        return ProcessSpec(
            # -P: it runs in the folder of the run, where agents may write, and imports nothing from there.
            argv=[sys.executable, "-P", "-m", "sandgate.gateway.app", "--config", str(folder.config(index))],
            env=own_env(),
            cwd=folder.root,
            log=log_path(folder.logs, f"gateway-{index}"),
            pass_fds=(sock.fileno(),),
        )

    client = GatewayClient(origin, key, deadline_s=DEADLINE_S)
    process = Supervised(
        name,
        spec,
        guard,
        on_restart=lambda who, why, n: tell(ProcessRestarted(name=who, why=why, restarts=n)),
        answers=_offered(client),
    )
    await process.start()
    return LocalGateway(name, origin, client, process)


def listen() -> socket.socket:
    """A listening loopback socket on a free port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(BACKLOG)
    return sock


def config(
    job: RolloutJob,
    folder: Folder,
    manifest_dir: Path,
    urls: Sequence[str],
    *,
    index: int,
    fd: int,
    origin: str,
) -> dict[str, Any]:
    """A gateway's settings file."""
    return gateway_config(
        job,
        listen={"fd": fd},
        origin=origin,
        journal=str(folder.journal(index).resolve()),
        urls=urls,
        tokenizer=str((manifest_dir / job.spec.model.tokenizer).resolve()),
        secret_file=str(folder.secret.resolve()),
        place=f"gateway-{index}",
    )


def _offered(client: GatewayClient) -> Callable[[], Any]:
    """A short look: the process may have died, and its socket, which is ours, would keep us waiting. A gateway whose
    engines only want their weights is offered all the same: a trainer brings them, through it."""

    async def check() -> str:
        try:
            why = await client.ready(timeout_s=2.0)
            return "" if why and weights_missing(await client.status()) else why
        except SandgateError as error:
            return str(error)

    return check
