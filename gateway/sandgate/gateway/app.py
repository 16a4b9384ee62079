"""Starts a gateway process from its settings: the only place that opens clients, threads and files.

`python -m sandgate.gateway --config FILE` (see config.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
import uvloop

from sandgate.contract.errors import BadManifest, SandgateError
from sandgate.gateway.config import DATABASES, Config, load, read_secret
from sandgate.gateway.delivery.file_output import FileOutput
from sandgate.gateway.engine.api import Engine, Labelled
from sandgate.gateway.engine.factory import ENGINES
from sandgate.gateway.journal.room import ROOM_BYTES
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.journal.store import Store
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.auth import Gate
from sandgate.gateway.service.completion import Completions
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.sampling import job_sampling
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.task_queue import TaskQueue
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.load import load_codec
from sandgate.gateway.web.connections import places
from sandgate.gateway.web.header_limits import LimitedConnection
from sandgate.gateway.web.server import AsgiApp

KEEP_ALIVE_S = 75
"""Idle connections; agents think and run tools between turns, and a new TLS-less connection is cheap anyway."""
SHUTDOWN_S = 5
"""After the drain: connections that still do not end are cut."""
GC_AFTER = 10_000
"""New objects, at least, before those are looked at for cycles; Python's 700 are a hundred looks at one body."""
RETIRE_EVERY_S = 60.0
"""A sweep walks all groups; once a minute is nothing, and nobody waits for it."""

log = logging.getLogger("sandgate.gateway")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running core and its ASGI app."""

    core: GatewayService
    app: AsgiApp


@asynccontextmanager
async def gateway(
    config: Config,
    *,
    origin: str,
    engine: Engine | None = None,
    store: Store | None = None,
    codec: Codec | None = None,
    now: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Gateway]:
    """Open everything, replay the journal, yield; close in reverse, also on error. Parts given are not closed."""
    job_sampling(msgspec.structs.asdict(config.sampling))  # now, and not at each turn
    if config.output.parquet:
        _check_output(config.output.parquet)
    async with AsyncExitStack() as stack:
        secret = read_secret(Path(config.secret_file))
        if store is None:
            store = await _open_journal(config)
            stack.push_async_callback(store.aclose)
        if codec is None:
            codec = load_codec(
                Path(config.model.tokenizer),
                renderer=config.model.renderer,
                history=config.model.history_policy,
                special_text=config.model.special_tokens_in_text,
                template_kwargs=dict(config.model.template_kwargs),
                model_name=config.model.name,
            )
        tasks = TaskQueue(config.limits.tasks, config.limits.task_bytes)
        sessions = Sessions(store, now, config.limits.sessions, tasks=tasks, lease_now=unset(now, steady))
        sessions.replay()
        await sessions.keep_doubts()
        await sessions.keep_leases()
        if engine is None:
            engine = await _engine(config, sessions, codec)
            stack.push_async_callback(engine.aclose)
        elif isinstance(engine, Labelled):
            engine.labels = sessions.labels
        metrics = GatewayMetrics()
        turns = Completions(config, sessions, engine, codec, metrics, _new_id, _window(config, engine))
        if sessions.process.paused:
            turns.admission.pause()
        stack.push_async_callback(turns.aclose)
        gate = Gate(secret, now, config.job, steady=sessions.by_leases)
        core = GatewayService(config, gate, sessions, turns, engine, metrics, origin, _new_id())
        stack.callback(core.exports.shutdown, wait=False, cancel_futures=True)
        if config.limits.retire_s:
            retiring = asyncio.ensure_future(_retire(sessions, config.limits.retire_s))
            stack.callback(retiring.cancel)
        if config.output.parquet:
            if not sessions.live and not sessions.book.leases:  # one that goes on waits for its storage
                await asyncio.to_thread(_try_output, config.output.parquet)
            output = _output(core, config.output.parquet)
            stack.callback(output.close)
            core.writing = output.status
            writing = asyncio.ensure_future(output.run())
            stack.push_async_callback(_ended, writing)
        yield Gateway(core, AsgiApp(core))


async def _open_journal(config: Config) -> Store:
    """Raises what the store's `open` raises; BadManifest without the extra that it needs."""
    if not config.journal.startswith(DATABASES):
        return await SqliteStore.open(Path(config.journal), room=ROOM_BYTES if config.limits.retire_s else 0)
    try:
        from sandgate.gateway.journal.postgres import PostgresStore
    except ImportError as error:
        raise BadManifest(
            f"journal: Postgres needs the extra gateway-postgres: {error}", field="journal"
        ) from error
    return await PostgresStore.open(config.journal, config.name)


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _check_output(url: str) -> None:
    """Raises BadManifest: without the extra that it needs, or for a URL that cannot be written to."""
    try:
        from sandgate.gateway.delivery import storage
    except ImportError as error:
        raise BadManifest(
            f"output.parquet: files need the extra gateway-arrow: {error}", field="output.parquet"
        ) from error
    storage.check(url)


def _try_output(url: str) -> None:
    """Blocks. Raises BadManifest for a folder of this machine that cannot be written to."""
    from sandgate.gateway.delivery import storage

    storage.check_folder(url)


def _output(core: GatewayService, url: str) -> FileOutput:
    """`url`: one that was checked."""
    from sandgate.gateway.delivery import parquet, storage

    opened: list[storage.Storage] = []

    def folder() -> storage.Storage:
        if not opened:
            opened.append(storage.storage(url))
        return opened[0]

    def put(name: str, data: bytes) -> None:
        folder().put(name, data)

    def held(name: str) -> frozenset[str]:
        data = folder().read(name)
        return frozenset() if data is None else parquet.sessions_in(data)

    return FileOutput(core.leasing, core.config.job, _new_id, parquet.to_parquet, put, held)


async def _retire(sessions: Sessions, age_s: float) -> None:
    """Retires sessions for ever, so that journal and memory of a long-lived gateway keep only what may be asked for."""
    while True:
        await asyncio.sleep(min(age_s, RETIRE_EVERY_S))
        try:
            if gone := await sessions.retire(age_s):
                log.info("retired %d sessions", gone)
        except SandgateError as error:
            log.warning("retiring waits: %s", error)
        except Exception:  # nobody waits for this task: ended, it would let the journal fill without a word
            log.exception("retiring failed; again in %.0f s", min(age_s, RETIRE_EVERY_S))


def unset(now: Callable[[], float], steady: Callable[[], float]) -> Callable[[], float]:
    """Unix seconds as they are now, and from now on by a clock that nobody sets: a step of NTP must not free what
    trainers work on."""
    ahead = now() - steady()
    return lambda: ahead + steady()


def _new_id() -> str:
    """24 hex characters; names turns, sessions, request attempts."""
    return os.urandom(12).hex()


async def _engine(config: Config, sessions: Sessions, codec: Codec) -> Engine:
    """The engines of the settings, or those that the journal was told of since."""
    return await ENGINES[config.engine.kind].connect(
        config.engine.urls if sessions.process.engines is None else sessions.process.engines,
        model=config.engine.model or config.model.name,
        logprobs_mode=config.engine.logprobs_mode,
        timeout_s=config.engine.timeout_s,
        vocab_size=codec.vocab_size,
        version_now=lambda: sessions.process.version,
        labels=sessions.labels,
        gather_s=config.limits.gather_s,
        adapter_now=lambda: sessions.process.adapter,
        patient=config.engine.wait,
        peers=config.peers.count,
        index=config.peers.place,
    )


def _window(config: Config, engine: Engine) -> int:
    """The window of the settings, not more than the engine takes, if that is known already; a later engine may lower
    it."""
    configured = config.model.max_model_len
    facts = getattr(engine, "facts", None)
    engine_len = facts.max_model_len if facts is not None else 0
    if configured and engine_len and configured > engine_len:
        raise BadManifest(
            f"model.max_model_len: {configured} is more than the engine's {engine_len}",
            field="model.max_model_len",
        )
    return configured


def _socket(config: Config) -> socket.socket:
    """Bound, not listening: nobody is answered before the journal is replayed, yet callers may queue on an fd. `::` is
    every address, those of IPv4 too, whatever the system's own rule is."""
    if config.listen.fd is not None:
        return socket.socket(fileno=config.listen.fd)
    sock = socket.socket(socket.AF_INET6 if ":" in config.listen.host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if config.listen.host == "::":
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        sock.bind((config.listen.host, config.listen.port))
    except OSError as error:
        sock.close()
        raise BadManifest(
            f"listen.port: {config.listen.host}:{config.listen.port}: {error.strerror or error}; choose another host or"
            " port; port 0 is a free one",
            field="listen.port",
        ) from error
    return sock


def _reached_by(host: str) -> str:
    """The host of a URL for what is bound to this address."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def keep_imports() -> None:
    """Python's collector of cycles walks all objects with the interpreter's lock held. The 90,000 of imports, which are
    never garbage, made every turn wait for 50 to 150 ms whenever a body with many lists came: it leaves them out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_AFTER)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then drain: running turns finish, new ones get 503."""
    stop = asyncio.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # first: as a container's first process it would not die of them
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sock = _socket(config)
    host, port = sock.getsockname()[:2]
    origin = config.origin or f"http://{_reached_by(host)}:{port}"
    async with gateway(config, origin=origin.rstrip("/")) as running:
        running.app.connections.most = places(config.limits.connections, config.limits.in_flight)
        server = web_server(running.app)
        if stop.is_set():
            return
        serving = asyncio.ensure_future(server.serve([sock]))
        stopping = asyncio.ensure_future(stop.wait())
        log.info("listening on %s", origin)
        _say({"listening": origin, "job": config.job, "model": config.model.name})
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            done = await running.core.turns.drain(config.limits.drain_s)
            log.info("drained" if done else "drain timed out; running turns are cut")
        server.should_exit = True
        stopping.cancel()
        await serving


def _say(told: dict[str, str]) -> None:
    """One JSON line, for whoever started the process; nobody has to read it."""
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def web_server(app: AsgiApp) -> uvicorn.Server:
    """The HTTP server of a gateway; give its `serve` a bound socket."""
    guarded = partial(LimitedConnection, app.connections, app.core.config.limits.write_s)
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            http=cast("Any", guarded),  # it says a type, and calls it
            ws="none",
            proxy_headers=False,
        )
    )


class _Server(uvicorn.Server):
    """Signals are the drain's, above."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after a drain, 2 for a bad config."""
    parser = argparse.ArgumentParser(prog="sandgate gateway", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see sandgate.gateway.config")
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
        keep_imports()
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        uvloop.run(serve(config))
    except SandgateError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
