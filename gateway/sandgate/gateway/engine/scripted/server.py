"""The scripted engine behind vLLM's wire, so that the same client code and the same tests meet both.

    python -m sandgate.gateway.engine.scripted.server --port 8000 --model-dir DIR --script replies.jsonl

Each line of the script is a JSON string (text of a reply) or an object with `text` or `ids`, and optionally `finish`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import orjson
from aiohttp import web

from sandgate.contract.errors import SandgateError
from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.logprobs import ASKS
from sandgate.gateway.engine.responses import Step
from sandgate.gateway.engine.scripted.script import Ask, Broken, Player, Reply, ScriptedRefusal
from sandgate.gateway.engine.scripted.serving import ScriptedServing
from sandgate.gateway.engine.wire import ABORT_PREFIX
from sandgate.gateway.journal.top_logprobs import Top
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.sources import data_of
from sandgate.gateway.media.vision import Vision

Shape = Callable[[Step], dict[str, Any]]

NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Params(msgspec.Struct):
    max_tokens: int = 16
    logprobs: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] = []
    allowed_token_ids: list[int] = []


class _ContentPart(msgspec.Struct):
    type: str
    url: str


class _Generate(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Params
    stream: bool = False
    model: str | None = None
    content_parts: list[_ContentPart] = []
    return_token_ids: bool = False


class _Adapter(msgspec.Struct):
    lora_name: str
    lora_path: str = ""


class _Completion(_Params):
    prompt: list[int] = []
    stream: bool = False
    model: str | None = None
    return_weight_versions: bool = False


class ScriptedServer(ScriptedServing):
    """`async with ScriptedServer(player) as server: server.url`. A port of 0 is any free one."""

    def __init__(
        self,
        player: Player,
        *,
        model: str = "scripted",
        host: str = "127.0.0.1",
        port: int = 0,
        version: str = "0.32.0",
        generate_open: bool = True,
        old_logprobs: bool = False,
        versions: bool = True,
        completion_versions: bool = False,
        dev_mode: bool = True,
        lora_rank: int = 16,
        lora_targets: Sequence[str] = (),
        vision: Vision | None = None,
    ) -> None:
        """`generate_open` False: as vLLM without --enable-scale-out. `old_logprobs`: the shape up to 0.31.
        `versions` False: no weight_versions in answers. `completion_versions`: /v1/completions tells them where a
        request asks for it, as 0.33's. `dev_mode` False: no controls, as without
        VLLM_SERVER_DEV_MODE=1. `lora_rank`: the largest of an adapter; 0: none can be loaded, as without
        VLLM_ALLOW_RUNTIME_LORA_UPDATING. `lora_targets`: what --lora-target-modules names; empty: it is not given.
        `vision`: of a model that takes images."""
        super().__init__(player, model=model, host=host, port=port)
        self._version = version
        self._open, self._old, self._versions, self._dev = generate_open, old_logprobs, versions, dev_mode
        self._completion_versions = completion_versions
        self._vision, self._rank, self._targets = vision, lora_rank, lora_targets
        self._name = 0
        self.load_status = 200
        """What a reload of weights is answered with."""
        self.clears = True
        """False: the prefix cache is not cleared, as while blocks of it are held."""

    def routes(self) -> list[web.RouteDef]:
        """See `ScriptedServing.routes`."""
        return [
            web.post("/inference/v1/generate", self._generate),
            web.post("/v1/completions", self._complete),
            web.post("/inference/v1/abort_requests", self._abort),
            web.get("/health", self._health),
            web.get("/version", self._tell_version),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._metrics),
            *(self._controls() if self._dev else ()),
            *(self._lora() if self._rank else ()),
        ]

    def _controls(self) -> list[web.RouteDef]:
        return [
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.get("/is_paused", self._is_paused),
            web.post("/update_weight_version", self._update_version),
            web.get("/weight_info", self._weight_info),
            web.get("/server_info", self._server_info),
            web.post("/reset_prefix_cache", self._reset_prefixes),
            web.post("/collective_rpc", self._load),
        ]

    def _lora(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/load_lora_adapter", self._load_adapter),
            web.post("/v1/unload_lora_adapter", self._unload_adapter),
        ]

    # -- sampling -----------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self._open:
            return _error(403, "generate needs --enable-scale-out")
        try:
            asked = msgspec.json.decode(await request.read(), type=_Generate)
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        if asked.model not in (None, self.model, *self.player.adapters):
            return _error(404, f"The model `{asked.model}` does not exist.")
        try:
            ids, images, pictures = self._see(asked)
        except (SandgateError, ValueError) as error:
            return _error(400, str(error))
        told: dict[str, Any] = {}
        if asked.return_token_ids:
            told = {"prompt_token_ids": list(ids), "mm_placeholders": images or None}
        return await self._answer(
            request,
            ids,
            asked.sampling_params,
            asked.stream,
            self._as_generate,
            told,
            pictures,
            adapter="" if asked.model in (None, self.model) else asked.model,
        )

    def _see(self, asked: _Generate) -> tuple[Ids, dict[str, list[dict[str, int]]], list[bytes]]:
        """The prompt with a placeholder for each patch of the pictures, where these are, and the pictures: as vLLM's
        processor makes it. Raises ValueError, BadRequest."""
        ids = array("i", asked.token_ids)
        if not asked.content_parts:
            return ids, {}, []
        known = ("image_url", "video_url") if self._vision and self._vision.video else ("image_url",)
        if self._vision is None or any(part.type not in known for part in asked.content_parts):
            raise ValueError("this model does not support such content_parts")
        shown = [_shown(self._vision, part) for part in asked.content_parts]
        ids, spans = expand(ids, self._vision, shown)
        seen = [png for picture in shown for png in (picture.frames or (picture.png,))]
        told = [{"offset": span.start, "length": span.length} for span in spans]
        kinds = ["video" if picture.frames else "image" for picture in shown]
        return (
            ids,
            {
                kind: [at for at, its in zip(told, kinds, strict=True) if its == kind]
                for kind in sorted({*kinds})
            },
            seen,
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = msgspec.json.decode(await request.read(), type=_Completion)
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        if self.player.max_new_tokens:
            asked.max_tokens = min(asked.max_tokens, self.player.max_new_tokens)
        tells = self._completion_versions and asked.return_weight_versions
        shape = self._as_completion if tells else self._as_unversioned
        return await self._answer(request, asked.prompt, asked, asked.stream, shape)

    async def _answer(
        self,
        request: web.Request,
        ids: Sequence[int],
        params: _Params,
        stream: bool,
        shape: Shape,
        told: Mapping[str, Any] = NOTHING,
        pictures: Sequence[bytes] = (),
        adapter: str = "",
    ) -> web.StreamResponse:
        if not ids:
            return _error(400, "the prompt has no tokens")
        self._name += 1
        stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
        ask = Ask(
            request_id=request.headers.get("X-Request-Id") or f"scripted-{self._name}",
            ids=array("i", ids),
            max_tokens=params.max_tokens,
            stop_ids=params.stop_token_ids,
            stop=stop,
            top=params.logprobs or 0,
            pictures=pictures,
            adapter=adapter,
            allowed=params.allowed_token_ids,
        )
        try:
            if ask.request_id.startswith(ASKS):
                return self._told(ask, await self.player.measured(ask), shape, told)
            async with aclosing(self.player.play(ask)) as steps:
                if stream:
                    return await self._stream(request, steps, shape, told)
                return await self._whole(ask, steps, shape, told)
        except ScriptedRefusal as error:
            headers = {"Retry-After": error.retry_after} if error.retry_after else None
            return web.Response(
                body=error.body, status=error.status, headers=headers, content_type="application/json"
            )
        except Broken:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

    async def _whole(
        self, ask: Ask, steps: AsyncGenerator[Step, None], shape: Shape, told: Mapping[str, Any]
    ) -> web.Response:
        whole = Step()
        top: list[Top] = []
        async for step in steps:
            whole.ids.extend(step.ids)
            whole.logprobs.extend(step.logprobs)
            top.extend(step.top)
            whole.finish, whole.stop_reason, whole.labels = step.finish, step.stop_reason, step.labels
        whole.top = tuple(top)
        return self._told(ask, whole, shape, told)

    def _told(self, ask: Ask, whole: Step, shape: Shape, told: Mapping[str, Any]) -> web.Response:
        usage = {"prompt_tokens": len(ask.ids), "completion_tokens": len(whole.ids)}
        body = {
            "request_id": ABORT_PREFIX + ask.request_id,
            "usage": usage,
            "choices": [shape(whole)],
            **told,
        }
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _stream(
        self,
        request: web.Request,
        steps: AsyncGenerator[Step, None],
        shape: Shape,
        told: Mapping[str, Any],
    ) -> web.StreamResponse:
        refused: ScriptedRefusal | None = None
        try:
            step = await anext(steps, None)
        except ScriptedRefusal as error:
            if not error.comes_late:
                raise
            step, refused = None, error
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if refused is not None:
            await response.write(b"data: " + refused.body + b"\n\n")
        while step is not None:
            await response.write(b"data: " + orjson.dumps({"choices": [shape(step)], **told}) + b"\n\n")
            told = NOTHING
            try:
                step = await anext(steps, None)
            except ScriptedRefusal as error:
                await response.write(b"data: " + error.body + b"\n\n")
                break
        await response.write(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n')
        await response.write_eof()
        return response

    def _as_generate(self, step: Step) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for at, logprob in enumerate(step.logprobs):
            entry = {**self._named(step.ids[at]), "logprob": logprob, "rank": 1}
            entry["top_logprobs"] = [
                {**self._named(token), "logprob": p} for token, p in (step.top[at] if step.top else ())
            ]
            content.append(entry)
        return {**self._common(step), "logprobs": {"content": content}}

    def _named(self, token: int) -> dict[str, Any]:
        return {"token": f"token_id:{token}", "bytes": None} if self._old else {"token_id": token}

    def _as_completion(self, step: Step) -> dict[str, Any]:
        tops = [{f"token_id:{token}": p for token, p in top} for top in step.top]
        columns = {"token_logprobs": list(step.logprobs), "top_logprobs": tops or None}
        return {**self._common(step), "text": "", "logprobs": columns}

    def _as_unversioned(self, step: Step) -> dict[str, Any]:
        choice = self._as_completion(step)
        del choice["weight_versions"]
        return choice

    def _common(self, step: Step) -> dict[str, Any]:
        labels = None
        if self._versions and step.labels is not None:
            labels = [{"version": v, "start": start, "end": end} for v, start, end in step.labels]
        return {
            "index": 0,
            "token_ids": list(step.ids),
            "finish_reason": step.finish,
            "stop_reason": step.stop_reason,
            "weight_versions": labels,
        }

    # -- control ------------------------------------------------------------------------------------------------

    async def _abort(self, request: web.Request) -> web.Response:
        for name in (await request.json()).get("request_ids", []):
            if name.startswith(ABORT_PREFIX):  # a bare id is taken and does nothing, as in vLLM
                self.player.abort(name.removeprefix(ABORT_PREFIX))
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return _error(400, f"mode is abort, wait or keep, not {mode!r}")
        self.player.pause(mode)
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.player.resume()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.player.paused})

    async def _update_version(self, request: web.Request) -> web.Response:
        self.player.label = str((await request.json())["new_version"])
        return web.json_response({"success": True, "new_version": self.player.label})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.player.label})

    async def _server_info(self, _: web.Request) -> web.Response:
        lora = {"target_modules": [*self._targets] or None} if self._rank else None
        return web.json_response({"vllm_config": {"lora_config": lora}})

    async def _reset_prefixes(self, _: web.Request) -> web.Response:
        if not self.clears:
            return web.json_response({"success": False})
        self.player.prefixes.clear()
        return web.json_response({"success": True})

    async def _load(self, _: web.Request) -> web.Response:
        status = self.load_status
        return web.json_response({}) if status == 200 else _error(status, "the weights cannot be loaded")

    async def _health(self, _: web.Request) -> web.Response:
        if self.mute is not None:
            await self.mute.wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _tell_version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self._version})

    async def _models(self, _: web.Request) -> web.Response:
        window = self.player.max_model_len
        served: list[dict[str, Any]] = [{"id": self.model, "max_model_len": window}]
        served += [
            {"id": name, "parent": self.model, "root": at} for name, at in self.player.adapters.items()
        ]
        return web.json_response({"object": "list", "data": served})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=_Adapter)
        if asked.lora_name in self.player.adapters:
            return _error(400, f"The lora adapter '{asked.lora_name}' has already been loaded.")
        config = Path(asked.lora_path) / "adapter_config.json"
        if not await asyncio.to_thread(config.is_file):
            return _error(404, f"No adapter found for {asked.lora_name} at {asked.lora_path}")
        rank = int(json.loads(await asyncio.to_thread(config.read_bytes))["r"])
        if rank > self._rank:
            return _error(500, f"LoRA rank {rank} is greater than max_lora_rank {self._rank}.")
        self.player.adapters[asked.lora_name] = asked.lora_path
        return web.Response(text="Success")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=_Adapter)
        if self.player.adapters.pop(asked.lora_name, None) is None:
            return _error(404, f"The lora adapter '{asked.lora_name}' cannot be found.")
        return web.Response(text="Success")

    async def _metrics(self, _: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        told = {
            "num_requests_running": self.player.running,
            "num_requests_waiting": self.player.waiting,
            "prefix_cache_queries_total": self.player.prefixes.queries,
            "prefix_cache_hits_total": self.player.prefixes.hits,
        }
        return web.Response(text="".join(f"vllm:{name}{labels} {float(told[name])}\n" for name in told))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def _lines(path: Path) -> list[Reply]:
    """Replies of a script file. Raises ValueError naming the line."""
    replies = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        try:
            told = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        if isinstance(told, str):
            replies.append(Reply(told))
        elif isinstance(told, dict) and ("text" in told or "ids" in told):
            replies.append(
                Reply(told["text"] if "text" in told else told["ids"], finish=told.get("finish", "stop"))
            )
        elif told is not None:
            raise ValueError(f"{path}:{number}: want a string, or an object with text or ids")
    if not replies:
        raise ValueError(f"{path}: no replies")
    return replies


async def _serve(args: argparse.Namespace) -> None:
    from sandgate.gateway.tokens.load import find_folder, read_checkpoint

    checkpoint = read_checkpoint(find_folder(args.model_dir))
    player = Player(
        _lines(args.script),
        encode=checkpoint.vocab.encode,
        decode=checkpoint.vocab.decode,
        eos_ids=checkpoint.eos_ids,
        max_model_len=args.max_model_len,
        vocab_size=checkpoint.vocab.size,
        token_s=args.token_ms / 1000,
        slots=args.max_num_seqs,
        cache_blocks=args.cache_blocks,
    )
    player.logprobs_mode = args.logprobs_mode
    vision = checkpoint.vision if isinstance(checkpoint.vision, Vision) else None
    async with ScriptedServer(
        player, model=args.served_model_name, host=args.host, port=args.port, vision=vision
    ) as server:
        print(json.dumps({"listening": server.url}), flush=True)  # noqa: T201 - the caller waits for this line
        await asyncio.Event().wait()


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted. Exit code 2 for a script or model that cannot be read."""
    parser = argparse.ArgumentParser(prog="scripted_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 = any free one")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--served-model-name", default="scripted")
    parser.add_argument("--script", type=Path, required=True, help="JSON lines")
    parser.add_argument("--max-model-len", type=int, default=32_768, help="tokens")
    parser.add_argument("--token-ms", type=float, default=0.0, help="milliseconds per token")
    parser.add_argument("--max-num-seqs", type=int, default=0, help="generations at once; 0 = no limit")
    parser.add_argument(
        "--cache-blocks", type=int, default=0, help="of 16 tokens, in the prefix cache that /metrics counts"
    )
    parser.add_argument(
        "--logprobs-mode",
        default="processed_logprobs",
        help="what a measurement finds, as vLLM's flag of this name",
    )
    args = parser.parse_args(argv)
    try:
        asyncio.run(_serve(args))
    except (SandgateError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())


def _shown(vision: Vision, part: _ContentPart) -> Picture:
    """An image or a video as vLLM's processor sees it, which resizes nothing that has its size."""
    head, _, data = part.url.partition(",")
    pngs = [data_of(f"{head},{one}") for one in data.split(",")]
    wide, high = (int.from_bytes(pngs[0][at : at + 4]) for at in (16, 20))  # of PNG's first chunk
    size: dict[str, Any] = {"digest": b"", "width": wide, "height": high}
    if part.type == "image_url" or vision.video is None:
        return Picture(**size, grid=vision.rule.grid(wide, high), png=pngs[0])
    return Picture(**size, grid=vision.video.grid(len(pngs), wide, high), png=b"", frames=tuple(pngs))
