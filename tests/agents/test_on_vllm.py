"""Claude Code, Codex and qwen-code, unmodified, on a real vLLM: three turns with tools are one branch, with its ids.

The model is made by hand (caller_model.py): no trained one that is small enough to be here can do these agents' tasks.
Sampling, windows, chunked prefill, prefix caching, logprobs and streaming are vLLM's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandgate.contract.trajectory import from_json
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.load import load_codec
from tests.agents.caller_model import WINDOW, caller_model
from tests.agents.launch import launched
from tests.agents.node_table import NODE_AGENTS
from tests.agents.real_agent import PROMPT
from tests.e2e.truth import check
from tests.support import vllm as served
from tests.support.gateway import gateway
from tests.support.recorder import Generation, Recorder
from tests.support.vllm import Vllm, another

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.endurance, pytest.mark.timeout(400)]

LETTERS = {"Claude Code": "가", "Codex": "하", "qwen-code": "ก"}
"""In the task: the model sees by it whose tools there are. No prompt of these agents has their first bytes."""
FINAL = "It says kiwi."
FLAGS = [str(WINDOW) if flag == "4096" else flag for flag in served.FLAGS]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """A real engine with a long window, and the model."""
    calls = {letter: _calls(name) for name, letter in LETTERS.items()}
    folder = caller_model(tmp_path_factory.mktemp("caller") / "model", calls, FINAL)
    with another(FLAGS, model=folder) as vllm:
        yield vllm


def _calls(name: str) -> tuple[str, str]:
    """Without the tokens around them."""
    first, second = (
        said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>") for said in NODE_AGENTS[name].calls
    )
    return first, second


def told_by_the_engine(one: Generation) -> int:
    """Tokens of the prompt, as vLLM counts them."""
    events = [json.loads(line[6:]) for line in one.body.decode().splitlines() if line.startswith("data: {")]
    (said,) = {event["usage"]["prompt_tokens"] for event in events if event.get("usage")}
    return int(said)


@pytest.mark.parametrize("name", LETTERS)
async def test_an_agents_turns_are_what_the_engine_saw_and_sampled(
    caller: Vllm, name: str, tmp_path: Path
) -> None:
    (work := tmp_path / "work").mkdir()
    (work / "a.txt").write_text("kiwi\n")
    async with Recorder(caller.url) as books:
        engine = await VllmEngine.connect([books.url], model=caller.model, logprobs_mode="processed_logprobs")
        codec = load_codec(caller.folder, renderer="template")
        async with gateway(engine, model=codec) as g:
            g.core.turns.told_window = WINDOW
            session = await g.session()
            ended = await launched(
                NODE_AGENTS[name], session, tmp_path, work, prompt=f"{PROMPT} {LETTERS[name]}", within_s=300
            )
            assert ended.code == 0, ended.tail
            assert FINAL in ended.out, ended.tail
            turns = await g.tree(session)
            (row,) = map(from_json, await g.finalize(session))
        assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
        assert [(turn["role"], turn["notes"], turn["finish"]) for turn in turns] == [("main", [], "stop")] * 3
        assert row.main
        generations = check([row], books.generations)
        assert len(generations) == len(books.generations) == 3, "the engine was asked for nothing else"
        assert len(generations[0].prompt) > 10_000, "a real agent's prompt"
        lengths = [len(one.prompt) for one in generations]
        assert [turn["prompt_tokens"] for turn in turns] == lengths
        assert [told_by_the_engine(one) for one in generations] == lengths
        sampled = [logprob for logprob, own in zip(row.response_logprobs, row.loss_mask, strict=True) if own]
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in sampled)
        assert sum(logprob < -0.1 for logprob in sampled) >= 3, "each turn began with a word by chance"
