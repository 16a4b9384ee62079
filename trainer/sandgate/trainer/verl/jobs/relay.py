"""verl's inference servers behind vLLM's wire: what gateways that are not Ray's, pods or processes, are told as engine.

Ids go in; ids, logprobs and the version that sampled them come out. Everything goes through verl's own client, so that
verl balances, pauses for weight updates, uses its LoRA adapter, and says which weights sampled. verl's servers have an
HTTP port too, but its answers name no version, it takes turns during a weight update, and verl's balancer does not
count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import orjson
from aiohttp import web

from sandgate.gateway.engine.logprobs import ASKS, BELIEVED

BODY_BYTES_MAX = 64 << 20
"""Of a request: a prompt of some million ids."""
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "stop", "stop_token_ids",
)  # fmt: skip
"""Parameters that verl's servers take as they are."""
NO_SERVER = "No available servers"
"""In what verl's balancer raises while hybrid servers are taken out for a weight update."""
PAUSED = "generation is paused: verl updates the weights of its servers"
"""vLLM's words for it, at which a gateway waits and tries again."""
ABORTED = ("aborted", "abort")
"""verl's stop reasons for a generation that an update cut."""


class _Params(msgspec.Struct):
    max_tokens: int = 16
    logprobs: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: dict[str, Any] | None = None


class _Generate(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Params
    stream: bool = False
    model: str | None = None
    content_parts: list[Any] = []


class Relay:
    """One of them, in a Ray actor (`relay_actor`). It has as many addresses as verl had servers when it started: a
    gateway keeps a group at one address, and each address has a sticky id at verl's balancer."""

    def __init__(
        self, client: Any, *, model: str, max_model_len: int, host: str = "", unique_ids: bool = False
    ) -> None:
        """`client`: verl's LLMServerClient. `host`: what gateways reach this node by; empty: its address in Ray.
        `unique_ids`: verl hands ids of requests on to vLLM (full_determinism), which takes none twice."""
        from verl.workers.rollout.llm_server import LLMServerClient  # type: ignore[import-not-found]

        # Not verl's resuming client: a gateway resumes what an update cut, and so knows the version of each piece.
        self.client = LLMServerClient(client.config, client._load_balancer)
        self.model, self.max_model_len, self.unique_ids = model, max_model_len, unique_ids
        self._host = host
        self._runner: web.AppRunner | None = None
        self._urls: list[str] = []

    async def start(self) -> list[str]:
        """Serve; base URLs. Idempotent."""
        if self._urls:
            return self._urls
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/{slot}/inference/v1/generate", self._generate),
                web.post("/{slot}/inference/v1/abort_requests", self._fine),
                web.get("/{slot}/health", self._fine),
                web.get("/{slot}/version", self._version),
                web.get("/{slot}/v1/models", self._models),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, self._host or _node_address(), 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        slots = max(1, len(await self.client._load_balancer.get_all_servers.remote()))
        self._runner, self._urls = runner, [f"http://{host}:{port}/{slot}" for slot in range(slots)]
        return self._urls

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner, self._urls = None, []

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        name = request.headers.get("X-Request-Id") or ""
        try:
            asked = msgspec.json.decode(await request.read(), type=_Generate)
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        if asked.model not in (None, self.model):
            return _error(404, f"The model `{asked.model}` does not exist.")
        if why := _unable(asked, name):
            return _error(400, why)
        sticky = name if self.unique_ids else f"sandgate-{id(self)}-{request.match_info['slot']}"
        try:
            output = await self.client.generate(
                sticky, prompt_ids=asked.token_ids, sampling_params=sampling_of(asked.sampling_params)
            )
        except Exception as error:  # noqa: BLE001 - whatever Ray raises: nothing was sampled
            if NO_SERVER in str(error):
                return _error(503, PAUSED)
            return _error(502, f"verl's inference client: {type(error).__name__}: {error}")
        if not output.token_ids and output.stop_reason in ABORTED:
            return _error(503, PAUSED)
        return await _told(request, answer_of(output, asked.sampling_params), stream=asked.stream)

    async def _fine(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "verl"})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": self.max_model_len}]})


def _unable(asked: _Generate, name: str) -> str:
    """What verl's client does not carry; empty: nothing."""
    if name.startswith(ASKS):
        return f"verl's client gives no alternatives: {BELIEVED}"
    if asked.content_parts:
        return "verl's engine client takes no images from a gateway"
    if asked.sampling_params.structured_outputs is not None:
        return "verl's engine client takes no grammar"
    return "verl's engine client gives no top_logprobs" if asked.sampling_params.logprobs else ""


def sampling_of(params: _Params) -> dict[str, Any]:
    """As verl's servers take it."""
    chosen = {name: getattr(params, name) for name in SAMPLING}
    found = {name: value for name, value in chosen.items() if value is not None}
    return found | {"logprobs": True, "max_tokens": params.max_tokens}


def answer_of(output: Any, params: _Params) -> dict[str, Any]:
    """verl's TokenOutput as vLLM's answer, its version as the label of all tokens. Without one, tokens are of the
    version that gateways were told."""
    ids, logprobs = list(output.token_ids), list(output.log_probs or ())
    known: Mapping[str, Any] = output.extra_fields
    version = known.get("global_steps")
    finish, reason = _finish(output.stop_reason, ids, params)
    choice = {
        "index": 0,
        "token_ids": ids,
        "logprobs": {
            "content": [
                {"token_id": token, "logprob": number} for token, number in zip(ids, logprobs, strict=False)
            ]
        },
        "finish_reason": finish,
        "stop_reason": reason,
    }
    if version is not None:
        choice["weight_versions"] = [{"version": int(version), "start": 0, "end": len(ids)}]
    cached = int(known.get("num_cached_tokens") or 0)
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}


def _finish(said: str | None, ids: Sequence[int], params: _Params) -> tuple[str, int | None]:
    if ids and ids[-1] in (params.stop_token_ids or ()):
        return "stop", ids[-1]
    if said in ABORTED:
        return "abort", None
    return ("length" if len(ids) >= params.max_tokens else "stop"), None


async def _told(request: web.Request, answer: dict[str, Any], *, stream: bool) -> web.StreamResponse:
    """In one piece, which verl gives at once; as a stream too, where that was asked for."""
    if not stream:
        return web.Response(body=orjson.dumps(answer), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    choices, usage = {"choices": answer["choices"]}, {"choices": [], "usage": answer["usage"]}
    for event in (choices, usage):
        await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message[:2_000], "code": status}}, status=status)


def _node_address() -> str:
    import ray  # type: ignore[import-not-found]

    return str(ray.util.get_node_ip_address())


def relay_actor(client: Any, *, spread: bool, **told: Any) -> Any:
    """A Ray actor with a Relay. `spread`: over the nodes, where there are several relays."""
    import ray

    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": CALLS}
    if spread:
        options["scheduling_strategy"] = "SPREAD"
    return ray.remote(Relay).options(**options).remote(client, **told)


CALLS = 1_000
"""Of the actor at once; turns come by HTTP, and not as calls."""


def close(relays: Sequence[Any]) -> None:
    """Close them, and end their actors."""
    import ray

    for relay in relays:
        with suppress(Exception):  # one that died has closed its port
            ray.get(relay.stop.remote())
        ray.kill(relay)
