"""What only the real engine can show: its two doors agree, grammars bind, aborts need the prefix."""

from __future__ import annotations

import functools
import json
import re
from array import array
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from sandgate.contract.errors import RefusedByEngine
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Delta, GenerationResult, Prompt
from sandgate.gateway.engine.responses import Step, read
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.wire import GenerateEndpoint, abort_body, body_of, refusal
from sandgate.gateway.tokens.load import read_checkpoint
from tests.gateway.engine.subjects import TRIES, Subject, real
from tests.support.vllm import FLAGS, Vllm, another

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]


@pytest.fixture
async def subject(vllm: Vllm) -> AsyncIterator[Subject]:
    async with real(vllm) as one:
        yield one


@pytest.fixture
async def http() -> AsyncIterator[Transport]:
    one = Transport()
    yield one
    await one.aclose()


SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "seeded": SamplingParams(temperature=1.0, seed=11),
    "shaped": SamplingParams(temperature=1.3, top_p=0.9, top_k=20, min_p=0.01, seed=12),
    "penalised": SamplingParams(
        temperature=1.0, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1, seed=1
    ),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
async def test_both_doors_give_the_same_ids_and_logprobs(
    vllm: Vllm, subject: Subject, http: Transport, sampling: SamplingParams
) -> None:
    steps: list[Step] = []
    for door in GenerateEndpoint:
        prompt = subject.prompt(sampling=sampling, max_tokens=40, ids=array("i", range(20, 60)))
        body = body_of(door, prompt, prompt.ids, max_tokens=prompt.max_tokens)
        answer = await http.ask("POST", vllm.url + door.value, body=body, timeout_s=60)
        assert answer.status == 200, answer.body
        steps.append(read(answer.body, door))
    assert steps[0].ids == steps[1].ids
    assert steps[0].logprobs == pytest.approx(steps[1].logprobs, abs=1e-5)
    assert steps[0].finish == steps[1].finish


SCHEMA = {
    "type": "object",
    "properties": {"item": {"enum": ["kiwi", "plum"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["item", "n"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<tool_call>\n",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "\n</tool_call>",
    },
}
OBJECT = r'\{\s*"item"\s*:\s*"(kiwi|plum)"\s*,\s*"n"\s*:\s*[1-9]\s*\}?'
"""Maybe not closed: JSON grammars allow blanks, and a model that has not learned JSON writes them until its tokens are
used up. (The request's `disable_any_whitespace` is ignored by vLLM 0.32; the server's flag of that name is not.)"""
GRAMMARS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "(yes|no), [0-9]{3}"}, r"(yes|no), [0-9]{3}"),
    "json schema": ({"json": SCHEMA}, OBJECT),
    "json schema as text": ({"json": json.dumps(SCHEMA)}, OBJECT),
    "choice": ({"choice": ["alpha", "beta"]}, r"alpha|beta"),
    "grammar": ({"grammar": 'root ::= "a" ("b" | "c") "d"'}, r"a[bc]d"),
    "structural tag": ({"structural_tag": TAG}, rf"<tool_call>\n{OBJECT}(\n</tool_call>)?"),
}  # fmt: skip


@pytest.mark.parametrize("door", GenerateEndpoint, ids=lambda door: door.name.lower())
@pytest.mark.parametrize(("constraint", "form"), GRAMMARS.values(), ids=GRAMMARS)
async def test_a_grammar_binds(
    vllm: Vllm,
    subject: Subject,
    http: Transport,
    constraint: dict[str, Any],
    form: str,
    door: GenerateEndpoint,
) -> None:
    prompt = subject.prompt(
        constraint=constraint, max_tokens=200, sampling=SamplingParams(temperature=1.0, seed=5)
    )
    body = body_of(door, prompt, prompt.ids, max_tokens=200)
    answer = await http.ask("POST", vllm.url + door.value, body=body, timeout_s=60)
    assert answer.status == 200, answer.body
    step = read(answer.body, door)
    ids = [token for token in step.ids if token not in vllm.eos_ids]
    text = read_checkpoint(vllm.folder).vocab.decode(ids)
    assert re.fullmatch(form, text), text
    assert step.finish == "stop" or text.endswith((" ", "\n"))


ODD = {"type": "array", "items": {"type": "number", "multipleOf": 3}}
"""One that vLLM's `auto` takes to guidance, as xgrammar has no grammar for all of it."""


async def test_no_schema_shuts_other_forms_out(http: Transport) -> None:
    """An engine of its own: it keeps the backend of its first form."""
    with another(FLAGS) as vllm:
        async with real(vllm) as subject:
            for door in GenerateEndpoint:
                for constraint in (
                    {"json": ODD},
                    {"structural_tag": TAG},
                    {"json": SCHEMA},
                    {"json_object": True},
                ):
                    prompt = subject.prompt(constraint=constraint)
                    body = body_of(door, prompt, prompt.ids, max_tokens=4)
                    answer = await http.ask("POST", vllm.url + door.value, body=body, timeout_s=60)
                    assert answer.status == 200, (constraint, answer.body)


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "^("}, {"type": "no such"}], ids=str)
@pytest.mark.parametrize("door", GenerateEndpoint, ids=lambda door: door.name.lower())
async def test_a_schema_that_cannot_be_compiled_is_refused_with_what_to_do(
    vllm: Vllm, subject: Subject, http: Transport, schema: dict[str, Any], door: GenerateEndpoint
) -> None:
    prompt = subject.prompt(constraint={"json": schema})
    body = body_of(door, prompt, prompt.ids, max_tokens=4)
    answer = await http.ask("POST", vllm.url + door.value, body=body, timeout_s=60)
    error = refusal(answer.status, answer.body, None, prompt_tokens=3)
    assert isinstance(error, RefusedByEngine)
    assert "mend the schema" in str(error)


async def test_a_grammar_that_is_cut_starts_again_and_is_whole(subject: Subject) -> None:
    """JSON mode: nothing was told, so the answer is sampled anew, from the grammar's beginning."""
    prompt = subject.prompt(constraint={"regex": "[a-z]{3000}"}, max_tokens=3_500)
    task = await subject.busy(lambda: subject.engine.generate(prompt))
    await subject.pause("abort")
    await subject.resume()
    sample = await task
    text = subject.decode([token for token in sample.ids if token not in (1017, 1015)])
    assert re.fullmatch("[a-z]{3000}", text)
    assert sample.resumed in (0, 1), "0: the pause came after the end"


async def test_an_abort_needs_the_prefix(vllm: Vllm, subject: Subject, http: Transport) -> None:
    url = f"{vllm.url}/inference/v1/abort_requests"
    deltas: list[Delta] = []

    async def generate(prompt: Prompt) -> GenerationResult:
        deltas.clear()  # busy() starts it again where it was done unseen
        return await subject.engine.generate(prompt, deltas.append)

    for _ in range(TRIES):  # the engine may be done before we are
        prompt = subject.endless()
        task = await subject.busy(functools.partial(generate, prompt))
        bare = orjson.dumps({"request_ids": [prompt.request_id]})
        assert (await http.ask("POST", url, body=bare)).status == 200
        ran_on = await subject.running() == 1  # the bare id does nothing
        assert (await http.ask("POST", url, body=abort_body(prompt.request_id))).status == 200
        sample = await task
        assert sum(len(delta.ids) for delta in deltas) == len(sample.ids) == prompt.max_tokens
        if ran_on and sample.resumed == 1:  # aborted by its prefixed id, and taken up again by us
            return
    pytest.fail("never seen running after the bare id, then resumed after the prefixed one")


async def test_siblings_find_the_prompt_in_the_cache(subject: Subject) -> None:
    """--enable-prompt-tokens-details; a block is 128 tokens on CPU. Another version's salt finds nothing."""
    ids = array("i", [at % 1000 for at in range(17, 17 + 400)])
    first = await subject.engine.generate(subject.prompt(ids=ids, max_tokens=2, version=51))
    second = await subject.engine.generate(subject.prompt(ids=ids, max_tokens=2, version=51))
    other = await subject.engine.generate(subject.prompt(ids=ids, max_tokens=2, version=52))
    assert (first.cached_tokens, second.cached_tokens, other.cached_tokens) == (0, 384, 0)
