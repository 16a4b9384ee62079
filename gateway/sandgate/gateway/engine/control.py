"""Weight updates of vLLM servers (VLLM_SERVER_DEV_MODE=1): pause, reload, label, resume, on all replicas at once.

A swap, measured at 0.06-0.09 s for a tiny model, in the middle of a generation too:

    pause("keep") -> reload_weights(path) -> update_weight_version("step-8") -> reset_prefix_cache() -> resume()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar

import msgspec
import orjson

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine.transport import Lost, Transport
from sandgate.gateway.engine.wire import no_such_path, words_of

CONTROL_S = 300.0
"""Time-out of one step in seconds: `wait` drains long generations, and hundreds of GB take minutes to load."""


T = TypeVar("T")


class _Paused(msgspec.Struct):
    is_paused: bool


class _Reset(msgspec.Struct):
    success: bool = True


class _Named(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    """Of an adapter: the model."""


class _Models(msgspec.Struct):
    data: list[_Named]


class _Info(msgspec.Struct):
    weight_version: str


class _Lora(msgspec.Struct):
    target_modules: list[str] | None = None


class _Config(msgspec.Struct):
    lora_config: _Lora | None = None


class _ServerInfo(msgspec.Struct):
    vllm_config: _Config


class Answered(EngineFailed):
    """The server answered with another status than 200. With a 5xx it may have done a part."""

    def __init__(self, path: str, status: int, body: bytes) -> None:
        super().__init__(f"{path} answers {status}: {words_of(body)}")
        self.code, self.body = status, body


class ReplicaControl:
    """Every method acts on all replicas at once, and raises if one of them did not do it: EngineUnavailable if it does
    not answer, EngineFailed if it refuses. Then the replicas may disagree; `resume` is safe to repeat."""

    missing: ClassVar[str] = ""
    """What to do about an endpoint that is not there."""
    doubtful: ClassVar[str] = "start it anew"
    """What to do about a server whose weights nobody knows."""

    def __init__(self, urls: Sequence[str], *, api_key: str = "") -> None:
        self.urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._http = Transport(api_key=api_key, reuse=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes connections."""
        await self._http.aclose()

    async def _get(self, path: str, kind: type[Any]) -> list[Any]:
        try:
            return [msgspec.json.decode(body, type=kind) for body in await self._all("GET", path)]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineFailed(f"{path}: {error}") from error

    async def _all(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        params: dict[str, str] | None = None,
    ) -> list[bytes]:
        """Every replica's answer, in order; all are asked even if one fails."""
        return await self._each(lambda url: self._ask(method, url, path, body, params))

    async def _each(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """What each replica says to it, in order; all are asked even if one fails."""
        results = await asyncio.gather(*map(ask, self.urls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _load(self, path: str, body: dict[str, Any]) -> None:
        """EngineFailed: it was refused, and the old weights are there."""
        await self._each(lambda url: self._load_one(url, path, body))

    async def _load_one(self, url: str, path: str, body: dict[str, Any]) -> None:
        try:
            await self._ask("POST", url, path, body)
        except Answered as error:
            if await self._has_the_old(url, error):
                raise
            raise EngineUnavailable(
                f"{error}; nobody knows what weights it has now: {self.doubtful}"
            ) from error

    async def _has_the_old(self, url: str, error: Answered) -> bool:
        """Whether a server that answers a load so is known to have its old weights. One that fails at it has them half
        loaded: vLLM 0.32 takes every layer's weights away before it reads the first new one, and does not undo it."""
        return error.code < 500

    async def _ask(
        self,
        method: str,
        url: str,
        path: str,
        body: dict[str, Any] | None = None,
        params: dict[str, str] | None = None,
    ) -> bytes:
        packed = None if body is None else orjson.dumps(body)
        try:
            answer = await self._http.ask(method, url + path, body=packed, params=params, timeout_s=CONTROL_S)
        except Lost as error:
            raise EngineUnavailable(f"{url}{path}: {error}") from error
        if no_such_path(answer.status, answer.body):
            raise EngineFailed(f"{url}{path}: no such endpoint{self.missing}")
        if answer.status != 200:
            raise Answered(url + path, answer.status, answer.body)
        return answer.body


class EngineControl(ReplicaControl):
    """vLLM servers."""

    missing = "; start vLLM with VLLM_SERVER_DEV_MODE=1"

    async def pause(self, mode: Literal["abort", "wait", "keep"] = "keep") -> None:
        """Pauses generation. Mode abort: running generations end now (the gateway resumes them); wait: they finish
        first; keep: they freeze, and go on after `resume` with the new weights."""
        await self._all("POST", "/pause", params={"mode": mode})

    async def resume(self) -> None:
        """Lets the engines generate again."""
        await self._all("POST", "/resume")

    async def is_paused(self) -> list[bool]:
        """Whether each replica is paused."""
        return [each.is_paused for each in await self._get("/is_paused", _Paused)]

    async def update_weight_version(self, version: int | str) -> None:
        """Sets the label of tokens that are sampled from now on; the engine does not derive it from the weights."""
        await self._all("POST", "/update_weight_version", {"new_version": str(version)})

    async def weight_versions(self) -> list[str]:
        """The label of each replica."""
        return [each.weight_version for each in await self._get("/weight_info", _Info)]

    async def model_folders(self) -> list[str]:
        """Of each replica: what its model was started from, a folder or an id. Reloads do not change it."""
        told = await self._get("/v1/models", _Models)
        return [next((one.root or "" for one in each.data if not one.parent), "") for each in told]

    async def reset_prefix_cache(self) -> None:
        """Drops what old weights computed. Needed after every swap, unless cache salts tell versions apart."""
        path = "/reset_prefix_cache"
        for url, body in zip(self.urls, await self._all("POST", path), strict=True):
            if not _reset(body):
                raise EngineFailed(
                    f"{url}{path}: the cache is not cleared, since something holds blocks of it (a generation that"
                    " runs, a transfer of its KV cache): what old weights computed would be used"
                )

    async def reload_weights(self, path: str) -> None:
        """Loads a checkpoint folder that every replica can read.

        On CPU with tied embeddings vLLM 0.32 leaves the output head at the old weights, silently.
        """
        await self._load("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})


def _reset(body: bytes) -> bool:
    """vLLM answers 200 when it failed, too. Older ones say nothing."""
    try:
        return msgspec.json.decode(body, type=_Reset).success
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True


class AdapterControl(ReplicaControl):
    """LoRA adapters of vLLM servers, under names that a request may have as its model."""

    missing = (
        ": adapters are served by vLLM only, started with --enable-lora and the variable"
        " VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    )

    async def names(self) -> list[frozenset[str]]:
        """What each replica serves: its model, and the adapters that are loaded."""
        return [frozenset(one.id for one in each.data) for each in await self._get("/v1/models", _Models)]

    async def load(self, name: str, path: str) -> None:
        """Loads a folder that every replica can read, and goes on reading while anything is sampled by it: vLLM keeps
        few adapters in memory. A name that is taken is refused. Meanwhile generations go on."""
        await self._all("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def target_modules(self) -> list[tuple[str, ...]]:
        """What `--lora-target-modules` of each replica names: other layers of an adapter it passes over without a word.
        Empty: all. Raises EngineFailed for one that does not tell: it has no dev mode, or (vLLM 0.32) no pip."""
        path = "/server_info"
        asked = await self._all("GET", path, params={"config_format": "json"})
        try:
            told = [msgspec.json.decode(body, type=_ServerInfo).vllm_config.lora_config for body in asked]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineFailed(f"{path}: {error}") from error
        return [tuple((one.target_modules if one is not None else None) or ()) for one in told]

    async def unload(self, name: str) -> None:
        """No further request finds it. Generations that run end by it, so its folder stays until then."""
        await self._all("POST", "/v1/unload_lora_adapter", {"lora_name": name})
