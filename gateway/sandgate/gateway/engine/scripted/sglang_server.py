"""The scripted engine behind SGLang's wire, as 0.5.23 speaks it: cumulative or incremental streams, its refusals.

What it reads and answers is checked against SGLang's own types, and against SGLang's own HTTP server, by a test.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import log
from typing import Any

import msgspec
import orjson
from aiohttp import web

from sandgate.gateway.engine.logprobs import ASKS
from sandgate.gateway.engine.responses import Step
from sandgate.gateway.engine.scripted.script import INITIAL_LABEL, Ask, Broken, Player, ScriptedRefusal
from sandgate.gateway.engine.scripted.serving import ScriptedServing
from sandgate.gateway.engine.sglang.refusals import ABORTED
from sandgate.gateway.journal.top_logprobs import Top

MODES = {"abort": "abort", "retract": "keep", "in_place": "keep"}
"""SGLang's mode of a pause -> the player's."""


class _Params(msgspec.Struct):
    max_new_tokens: int = 128
    temperature: float = 1.0
    min_p: float = 0.0
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None


class _Generate(msgspec.Struct):
    input_ids: list[int]
    sampling_params: _Params
    rid: str = ""
    stream: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = 0


@dataclass(slots=True)
class _Told:
    """What was sampled of one request so far, as `meta_info` tells it."""

    ask: Ask
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    labels: tuple[tuple[str | int, int, int], ...] = ()

    def take(self, step: Step) -> None:
        self.ids.extend(step.ids)
        self.logprobs.extend(step.logprobs)
        self.top.extend(step.top)
        if step.labels is not None:
            self.labels = step.labels


class ScriptedSglang(ScriptedServing):
    """`async with ScriptedSglang(player) as server: server.url`. A port of 0 is any free one."""

    def __init__(
        self,
        player: Player,
        *,
        model: str = "scripted",
        host: str = "127.0.0.1",
        port: int = 0,
        version: str = "0.5.23",
        incremental: bool = False,
        versions: bool = True,
        seeds: bool = True,
        truncates: bool = False,
        old_paths: bool = False,
        adapters: Sequence[str] = (),
        reserved: int = 0,
        workers: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`incremental`: --incremental-streaming-output. `versions` False: no `weight_versions`, as older ones.
        `seeds`: --enable-deterministic-inference. `truncates`: --allow-auto-truncate. `old_paths`: /get_model_info
        and /get_server_info only, and no /ready. `adapters`: LoRA adapters that are loaded. `reserved`: tokens that
        EAGLE counts on top of each prompt. `workers`: --tokenizer-worker-num, of which one knows the label.
        `settings`: more that /server_info says."""
        super().__init__(player, model=model, host=host, port=port)
        self.bodies: list[dict[str, Any]] = []
        """What was asked of /generate, for a test to look at."""
        self.answers: list[dict[str, Any]] = []
        """What was answered, each event too."""
        self._version, self._incremental, self._versions = version, incremental, versions
        self._seeds, self._truncates, self._old, self._adapters = seeds, truncates, old_paths, adapters
        self._reserved, self._workers, self._settings = reserved, workers, dict(settings or {})
        self.load_answer: tuple[int, str] | None = None
        """Status and message of a load that fails."""
        self.queued = 0
        """Generations that wait for their grammar: while there are any the cache is not cleared. One is through at each
        continuation, and, unless the scheduler is frozen, at each time that the cache is to be cleared."""
        self.flushed = 0
        """How often the cache was cleared."""
        self._frozen = False
        self._asked_for_label = 0

    def routes(self) -> list[web.RouteDef]:
        """See `ScriptedServing.routes`."""
        prefix = "/get_" if self._old else "/"
        return [
            web.post("/generate", self._generate),
            web.post("/abort_request", self._abort),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
            web.post("/update_weight_version", self._update_version),
            web.post("/update_weights_from_disk", self._update_weights),
            web.post("/flush_cache", self._flush),
            web.get("/health", self._health),
            *([] if self._old else [web.get("/ready", self._ready)]),
            web.get(prefix + "model_info", self._model_info),
            web.get(prefix + "server_info", self._server_info),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._metrics),
        ]

    # -- sampling -----------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            asked = msgspec.json.decode(body, type=_Generate)
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        self.bodies.append(orjson.loads(body))
        params = asked.sampling_params
        stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
        ask = Ask(
            request_id=asked.rid,
            ids=array("i", asked.input_ids),
            max_tokens=params.max_new_tokens,
            stop_ids=params.stop_token_ids or (),
            stop=stop,
            top=asked.top_logprobs_num,
        )
        try:
            if self._seeds and params.min_p > 0:  # an assertion of its sampler, which ends the whole server
                self.healthy = False
                raise Broken
            await self.player.resumed()  # a new request waits for the end of a pause, before it is looked at
            if why := self._too_long(ask):
                return await self._refuse(request, asked.stream, 400, why)
            if asked.rid.startswith(ASKS):
                return self._measured(ask, params.temperature)
            async with aclosing(self.player.play(ask)) as steps:
                if asked.stream:
                    return await self._stream(request, ask, steps)
                return await self._whole(ask, steps)
        except ScriptedRefusal as error:
            return await self._refuse(request, asked.stream, error.status, str(error), error.retry_after)
        except Broken:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

    def _too_long(self, ask: Ask) -> str:
        window, count = self.player.max_model_len, len(ask.ids) + self._reserved
        if count >= window:
            return f"The input ({count} tokens) is longer than the model's context length ({window} tokens)."
        if count + ask.max_tokens > window:
            return (
                f"Requested token count exceeds the model's maximum context length of {window} tokens. You requested a "
                f"total of {count + ask.max_tokens} tokens"
            )
        return ""

    async def _refuse(
        self, request: web.Request, stream: bool, status: int, why: str, retry_after: str | None = None
    ) -> web.StreamResponse:
        """A stream has begun when a request is refused, so that its status is 200."""
        if not stream or retry_after:  # a Retry-After is a proxy's, before SGLang
            return _error(status, why, retry_after)
        response = await _events(request)
        if why == ABORTED:  # by the scheduler: the end of an answer
            end = {"type": "abort", "message": why, "status_code": status, "err_type": "BadRequestError"}
            meta = {"finish_reason": end, "prompt_tokens": 1, "completion_tokens": 0}
            event = {"text": "", "output_ids": [], "meta_info": meta}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\ndata: [DONE]\n\n")
            await response.write_eof()
            return response
        said = {"message": why, "type": "invalid_request_error", "code": status, "retryable": False}
        await response.write(b"data: " + orjson.dumps({"error": said}) + b"\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _whole(self, ask: Ask, steps: AsyncGenerator[Step, None]) -> web.Response:
        told, last = _Told(ask), Step()
        async for step in steps:
            told.take(step)
            last = step
        return web.Response(body=orjson.dumps(self._event(told, last, 0)), content_type="application/json")

    async def _stream(
        self, request: web.Request, ask: Ask, steps: AsyncGenerator[Step, None]
    ) -> web.StreamResponse:
        told = _Told(ask)
        step = await anext(steps, None)
        response = await _events(request)
        while step is not None:
            since = len(told.ids) if self._incremental else 0
            told.take(step)
            await response.write(b"data: " + orjson.dumps(self._event(told, step, since)) + b"\n\n")
            try:
                step = await anext(steps, None)
            except ScriptedRefusal as error:
                await response.write(b"data: " + error.body + b"\n\n")
                break
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _event(self, told: _Told, step: Step, since: int) -> dict[str, Any]:
        """One answer: tokens from `since` on, and totals."""
        entries = [[p, token, None] for token, p in zip(told.ids, told.logprobs, strict=False)]
        meta: dict[str, Any] = {
            "id": told.ask.request_id,
            "finish_reason": _finish(told, step),
            "prompt_tokens": len(told.ask.ids),
            "weight_version": self.player.label,
            "input_token_logprobs": [],
            "output_token_logprobs": entries[since:],
            "output_token_logprobs_length": len(entries),
            "reasoning_tokens": 0,
            "completion_tokens": len(told.ids),
            "cached_tokens": 0,
        }
        if told.ask.top:
            rows = [[[p, token, None] for token, p in row] for row in told.top]
            meta["output_top_logprobs"] = rows[since:]
        if self._versions:
            spans = told.labels or ((self.player.label, 0, len(told.ids)),)
            meta["weight_versions"] = [{"version": str(v), "start": at, "end": end} for v, at, end in spans]
        answer = {"text": "", "output_ids": told.ids[since:], "meta_info": meta}
        self.answers.append(orjson.loads(orjson.dumps(answer)))
        return answer

    def _measured(self, ask: Ask, temperature: float) -> web.Response:
        """The answer to a gateway that measures the logprobs' mode: each token is half as likely as the one before, at
        temperature 1."""
        seen = 1.0 if self.player.logprobs_mode == "raw_logprobs" else temperature
        all_of_them = 1 / (2 ** (1 / seen) - 1)
        shift = 5.0 if "logits" in self.player.logprobs_mode else 0.0
        first = ask.ids[-1]
        listed = tuple(
            (first + at, -(1 + at) * log(2) / seen - log(all_of_them) + shift) for at in range(ask.top)
        )
        told = _Told(ask, [first], [listed[0][1]], [listed], ((self.player.label, 0, 1),))
        answer = self._event(told, Step(finish="length"), 0)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    # -- control ------------------------------------------------------------------------------------------------

    async def _abort(self, request: web.Request) -> web.Response:
        """As SGLang: whatever begins with the rid, if a request has exactly that."""
        told = await request.json()
        if told.get("abort_all"):
            self.player.abort_all()
        elif told.get("rid") and self.player.abort(told["rid"]):
            for rid in self.player.names():
                if rid.startswith(told["rid"]):
                    self.player.abort(rid)
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        mode = (await request.json()).get("mode", "abort")
        if mode not in MODES:
            return _error(400, f"Invalid enum value {mode!r}")
        self.player.pause(MODES[mode])
        self._frozen = mode != "abort"
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        await request.json()
        self.player.resume()
        self._frozen, self.queued = False, max(0, self.queued - 1)
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _update_version(self, request: web.Request) -> web.Response:
        told = await request.json()
        if told.get("abort_all_requests", True):
            self.player.abort_all()
        self.player.label = str(told["new_version"])
        said = f"Weight version updated to {self.player.label}"
        return web.json_response({"success": True, "message": said, "new_version": self.player.label})

    async def _update_weights(self, request: web.Request) -> web.Response:
        """The model is named by the checkpoint from now on, as in SGLang."""
        told = await request.json()
        if self.load_answer is not None:
            status, said = self.load_answer
            content = {"success": False, "message": said, "num_paused_requests": 0}
            return web.json_response(content, status=status)
        self.model = told["model_path"]
        if told.get("weight_version") is not None:
            self.player.label = str(told["weight_version"])
        said = "Succeeded to update model weights."
        return web.json_response({"success": True, "message": said, "num_paused_requests": 0})

    async def _flush(self, _: web.Request) -> web.Response:
        if self.queued:
            self.queued -= not self._frozen
            return web.Response(status=400, text="Flush cache failed.\n")
        self.flushed += 1
        return web.Response(text="Cache flushed.\n")

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.player.paused or not self.healthy else 200)

    async def _health(self, _: web.Request) -> web.Response:
        """It samples a token, so it waits while the engine is paused."""
        await self.player.resumed()
        return web.Response(status=200 if self.healthy else 503)

    async def _model_info(self, _: web.Request) -> web.Response:
        """Each HTTP worker has a label of its own, and only the first was told."""
        knows = self._asked_for_label % self._workers == 0
        self._asked_for_label += 1
        told = {
            "model_path": self.model,
            "served_model_name": self.model,
            "is_generation": True,
            "weight_version": self.player.label if knows else INITIAL_LABEL,
        }
        return web.json_response(told)

    async def _server_info(self, _: web.Request) -> web.Response:
        told = {
            "version": self._version,
            "allow_auto_truncate": self._truncates,
            "enable_deterministic_inference": self._seeds,
            "incremental_streaming_output": self._incremental,
            "tokenizer_worker_num": self._workers,
            "speculative_algorithm": "EAGLE" if self._reserved else None,
            "speculative_eagle_topk": 1 if self._reserved else None,
            "speculative_num_steps": self._reserved - 1 if self._reserved else None,
            "speculative_num_draft_tokens": self._reserved or None,
            "nnodes": 1,
            "internal_states": [{"weight_version": self.player.label}],
            **self._settings,
        }
        return web.json_response(told)

    async def _models(self, _: web.Request) -> web.Response:
        base = {"id": self.model, "parent": None, "max_model_len": self.player.max_model_len}
        loaded = [{"id": name, "parent": self.model, "max_model_len": None} for name in self._adapters]
        return web.json_response({"object": "list", "data": [base, *loaded]})

    async def _metrics(self, _: web.Request) -> web.Response:
        labels = f'{{engine_type="unified",model_name="{self.model}"}}'
        gauges = {"running": self.player.running, "queue": self.player.waiting}
        lines = (f"sglang:num_{name}_reqs{labels} {float(count)}\n" for name, count in gauges.items())
        return web.Response(text="".join(lines))


def _finish(told: _Told, step: Step) -> dict[str, Any] | None:
    """SGLang names the token that ended it, if that is the model's own end, too."""
    match step.finish:
        case None:
            return None
        case "length":
            return {"type": "length", "length": told.ask.max_tokens}
        case "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    reason = step.stop_reason
    return {"type": "stop", "matched": told.ids[-1] if reason is None and told.ids else reason}


async def _events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def _error(status: int, message: str, retry_after: str | None = None) -> web.Response:
    """A ValueError of SGLang's is the first shape, an HTTPException the second."""
    headers = {"Retry-After": retry_after} if retry_after else None
    said: dict[str, Any] = {"error": {"message": message}}
    if status != 400:
        said = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}
    return web.json_response(said, status=status, headers=headers)
