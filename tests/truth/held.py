"""What a gateway recorded of one checkpoint, held against transformers' forward pass."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sandgate.contract.trajectory import Trajectory, from_json
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.load import load_codec
from tests.e2e.truth import Parity
from tests.support import vllm as served
from tests.support.gateway import BUY, Agent, gateway
from tests.support.vllm import Vllm, engine_python

PARSING = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
FLAGS = [flag for flag in served.FLAGS if flag not in PARSING]
"""vLLM refuses gpt-oss beside another family's parser; the gateway needs none."""
TEMPERATURES = (1.0, 0.7, 1.3)
"""One a turn."""
MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Held:
    """What was compared."""

    tokens: int
    rows: int
    tools: bool
    """Whether the model was given one."""
    worst: float
    """Largest difference of a natural log."""
    untempered: float
    """The same against a forward pass without the temperatures: what a comparison that proves something can see."""


async def hold(vllm: Vllm) -> Held:
    """Talks with the model that `vllm` serves, through a gateway, and computes every recorded logprob again."""
    codec = load_codec(vllm.folder, renderer="template")
    engine = await VllmEngine.connect([vllm.url], model=vllm.model, logprobs_mode="processed_logprobs")
    tools = [BUY] if not codec.no_tools else []
    async with gateway(engine, model=codec) as running:
        agent = await running.session()
        sampled = await _talk(agent, tools)
        rows = [from_json(row) for row in await running.finalize(agent)]
    with Parity(engine_python(), vllm.folder) as parity:
        told = [one for row in rows for one in _turns(row)]
        right = [parity.logprobs(prompt, ids, temperature) for prompt, ids, _, temperature in told]
        plain = [parity.logprobs(prompt, ids, 1.0) for prompt, ids, _, _ in told]
    recorded = [logprobs for _, _, logprobs, _ in told]
    tokens = sum(sum(row.loss_mask) for row in rows)
    assert tokens == sampled == sum(map(len, recorded)), "every sampled token is in a row, and only those"
    return Held(tokens, len(rows), bool(tools), _worst(recorded, right), _worst(recorded, plain))


async def _talk(agent: Agent, tools: list[Any]) -> int:
    """A few turns, each at its own temperature. How many tokens were sampled."""
    messages: list[Any] = [{"role": "user", "content": "Buy seven kiwis, please."}]
    sampled = 0
    for number, temperature in enumerate(TEMPERATURES):
        more: dict[str, Any] = {"tools": tools} if tools else {}
        body = agent.body(*messages, temperature=temperature, seed=number, max_tokens=MAX_TOKENS, **more)
        answer = await agent.http.post("v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        sampled += said["usage"]["completion_tokens"]
        message = said["choices"][0]["message"]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"}
            for call in message.get("tool_calls") or ()
        ]
        messages.append({"role": "user", "content": "And now?"})
    return sampled


def _turns(row: Trajectory) -> Iterator[tuple[array[int], array[int], array[float], float]]:
    """(prompt, ids, recorded logprobs, temperature) of each turn."""
    for number, end in enumerate(row.turn_ends):
        start = end
        while start and row.loss_mask[start - 1]:
            start -= 1
        start = max(start, row.turn_ends[number - 1] if number else 0)
        yield (
            row.prompt_ids + row.response_ids[:start],
            row.response_ids[start:end],
            row.response_logprobs[start:end],
            float(row.settings(number).sampling["temperature"]),
        )


def _worst(recorded: Sequence[Sequence[float]], computed: Sequence[Sequence[float]]) -> float:
    pairs = zip(chain.from_iterable(recorded), chain.from_iterable(computed), strict=True)
    return max(abs(ours - theirs) for ours, theirs in pairs)
