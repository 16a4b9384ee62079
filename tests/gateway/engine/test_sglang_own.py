"""SGLang's own HTTP server and tokenizer manager (its package, on the CPU), with a script in its scheduler's place.

The conformance suite runs on it as on every engine; then what the scripted server answers is compared with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandgate.contract.errors import EngineFailed, RefusedByEngine, SandgateError
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang.control import SglangControl
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.sglang.wire import SglangWay
from tests.gateway.engine.subjects import EOS, VOCABULARY, WINDOW, Subject, babble, own_sglang
from tests.gateway.engine.test_conformance import (  # noqa: F401 - they run here on this file's subjects
    test_a_listener_that_fails_frees_the_engine,
    test_a_prompt_over_the_window_is_refused_with_the_window,
    test_a_stop_id_ends_it_and_is_kept,
    test_a_stream_is_the_sample_and_json_is_the_same,
    test_a_weight_update_in_the_middle_is_seen_token_by_token,
    test_alternatives_are_as_many_as_asked_most_likely_first,
    test_an_answer_of_weights_that_lost_their_label_is_never_the_told_version,
    test_cancelling_frees_the_engine,
    test_cancelling_frees_the_engine_without_a_stream,
    test_ids_logprobs_and_versions_are_aligned,
    test_ids_that_do_not_exist_are_another_tokenizers,
    test_labels_that_nobody_sets_mean_the_told_version,
    test_length_is_exact,
    test_tokens_from_before_the_first_update_are_of_the_initial_version,
    test_weights_that_lost_their_label_are_not_used_until_they_have_one,
)
from tests.support.environments import built, python_of
from tests.support.vllm import DIE_WITH_PARENT

HERE = Path(__file__).parent / "sglang"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": VOCABULARY, "max_position_embeddings": WINDOW, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": EOS[0],
}  # fmt: skip
"""Of a model whose weights nobody loads."""
KINDS = {"sglang": False, "sglang with new tokens only": True}

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It needs half a minute for its imports, of two idle cores."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with contextlib.ExitStack() as stack:
        yield _listening(*_start(stack, folder))


def _start(stack: contextlib.ExitStack, folder: Path) -> tuple[subprocess.Popen[str], Any]:
    packages = built("agent-env.sh", "tests/gateway/engine/sglang")
    assert packages is not None, (
        "scripts/agent-env.sh tests/gateway/engine/sglang was not run: tests/support/needs.py"
    )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SGLANG", "VIRTUAL"))
    }
    env |= {"PYTHONPATH": str(packages / "lib/python3.11/site-packages"), "HF_HUB_OFFLINE": "1"}
    log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
    command = [sys.executable, "-c", DIE_WITH_PARENT, str(python_of("engine-env.sh")), "-W", "ignore"]
    process = subprocess.Popen(
        [*command, str(HERE / "own_server.py"), str(folder), "0"],
        env=env, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
    )  # fmt: skip
    stack.enter_context(process)
    stack.callback(process.kill)
    return process, log


def _listening(process: subprocess.Popen[str], log: Any) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"listening"'):
            return str(json.loads(line)["listening"])
    log.seek(0)
    raise AssertionError(f"SGLang's server did not start: {log.read()[-3000:]}")


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, server: str) -> AsyncIterator[Subject]:
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"{server}/incremental/{KINDS[request.param]}")).raise_for_status()
    async with own_sglang(server) as one:
        yield one


SAID: dict[str, dict[str, Any]] = {
    "nothing": {},
    "everything": {
"temperature": 0.7, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 7,
    },
    "the most likely token": {"temperature": 0.0, "top_k": 0},
}  # fmt: skip


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_body_is_taken(subject: Subject, said: dict[str, Any], stream: bool) -> None:
    """Its contract refuses fields of sampling_params that it does not know; then it normalises and verifies."""
    sampling = SamplingParams(**said)
    sample = await subject.engine.generate(
        subject.prompt(sampling=sampling, stop_ids=(999,), top_logprobs=2),
        (lambda _: None) if stream else None,
    )
    assert len(sample.ids) == 20


CONSTRAINTS = [
    {"json": {"type": "object"}},
    {"regex": "a+"},
    {
        "structural_tag": {
            "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
            "triggers": ["<a>"],
        }
    },
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda one: next(iter(one)))
async def test_every_constraint_is_taken(subject: Subject, constraint: dict[str, Any]) -> None:
    assert (await subject.engine.generate(subject.prompt(constraint=constraint))).ids


REFUSED: dict[str, tuple[dict[str, Any], type[SandgateError], str]] = {
    "a penalty out of bounds": ({"presence_penalty": 3.0}, RefusedByEngine, "presence_penalty must be in"),
    "a stop string without a tokenizer": ({"stop": ("x",)}, RefusedByEngine, "skip_tokenizer_init"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "kind", "words"), REFUSED.values(), ids=REFUSED)
async def test_its_refusals_are_the_clients_in_its_words(
    subject: Subject, stream: bool, said: dict[str, Any], kind: type[SandgateError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await subject.engine.generate(
            subject.prompt(sampling=SamplingParams(**said)), (lambda _: None) if stream else None
        )


async def test_every_sampling_parameter_that_it_has_is_said(subject: Subject) -> None:
    """What is not said is --preferred-sampling-params'. Its refusal lists all that it has."""
    url = subject.engine.status()[0].url
    body = {"input_ids": [5], "sampling_params": {"no such parameter": 1}}
    async with httpx.AsyncClient(trust_env=False) as http:
        words = (await http.post(f"{url}/generate", json=body)).json()["error"]
    known = set(words.partition("expected one of ")[2].replace("`", "").split(", "))
    prompt = subject.prompt()
    sent = json.loads(SglangWay().request(prompt, prompt.ids, request_id="r", max_tokens=1).body)[
        "sampling_params"
    ]
    assert known - set(sent) == {"choice"}, "of /v1/completions' only"
    assert set(sent) <= known


@pytest.mark.parametrize("stream", [False, True])
async def test_the_scripted_server_answers_as_it_does(subject: Subject, stream: bool, request: Any) -> None:
    """The same request to both: all that the scripted one says is said by SGLang in the same words, times apart."""
    incremental = "new tokens" in request.node.callspec.params["subject"]
    prompt = Prompt(
        request_id="same", ids=array("i", [5, 6, 7]), sampling=SamplingParams(), max_tokens=5, top_logprobs=2
    )
    way = SglangWay()
    asked = way.request(prompt, prompt.ids, request_id="same", max_tokens=5, stream=stream)
    async with (
        ScriptedSglang(Player(babble, eos_ids=EOS), incremental=incremental) as scripted,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        told = []
        for url in (scripted.url, subject.engine.status()[0].url):
            headers = {"Content-Type": "application/json"}
            answer = await http.post(url + asked.path, content=asked.body, headers=headers)
            lines = answer.text.split("\n\n") if stream else [f"data: {answer.text}"]
            told.append([json.loads(line[6:]) for line in lines if line[6:] not in ("", "[DONE]")])
        mine, theirs = told
    assert _last(mine, "finish_reason") == _last(theirs, "finish_reason") == {"type": "length", "length": 5}
    for name in ("prompt_tokens", "completion_tokens", "weight_versions", "weight_version", "cached_tokens"):
        assert _last(mine, name) == _last(theirs, name), name
    assert set(mine[-1]["meta_info"]) <= set(theirs[-1]["meta_info"])
    for name in ("output_token_logprobs", "output_top_logprobs"):
        assert _all(mine, name, incremental) == _all(theirs, name, incremental), name
    ids = [[each["output_ids"] for each in events] for events in told]
    # How many new tokens an event has is the engine's to say: under load two steps are one event.
    mine_ids, their_ids = [list(chain(*parts)) if incremental else parts[-1] for parts in ids]
    assert mine_ids == their_ids


def _last(events: list[Any], name: str) -> Any:
    return events[-1]["meta_info"][name]


def _all(events: list[Any], name: str, incremental: bool) -> list[Any]:
    parts = [each["meta_info"][name] for each in events]
    return [entry for part in parts for entry in part] if incremental else parts[-1]


async def test_a_gateway_measures_its_logprobs_and_finds_them_after_the_temperature(
    server: str,
) -> None:
    engine = await SglangEngine.connect([server], logprobs_mode="processed_logprobs", model="scripted")
    await engine.aclose()
    with pytest.raises(EngineFailed, match="its logprobs are processed"):
        await SglangEngine.connect([server], logprobs_mode="raw_logprobs", model="scripted")


async def test_it_says_whether_it_is_paused(server: str) -> None:
    async with SglangControl([server]) as control:
        assert await control.is_paused() == [False]
        await control.pause("keep")
        assert await control.is_paused() == [True]
        await control.resume()
        assert await control.is_paused() == [False]
