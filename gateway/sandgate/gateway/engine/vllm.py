"""VllmEngine: vLLM behind the pool: token requests (/inference/v1/generate) or completions, as a server serves them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandgate.contract.errors import EngineFailed
from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine import facts, health, logprobs, logprobs_check, wire
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.dialect import Dialect, Found
from sandgate.gateway.engine.generation import OVER_SAMPLED
from sandgate.gateway.engine.logprobs import Kind
from sandgate.gateway.engine.pool import EnginePool
from sandgate.gateway.engine.responses import Step, read, read_together
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.way import PausedNow, Reader, Request, Shut, Way
from sandgate.gateway.engine.wire import GenerateEndpoint


@dataclass(frozen=True, slots=True)
class VllmReader:
    """See `Reader`. No event needs the one before it."""

    endpoint: GenerateEndpoint
    top: int
    vocab_size: int

    def __call__(self, payload: bytes) -> Step:
        """See `Reader.__call__`."""
        return read(payload, self.endpoint, top=self.top, vocab_size=self.vocab_size, telling=True)

    def together(self, payloads: Sequence[bytes]) -> Iterable[Step]:
        """See `Reader.together`."""
        return read_together(payloads, self.endpoint, top=self.top, vocab_size=self.vocab_size)


@dataclass(frozen=True, slots=True)
class VllmWay:
    """See `Way`."""

    endpoint: GenerateEndpoint = GenerateEndpoint.GENERATE

    @property
    def caps(self) -> bool:
        """See `Way.caps`: by max_new_tokens of the engine's generation config, which the other endpoint only has for
        requests that say no limit."""
        return self.endpoint is GenerateEndpoint.COMPLETIONS

    def request(
        self,
        prompt: Prompt,
        ids: Ids,
        *,
        request_id: str,
        max_tokens: int,
        piece: int = 0,
        stream: bool = False,
        salt: str = "",
        vocab_size: int = 0,
    ) -> Request:
        """See `Way.request`. The id goes in a header."""
        body = wire.body_of(
            self.endpoint, prompt, ids, max_tokens=max_tokens, piece=piece, stream=stream, salt=salt
        )
        return Request(self.endpoint.value, body)

    def reader(self, prompt: Prompt, ids: Ids, *, vocab_size: int) -> Reader:
        """See `Way.reader`."""
        return VllmReader(self.endpoint, prompt.top_logprobs, vocab_size)

    def refused(self, status: int, body: bytes, retry_after: str | None, *, prompt_tokens: int) -> Exception:
        """See `Way.refused`."""
        if self.endpoint is GenerateEndpoint.GENERATE and wire.is_shut(status, body):
            return Shut(VllmWay(GenerateEndpoint.COMPLETIONS))
        if wire.says_paused(status, body):
            return PausedNow()
        return wire.refusal(status, body, retry_after, prompt_tokens=prompt_tokens)

    def abort(self, request_id: str) -> Request | None:
        """See `Way.abort`."""
        if self.endpoint is GenerateEndpoint.COMPLETIONS:
            return None
        return Request("/inference/v1/abort_requests", wire.abort_body(request_id))


class VllmDialect:
    """See `Dialect`."""

    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    serves_adapters = True
    over_sampled = OVER_SAMPLED
    unasked = VllmWay()

    async def probe(self, http: Transport, url: str, *, model: str, logprobs_mode: str) -> Found:
        """See `Dialect.probe`."""
        found = await facts.probe(http, url, model=model, logprobs_mode=logprobs_mode)
        return Found(found.facts, VllmWay(found.endpoint), found.notes, found.unserved)

    async def label_of(self, http: Transport, url: str, way: Way) -> str | None:
        """See `Dialect.label_of`."""
        return await facts.label_of(http, url)

    async def names_of(self, http: Transport, url: str) -> frozenset[str]:
        """See `Dialect.names_of`."""
        return await facts.names_of(http, url)

    async def check(self, http: Transport, url: str) -> health.Probe:
        """See `Dialect.check`."""
        return await health.check(http, url)

    async def measure(self, http: Transport, url: str, way: Way, *, model: str) -> Kind:
        """See `Dialect.measure`."""
        assert isinstance(way, VllmWay)
        return await measure(http, url, way.endpoint, model=model)

    def against(self, kind: Kind, mode: str) -> str:
        """See `Dialect.against`."""
        return logprobs.against(kind, mode)


VLLM: Dialect = VllmDialect()


class VllmEngine(EnginePool):
    """An `Engine` over one or more vLLM servers. Make it with `connect`."""

    dialect = VLLM


async def measure(http: Transport, url: str, endpoint: GenerateEndpoint, *, model: str) -> Kind:
    """The kind of a replica's logprobs. Raises EngineFailed if it refuses the requests or an answer cannot be read,
    EngineUnavailable if it cannot answer now."""
    asking = logprobs.measuring(endpoint, model)
    body, refused = next(asking), None
    while True:
        answer = None
        try:
            answer = await logprobs_check.sampled(http, url, endpoint.value, body)
        except EngineFailed as error:
            refused = error
        try:
            body = asking.send(answer)
        except StopIteration as done:
            kind: Kind = done.value
            if kind == "unclear" and refused is not None:
                raise refused from None
            return kind
