"""verl's inference servers as a gateway's engine, through its LLMServerClient: ids in, ids and logprobs out."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from sandgate.contract.errors import EngineFailed, EngineUnavailable, Unsupported
from sandgate.gateway.engine.api import Delta, EngineFacts, EngineStatus, Finish, GenerationResult, Prompt
from sandgate.gateway.engine.generation import Generation
from sandgate.gateway.engine.responses import Step
from sandgate.trainer.verl.affinity import sticky_id

URL = "verl://"
COPIED = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip


ABORTED_S = 1.0
"""Between two attempts, in seconds; verl's own wait for a weight update."""
ABORTS_MAX = 240
"""Attempts in a row that its servers abort before their first token: with ABORTED_S between them as long as any other
engine may be paused (`engine.tries.PAUSED_MAX_S`)."""


class VerlEngine:
    """An `Engine` (see the gateway's) over `llm_client.generate`. verl balances and routes; group and session are told
    as the sticky request id, so that a session's turns find their prefix in one server's cache (see `affinity`).

    verl gives no token before the last one, so nothing streams. A weight update aborts its generations; each is taken
    up here, so that every token has the version that it was sampled at. (verl's asynchronous client would do that, too,
    and tell the oldest and the newest version of the whole.) A generation that is cancelled runs to its end at verl's
    server.
    """

    def __init__(
        self,
        client: Any,
        *,
        max_model_len: int,
        vocab_size: int = 0,
        logprobs_mode: str = "processed_logprobs",
        aborted_s: float = ABORTED_S,
    ) -> None:
        """`logprobs_mode`: as verl starts its servers (`rollout.logprobs_mode`). `aborted_s`: from an abort to the next
        attempt."""
        self.client, self.vocab_size, self.aborted_s = client, vocab_size, aborted_s
        self.facts = EngineFacts(name="verl", logprobs_mode=logprobs_mode, max_model_len=max_model_len)
        self._ask = one_attempt(client)
        self._running = 0
        rollout = getattr(
            getattr(getattr(client, "config", None), "actor_rollout_ref", None), "rollout", None
        )
        self._ids_are_unique = bool(getattr(rollout, "full_determinism", False))

    def status(self) -> list[EngineStatus]:
        """verl's servers as one."""
        return [EngineStatus(URL, True, self._running)]

    async def aclose(self) -> None:
        """The servers are verl's."""

    async def generate(
        self, prompt: Prompt, on_delta: Callable[[Delta], None] | None = None
    ) -> GenerationResult:
        """See `Engine.generate`. Raises Unsupported for grammars, alternatives and pictures: verl does not carry them,
        or does not tell which prompt it made of them."""
        if prompt.pictures:
            raise Unsupported("verl's engine client takes no images", field="messages")
        if prompt.constraint is not None or prompt.top_logprobs:
            raise Unsupported("verl's engine client takes no grammar and gives no top_logprobs")
        made = Generation(prompt, told=prompt.version, streams=on_delta is not None)
        self._running += 1
        try:
            aborts = 0
            while made.finish is None:
                aborts = 0 if await self._attempt(prompt, made, on_delta) else aborts + 1
                if aborts > ABORTS_MAX:
                    raise EngineUnavailable(
                        f"verl's servers aborted {aborts} attempts in a row: their weight update does not end",
                        retry_after=5.0,
                    )
        finally:
            self._running -= 1
        return made.sample(URL)

    def _request_id(self, prompt: Prompt) -> str:
        """By it verl chooses the server; with full_determinism vLLM itself gets it, and takes none twice at once."""
        sticky = "" if self._ids_are_unique else sticky_id(prompt.affinity, prompt.session)
        return sticky or prompt.request_id

    async def _attempt(
        self, prompt: Prompt, made: Generation, on_delta: Callable[[Delta], None] | None
    ) -> bool:
        """Whether it came to anything: False if it was aborted before its first token."""
        ids, max_tokens = made.asks()
        try:
            output = await self._ask(
                self._request_id(prompt),
                prompt_ids=ids.tolist(),
                sampling_params=sampling_params(prompt, max_tokens, made.resumed),
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever Ray raises: nothing was sampled
            raise EngineUnavailable(f"verl's inference client: {type(error).__name__}: {error}") from error
        step = step_of(output, prompt, max_tokens)
        step.check(self.vocab_size)
        if step.finish == "abort" and not step.ids:  # its servers abort whatever comes during a weight update
            await asyncio.sleep(self.aborted_s)
            return False
        delta = made.take(step)
        if delta is not None and on_delta is not None:
            on_delta(delta)
        if made.finish == "abort" and made.cut("verl aborted it", told=prompt.version):
            await asyncio.sleep(self.aborted_s)
        return True


def one_attempt(client: Any) -> Callable[..., Awaitable[Any]]:
    """Its `generate`, or that of verl's plain client inside of the asynchronous one, which hides where one version of
    the weights ends and the next begins."""
    plain = next((each for each in type(client).__mro__ if each.__name__ == "LLMServerClient"), None)
    if plain is None or not hasattr(client, "_configured_response_length"):
        return client.generate  # type: ignore[no-any-return]
    return functools.partial(plain.generate, client)  # type: ignore[attr-defined]


def sampling_params(prompt: Prompt, max_tokens: int, piece: int = 0) -> dict[str, Any]:
    """As verl's vLLM server takes them. `piece` > 0: behind an abort, where a seed would draw as at the start."""
    chosen = {name: getattr(prompt.sampling, name) for name in COPIED}
    found: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if "seed" in found:
        found["seed"] += piece
    found |= {"logprobs": True, "max_tokens": max_tokens}
    if prompt.stop_ids:
        found["stop_token_ids"] = list(prompt.stop_ids)
    if prompt.sampling.stop:
        found["stop"] = list(prompt.sampling.stop)
    return found


def step_of(output: Any, prompt: Prompt, max_tokens: int) -> Step:
    """verl's TokenOutput as one step. Raises EngineFailed if it has no logprobs or not one for each token."""
    ids = list(output.token_ids)
    if output.log_probs is None or len(output.log_probs) != len(ids):
        have = "no" if output.log_probs is None else len(output.log_probs)
        raise EngineFailed(f"verl's engine gave {have} logprobs for {len(ids)} tokens")
    known = output.extra_fields
    version = known.get("min_global_steps", known.get("global_steps"))
    finish, reason = _finish(output, ids, prompt, max_tokens)
    return Step(
        ids=array("i", ids),
        logprobs=array("f", output.log_probs),
        finish=finish,
        stop_reason=reason,
        labels=None if version is None else ((int(version), 0, len(ids)),),
        cached_tokens=int(known.get("num_cached_tokens") or 0),
    )


def _finish(output: Any, ids: list[int], prompt: Prompt, max_tokens: int) -> tuple[Finish, int | None]:
    if ids and ids[-1] in prompt.stop_ids:
        return "stop", ids[-1]
    if output.stop_reason in ("aborted", "abort"):
        return "abort", None
    return ("length" if len(ids) >= max_tokens else "stop"), None
