"""Engine servers behind vLLM's wire, and the transport to them: the real `VllmEngine` talks to these.

They sample from a plan, tell it in chunks, break, stall, refuse, abort for weight updates, and remember every id.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine import pool, vllm
from sandgate.gateway.engine.logprobs import ASKS
from sandgate.gateway.engine.transport import HttpAnswer, Lost
from sandgate.gateway.engine.wire import ABORT_PREFIX
from tests.simulation.history import Piece
from tests.simulation.loop import LIFE

if TYPE_CHECKING:
    from tests.simulation.world import World

URLS = ("http://engine-a", "http://engine-b")
STEP_S = (0.0, 0.001, 0.01, 0.05)
STALL_S = 70.0
"""Longer than a client's patience and the gateway's linger together."""
WINDOW = 4096


class Fleet:
    """The replicas, their weights, and what they do to each generation."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world, self.rng = world, rng
        self.version = 0
        self.reports = rng.random() < 0.8
        """Do answers carry weight versions?"""
        self.faults = rng.choice((0.0, 0.02, 0.1))
        self.down: set[str] = set()
        self.bare: set[str] = set()
        """Restarted since the last weight update: they have the weights of version 0, and a label without a number."""
        self.paused = False
        self.refuses = False
        """While paused, new requests get 503 instead of waiting."""
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.running: dict[_Run, None] = {}
        self._plans: dict[str, tuple[int, list[int]]] = {}

    def plan(self, request_id: str, prompt: Ids) -> tuple[list[int], int]:
        """What this generation says, and how much of it the prompt holds already: each attempt goes on with it."""
        base = request_id.rpartition("-r")[0] if "-r" in request_id else request_id
        if base not in self._plans:
            self._plans[base] = (len(prompt), self.world.words.reply(self.rng))
        length, ids = self._plans[base]
        return ids, len(prompt) - length

    async def pause(self, mode: str) -> None:
        """As vLLM's /pause: `abort` ends what runs, `keep` freezes it, `wait` lets it finish."""
        for _ in range(100 if mode == "wait" else 0):
            await asyncio.sleep(0.05)
            if not self.running:
                break
        self.paused, self.refuses = True, mode == "abort" and self.rng.random() < 0.5
        self.resumed.clear()
        if mode == "abort":
            for run in list(self.running):
                run.aborted = True

    def resume(self) -> None:
        self.paused = self.refuses = False
        self.resumed.set()

    def restart(self, url: str) -> None:
        """That server dies; it comes back with what it was started with."""
        self.bare.add(url)
        for run in [one for one in self.running if one.url == url]:
            run.piece.ended = min(run.piece.ended, self.world.loop.time())
            run.gone = True
            run.out.put_nowait(None)

    def update(self, version: int) -> None:
        """New weights, and their label, in every server that is there."""
        self.version = version
        self.bare = {url for url in self.bare if url.startswith(tuple(self.down))}

    def label(self, url: str) -> str:
        return "default" if url in self.bare else f"step-{self.version}"

    def lose(self, life: int) -> None:
        """That process is dead, its connections with it."""
        for run in [one for one in self.running if one.piece.life == life]:
            run.leave()


class _Run:
    """One request being served."""

    def __init__(self, fleet: Fleet, url: str, piece: Piece, body: dict[str, Any]) -> None:
        self.fleet, self.url, self.piece = fleet, url, piece
        self.labels: list[str] = []
        self.params: dict[str, Any] = body["sampling_params"]
        self.streams = bool(body.get("stream"))
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Payloads; None: the connection breaks."""
        self.aborted = False
        self.gone = False

    def leave(self) -> None:
        """The other end closed the connection."""
        world = self.fleet.world
        self.piece.ended = min(self.piece.ended, world.loop.time())
        delay = self.fleet.rng.choice((0.0, 0.01, 0.5))
        world.loop.call_later(delay, setattr, self, "gone", True, context=contextvars.Context())

    async def serve(self) -> None:
        """Sample to the end, unless something comes between."""
        fleet, piece, rng = self.fleet, self.piece, self.fleet.rng
        try:
            plan, at = fleet.plan(piece.request_id, piece.prompt)
            left = plan[at:] if at < len(plan) else plan[-1:]
            left = left[: self.params["max_tokens"]]
            fault = rng.choice(("break", "stall", "abort", "lie")) if rng.random() < fleet.faults else ""
            fault_at = rng.randint(0, len(left))
            sampled = 0
            while sampled < len(left) and not self.gone:
                await asyncio.sleep(rng.choice(STEP_S))
                while fleet.paused and not self.aborted:
                    await fleet.resumed.wait()
                if self.aborted or (fault == "abort" and sampled >= fault_at):
                    self._tell(0, "abort")
                    return
                if fault == "break" and sampled >= fault_at:
                    piece.ended = fleet.world.loop.time()
                    self.out.put_nowait(None)
                    return
                if fault == "stall" and sampled >= fault_at:
                    fault = ""
                    await asyncio.sleep(STALL_S)
                if self._is_gone():
                    return
                chunk = left[sampled : sampled + rng.randint(1, 4)]
                self._sample(chunk)
                sampled += len(chunk)
                stop = left[sampled - 1] in self.params.get("stop_token_ids", ())
                finish = "stop" if stop else "length" if sampled == self.params["max_tokens"] else None
                self._tell(len(chunk), finish, lie=fault == "lie" and sampled >= fault_at)
                if finish:
                    piece.answered = True
                    fleet.world.moment("sampled")
                    return
        finally:
            fleet.running.pop(self, None)

    def _is_gone(self) -> bool:
        """By now."""
        return self.gone

    def _sample(self, ids: list[int]) -> None:
        piece, rng = self.piece, self.fleet.rng
        piece.ids.extend(ids)
        piece.logprobs.extend(-rng.randrange(1, 4096) / 512 for _ in ids)
        bare = self.url in self.fleet.bare
        piece.bare = piece.bare or bare
        piece.versions.extend(0 if bare else self.fleet.version for _ in ids)
        self.labels.extend(self.fleet.label(self.url) for _ in ids)

    def _tell(self, count: int, finish: str | None, *, lie: bool = False) -> None:
        """An event of the stream, or, at the end, the whole."""
        piece = self.piece
        if finish:
            piece.reported = self.fleet.reports
            if finish == "abort":
                piece.ended = min(piece.ended, self.fleet.world.loop.time())
        if not self.streams and not finish:
            return
        start = max(0, len(piece.ids) - count) if self.streams else 0
        ids, logprobs = piece.ids[start:].tolist(), piece.logprobs[start:].tolist()
        if self.streams and not count:
            ids, logprobs = [], []
        content = [
            {"token": f"token_id:{one}", "token_id": one, "logprob": -9999.0 if lie else logprob}
            for one, logprob in zip(ids, logprobs, strict=True)
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": finish,
        }
        if finish and self.fleet.reports:
            choice["weight_versions"] = _spans(self.labels)
        raw = json.dumps({"request_id": piece.request_id, "choices": [choice]}).encode()
        self.out.put_nowait(raw)


def _spans(labels: list[str]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for at, label in enumerate(labels):
        if out and out[-1]["version"] == label:
            out[-1]["end"] = at + 1
        else:
            out.append({"version": label, "start": at, "end": at + 1})
    return out


class _Streamed:
    """`transport.Streamed` over a run."""

    def __init__(self, status: int, run: _Run | None, refusal: bytes = b"") -> None:
        self.status, self.retry_after = status, "1" if status in (429, 503) else None
        self._run, self._refusal = run, refusal

    async def body(self) -> bytes:
        if self._run is None:
            return self._refusal
        raw = await self._run.out.get()
        if raw is None:
            raise Lost("connection reset by peer", refused=False)
        return raw

    async def chunks(self, gather_s: float = 0.0) -> AsyncIterator[bytes]:
        assert self._run is not None
        rng = self._run.fleet.rng
        while True:
            raw = await self._run.out.get()
            if raw is None:
                raise Lost("connection reset by peer", refused=False)
            event = b"data: " + raw + b"\n\n"
            ended = b'"finish_reason": null' not in raw
            if rng.random() < 0.2:
                at = rng.randrange(len(event))
                yield event[:at]
                await asyncio.sleep(rng.choice(STEP_S))
                event = event[at:]
            yield event
            if ended:
                yield b"data: [DONE]\n\n"
                return


FILTERED = [{"token_id": 5 + at, "logprob": -9999.0 if at else 0.0} for at in range(5)]
MEASURED = {"token_id": 5, "logprob": 0.0, "top_logprobs": FILTERED}
PROCESSED = json.dumps(
    {"choices": [{"token_ids": [5], "logprobs": {"content": [MEASURED]}, "finish_reason": "length"}]}
).encode()
"""What a measurement finds: all but the best were filtered out."""


class SimTransport:
    """`transport.Transport` to the fleet, of one life of the gateway."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._life = fleet, LIFE.get()
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True

    def _alive(self) -> bool:
        return not self._closed and self._life == self._fleet.world.life

    @asynccontextmanager
    async def post(self, url: str, body: bytes, *, request_id: str) -> AsyncIterator[_Streamed]:
        fleet, rng = self._fleet, self._fleet.rng
        await asyncio.sleep(rng.choice(STEP_S))
        if not self._alive() or url.startswith(tuple(fleet.down)):
            raise Lost("connection refused", refused=True)
        if rng.random() < fleet.faults:
            fault = rng.choice(("lost", 500, 503, 429))
            if fault == "lost":
                raise Lost("connection reset by peer", refused=False)
            assert isinstance(fault, int)
            yield _Streamed(fault, None, b'{"error": {"message": "simulated", "code": 1}}')
            return
        if fleet.paused and fleet.refuses:
            yield _Streamed(503, None, b'{"error": {"message": "generation is paused"}}')
            return
        if request_id.startswith(ASKS):
            await fleet.resumed.wait()
            yield _Streamed(200, None, PROCESSED)
            return
        run = self._begin(url, body, request_id)
        try:
            yield _Streamed(200, run)
        finally:
            run.leave()

    def _begin(self, url: str, body: bytes, request_id: str) -> _Run:
        said = json.loads(body)
        world = self._fleet.world
        piece = Piece(
            turn=request_id[:24],
            request_id=request_id,
            prompt=array("i", said["token_ids"]),
            told=int(said["cache_salt"][1:]),
            started=world.loop.time(),
            life=self._life,
        )
        world.sampling(piece)
        run = _Run(self._fleet, url.removesuffix("/inference/v1/generate"), piece, said)
        self._fleet.running[run] = None
        world.loop.create_task(run.serve(), name=f"engine {request_id}", context=contextvars.Context())
        return run

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> HttpAnswer:
        fleet = self._fleet
        if body is not None and url.endswith("abort_requests") and self._alive():
            for name in json.loads(body)["request_ids"]:
                fleet.world.group_over(name.removeprefix(ABORT_PREFIX)[:24], "aborted")
        await asyncio.sleep(fleet.rng.choice(STEP_S))
        if not self._alive() or url.startswith(tuple(fleet.down)):
            raise Lost("connection refused", refused=True)
        path = url.partition("://")[2].partition("/")[2]
        if path == "inference/v1/abort_requests" and body is not None:
            for name in json.loads(body)["request_ids"]:
                for run in list(fleet.running):
                    if run.piece.request_id == name.removeprefix(ABORT_PREFIX):
                        run.aborted = True
            if fleet.rng.random() < 0.1:
                await asyncio.sleep(fleet.rng.choice((0.5, 3.0)))
            return HttpAnswer(200, b"{}")
        return _said(fleet, url.removesuffix("/" + path), path)


def _said(fleet: Fleet, url: str, path: str) -> HttpAnswer:
    """Of itself."""
    if path == "weight_info" and fleet.reports:
        return HttpAnswer(200, json.dumps({"weight_version": fleet.label(url)}).encode())
    if path == "weight_info":  # as old as that
        return HttpAnswer(404, b'{"detail": "Not Found"}')
    if path == "version":
        return HttpAnswer(200, b'{"version": "0.32.0"}')
    if path == "v1/models":
        return HttpAnswer(200, b'{"data": [{"id": "shop", "max_model_len": %d}]}' % WINDOW)
    if path == "metrics":
        running = sum(run.url == url for run in fleet.running)
        return HttpAnswer(200, b'vllm:num_requests_running{engine="0"} %d.0\n' % running)
    if path == "inference/v1/generate":
        return HttpAnswer(404, b'{"error": {"message": "The model does not exist"}}')
    return HttpAnswer(200, b"{}")


async def connect(fleet: Fleet, urls: Sequence[str] = URLS, **more: Any) -> vllm.VllmEngine:
    """The real engine client over the simulated wire."""
    with mock.patch.object(pool, "Transport", return_value=SimTransport(fleet)):
        return await vllm.VllmEngine.connect(urls, model="shop", **more)
