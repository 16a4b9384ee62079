"""SGLang itself, with its scheduler and sampler, on a GPU. Not collected: name the file, and a server that runs.

    TRITON_F32_DEFAULT=ieee python -m sglang.launch_server --model-path FOLDER --served-model-name shop --port 30000 \
        --dtype float32 --incremental-streaming-output --enable-metrics --enable-deterministic-inference
    SANDGATE_TEST_SGLANG=http://127.0.0.1:30000 pytest -n0 tests/gateway/engine/sglang/on_gpu.py

Without that variable float32 is TF32 in SGLang's deterministic kernels, and logprobs differ by 9e-3.

FOLDER is a copy of examples/shop/model whose config.json, generation_config.json and tokenizer_config.json name another
end of sequence, so that generations are long.

The conformance suite, and what only weights can show: every logprob is computed again by transformers, in float32, from
the ids of the record. `SANDGATE_TEST_SGLANG_TOLERANCE` is the largest difference, in nats; of a server in bfloat16 it
must be told. Needs torch and transformers, and leaves the server with the weights that it found.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

from sandgate.contract.errors import ModelNotServed, PromptTooLong, RefusedByEngine, SandgateError
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import GenerationResult, Prompt
from sandgate.gateway.engine.sglang.control import SglangControl
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.tokens.load import read_checkpoint
from tests.gateway.engine.subjects import ENDLESS, TRIES, WINDOW, Subject, own_sglang
from tests.gateway.engine.test_conformance import *  # noqa: F403 - they run here on this file's subject
from tests.gateway.engine.test_conformance import Listener, whole
from tests.gateway.engine.test_sglang_own import CONSTRAINTS, SAID
from tests.support.gateway import MODEL, gateway

URL = os.environ.get("SANDGATE_TEST_SGLANG", "http://127.0.0.1:30000")
TOLERANCE = float(os.environ.get("SANDGATE_TEST_SGLANG_TOLERANCE", "1e-4"))
NEW_WEIGHTS = Path(os.environ.get("SANDGATE_TEST_SGLANG_FOLDER", "/tmp")) / "other-weights"
MODE = os.environ.get("SANDGATE_TEST_SGLANG_MODE", "processed_logprobs")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORST: dict[str, float] = {}
"""Test -> the largest difference that it saw."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=["sglang"])  # type: ignore[no-redef]
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with own_sglang(URL, "shop") as one:
        one.decode = read_checkpoint(MODEL).vocab.decode
        yield one


@pytest.fixture(scope="module", autouse=True)
def _told() -> Any:
    yield
    for name, most in WORST.items():
        print(f"\nlargest difference of {name}: {most:.2e}", flush=True)


_MODELS: dict[Path, Any] = {}


def model_of(folder: Path) -> Any:
    """In float32."""
    if folder not in _MODELS:
        torch.backends.cuda.matmul.allow_tf32 = False
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        _MODELS[folder] = loaded.to(DEVICE).eval()
    return _MODELS[folder]


def computed(
    prompt: Sequence[int], ids: Sequence[int], temperature: float | None, folder: Path = MODEL
) -> list[float]:
    """The logprob of each of `ids` behind `prompt`."""
    told = torch.tensor([[*prompt, *ids]], device=DEVICE)
    with torch.no_grad():
        logits = model_of(folder)(told).logits[0, len(prompt) - 1 : -1].double()
    rows = torch.log_softmax(logits / ((temperature or 1.0) if MODE == "processed_logprobs" else 1.0), dim=-1)
    return [float(value) for value in rows[range(len(ids)), told[0, len(prompt) :]]]


def off(sample: GenerationResult, prompt: Prompt, name: str, folder: Path = MODEL, since: int = 0) -> float:
    """The largest difference, kept for the report."""
    mine = computed(prompt.ids, sample.ids, prompt.sampling.temperature, folder)
    worst = max(abs(a - b) for a, b in zip(sample.logprobs[since:], mine[since:], strict=True))
    WORST[name] = max(worst, WORST.get(name, 0.0))
    return worst


def random_ids(seed: int, count: int) -> array[int]:
    found = torch.randint(1, 1_000, (count,), generator=torch.Generator().manual_seed(seed))
    return array("i", found.tolist())


# -- logprobs are the model's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3, 0.0])
async def test_logprobs_are_those_of_a_forward_pass(
    subject: Subject, temperature: float, stream: bool
) -> None:
    for seed in range(4):
        asked = subject.prompt(
            ids=random_ids(seed, 5 + 90 * seed),
            sampling=SamplingParams(temperature=temperature),
            max_tokens=120,
        )
        sample = await subject.engine.generate(asked, Listener() if stream else None)
        whole(sample)
        assert off(sample, asked, f"T={temperature}") < TOLERANCE


async def test_logprobs_of_many_at_once_are_each_its_own(subject: Subject) -> None:
    """64 prompts of many lengths, half of them streamed; some share a beginning, so that its cache is used."""
    common = random_ids(99, 300)
    asked = [
        subject.prompt(
            ids=(common if at % 2 else array("i")) + random_ids(at, 3 + 7 * at),
            sampling=SamplingParams(temperature=1.0),
            max_tokens=100,
            top_logprobs=2 if at % 3 == 0 else 0,
        )
        for at in range(64)
    ]
    told = (subject.engine.generate(one, Listener() if at % 4 < 2 else None) for at, one in enumerate(asked))
    for one, sample in zip(asked, await asyncio.gather(*told), strict=True):
        whole(sample)
        assert off(sample, one, "64 at once") < TOLERANCE


async def test_a_cache_that_is_too_small_for_all_of_them_changes_no_logprob(subject: Subject) -> None:
    """24 long ones at once: a server with --max-total-tokens 6000 takes some of them back, and computes them again."""
    asked = [
        subject.prompt(ids=random_ids(at, 30), sampling=SamplingParams(temperature=1.0), max_tokens=1200)
        for at in range(24)
    ]
    told = (subject.engine.generate(one, Listener() if at % 2 else None) for at, one in enumerate(asked))
    for one, sample in zip(asked, await asyncio.gather(*told), strict=True):
        whole(sample)
        assert len(sample.ids) == 1200 or sample.finish == "stop"
        assert off(sample, one, "24 long ones") < TOLERANCE


async def test_the_same_prompt_again_is_cached_and_still_exact(subject: Subject) -> None:
    asked = subject.prompt(ids=random_ids(5, 700), sampling=SamplingParams(temperature=1.0), max_tokens=30)
    await subject.engine.generate(asked)
    again = subject.prompt(ids=asked.ids, sampling=asked.sampling, max_tokens=30)
    sample = await subject.engine.generate(again)
    assert sample.cached_tokens > 0
    assert off(sample, again, "cached prompt") < TOLERANCE


async def test_a_seed_gives_the_same_tokens_again(subject: Subject) -> None:
    first, second, other = [
        (await subject.engine.generate(subject.prompt(sampling=SamplingParams(seed=seed)))).ids
        for seed in (3, 3, 4)
    ]
    assert first == second != other


async def test_samples_without_a_seed_differ(subject: Subject) -> None:
    asked = [subject.prompt(sampling=SamplingParams(temperature=1.5), max_tokens=40) for _ in range(4)]
    told = await asyncio.gather(*map(subject.engine.generate, asked))
    assert len({tuple(sample.ids) for sample in told}) == 4


# -- pauses ------------------------------------------------------------------------------------------------------


async def test_a_request_in_a_pause_waits_for_its_end(subject: Subject) -> None:
    await subject.pause("keep")
    task = asyncio.create_task(subject.engine.generate(subject.prompt()))
    _, waiting = await asyncio.wait([task], timeout=1.0)
    assert waiting
    await subject.resume()
    whole(await task)


async def test_an_engine_that_is_paused_is_healthy(subject: Subject) -> None:
    engine: Any = subject.engine
    await subject.pause("keep")
    probe = await engine.dialect.check(engine._http, URL)
    await subject.resume()
    assert probe.failure is None


async def test_a_paused_generation_of_several_is_exact_behind_its_pause(subject: Subject) -> None:
    """Retracted: their caches are dropped and computed again."""
    asked = [
        subject.prompt(ids=random_ids(at, 20), sampling=SamplingParams(temperature=1.0), max_tokens=900)
        for at in range(8)
    ]
    listener = Listener(30)
    tasks = [
        asyncio.create_task(subject.engine.generate(one, listener if at == 0 else None))
        for at, one in enumerate(asked)
    ]
    await asyncio.wait([asyncio.create_task(listener._heard.wait()), tasks[0]], return_when="FIRST_COMPLETED")
    await subject.pause("keep")
    await asyncio.wait(tasks, timeout=0.2)
    await subject.resume()
    for one, sample in zip(asked, await asyncio.gather(*tasks), strict=True):
        whole(sample)
        assert off(sample, one, "behind a pause") < TOLERANCE


async def test_an_aborted_generation_is_taken_up_again_and_exact(subject: Subject) -> None:
    for _ in range(TRIES):
        asked = subject.prompt(
            ids=random_ids(3, 20), sampling=SamplingParams(temperature=1.0), max_tokens=ENDLESS
        )
        listener = Listener(30)
        task = asyncio.create_task(subject.engine.generate(asked, listener))
        await asyncio.wait([asyncio.create_task(listener._heard.wait()), task], return_when="FIRST_COMPLETED")
        await subject.pause("abort")
        await subject.resume()
        sample = await task
        whole(sample)
        assert off(sample, asked, "taken up after an abort") < TOLERANCE
        if sample.resumed:
            assert listener.joined() == (sample.ids, sample.logprobs)
            return
    raise AssertionError("none was aborted in its middle")


# -- what is taken and what is refused ---------------------------------------------------------------------------


async def test_what_it_says_of_itself(subject: Subject) -> None:
    facts = subject.engine.facts  # type: ignore[attr-defined]
    assert (facts.name, facts.models, facts.max_model_len) == ("sglang", ["shop"], WINDOW)
    assert facts.version


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_body_is_taken(subject: Subject, said: dict[str, Any], stream: bool) -> None:
    sampling = SamplingParams(**said)
    sample = await subject.engine.generate(
        subject.prompt(sampling=sampling, stop_ids=(999,), top_logprobs=2), Listener() if stream else None
    )
    whole(sample)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
async def test_constraints_hold(subject: Subject, constraint: dict[str, Any]) -> None:
    sample = await subject.engine.generate(
        subject.prompt(constraint=constraint, sampling=SamplingParams(temperature=1.0), max_tokens=12)
    )
    whole(sample)
    if "regex" in constraint:
        assert set(subject.decode(sample.ids[:-1])) <= {"a"}


async def test_a_grammar_that_does_not_compile_is_a_refusal(subject: Subject) -> None:
    for stream in (False, True):
        with pytest.raises(SandgateError) as caught:
            await subject.engine.generate(
                subject.prompt(constraint={"regex": "a("}), Listener() if stream else None
            )
        assert isinstance(caught.value, RefusedByEngine)


async def test_a_model_that_is_not_served(subject: Subject) -> None:
    with pytest.raises(ModelNotServed):
        await subject.engine.generate(subject.prompt(model="other"))


async def test_a_prompt_that_just_fits_and_one_that_is_one_too_long(subject: Subject) -> None:
    fits = subject.prompt(
        ids=random_ids(1, WINDOW - 9), max_tokens=8, sampling=SamplingParams(temperature=1.0)
    )
    assert off(await subject.engine.generate(fits), fits, "a full window") < TOLERANCE
    for count, tokens in ((WINDOW - 8, 9), (WINDOW, 1), (WINDOW + 1, 1)):
        for listener in (None, Listener()):
            with pytest.raises(PromptTooLong) as caught:
                await subject.engine.generate(
                    subject.prompt(ids=random_ids(1, count), max_tokens=tokens), listener
                )
            assert caught.value.limit == WINDOW


async def test_the_logprobs_mode_is_measured() -> None:
    wrong = "raw_logprobs" if MODE.startswith("processed") else "processed_logprobs"
    engine = await SglangEngine.connect([URL], logprobs_mode=MODE, model="shop", vocab_size=1024)
    await engine.aclose()
    with pytest.raises(SandgateError, match="its logprobs are"):
        await SglangEngine.connect([URL], logprobs_mode=wrong, model="shop", vocab_size=1024)


# -- the whole gateway -------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object", "properties": {
    "item": {"type": "string"}, "n": {"type": "integer"}}}}}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
@pytest.mark.parametrize("count", [1, 4], ids=["alone", "four at once"])
async def test_the_record_of_a_conversation_is_the_models(stream: bool, count: int) -> None:
    """Chat completions in, rows out: each sampled token's logprob is that of a forward pass over the row's own ids."""
    engine = await SglangEngine.connect([URL], logprobs_mode=MODE, model="shop", vocab_size=1024)
    async with gateway(engine) as g:
        agents = [await g.session() for _ in range(count)]

        async def talk(agent: Any) -> None:
            told: list[Any] = [{"role": "user", "content": "buy 7 kiwi"}]
            for turn in range(3):
                more = {"tools": [TOOL], "temperature": 1.0, "max_tokens": 60}
                answer = await agent.post(*told, stream=stream, **more)
                assert answer.status_code == 200, answer.text
                said = answer.text if stream else answer.json()["choices"][0]["message"]
                content = "ok" if stream else said.get("content") or ""
                told += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": f"and {turn} more"},
                ]

        await asyncio.gather(*map(talk, agents))
        for agent in agents:
            rows = await g.finalize(agent)
            assert rows
            for row in rows:
                ids, mask, logprobs = _row(row)
                mine = computed(ids[:1], ids[1:], 1.0)
                worst = max(abs(logprobs[at] - mine[at - 1]) for at in range(1, len(ids)) if mask[at])
                WORST["the gateway's rows"] = max(worst, WORST.get("the gateway's rows", 0.0))
                assert worst < TOLERANCE


def _row(row: dict[str, Any]) -> tuple[list[int], list[int], list[float]]:
    """All ids of a row; which were sampled, and their logprobs."""
    prompt, response = list(row["prompt_ids"]), list(row["response_ids"])
    mask, logprobs = list(row["loss_mask"]), list(row["response_logprobs"])
    pad = [0] * len(prompt)
    return prompt + response, pad + mask, [0.0] * len(prompt) + logprobs


# -- a weight update in the middle -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_weights() -> Path:
    """The shop's model, moved a little everywhere."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2 * weight.std())
    model.save_pretrained(NEW_WEIGHTS)
    for path in MODEL.glob("*token*"):
        (NEW_WEIGHTS / path.name).write_bytes(path.read_bytes())
    return NEW_WEIGHTS


async def _loaded(control: SglangControl, folder: Path, label: str) -> None:
    await control.reload_weights(str(folder))
    await control.update_weight_version(label)


@pytest.mark.parametrize("mode", ["keep", "abort"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=1.0), SamplingParams(temperature=0.8)], ids=str
)
async def test_new_weights_begin_at_the_token_that_the_record_names(
    subject: Subject, mode: Any, sampling: SamplingParams, other_weights: Path
) -> None:
    """Before it the logprobs are those of the old weights, behind it those of the new, which also read what the old
    ones wrote: nothing of their cache is left."""
    async with SglangControl([URL]) as control:
        try:
            for _ in range(TRIES):
                await _loaded(control, MODEL, "step-7")
                await control.reset_prefix_cache()
                ids = random_ids(11, 40)
                listener = Listener(60)
                asked = subject.prompt(model="", ids=ids, sampling=sampling, max_tokens=ENDLESS, version=7)
                task = asyncio.create_task(subject.engine.generate(asked, listener))
                try:
                    if not await listener.hears(task):
                        continue
                except AssertionError:
                    continue
                await control.pause(mode)
                await _loaded(control, other_weights, "step-8")
                await control.reset_prefix_cache()
                await control.resume()
                sample = await task
                if len(sample.versions) > 1 and len(sample.ids) - sample.versions[0].end > 20:
                    break
            else:
                raise AssertionError("no update came into the middle of a generation")
            whole(sample)
            assert [span.version for span in sample.versions] == [7, 8]
            edge = sample.versions[0].end
            old = computed(ids, sample.ids, sampling.temperature or 1.0)
            new = computed(ids, sample.ids, sampling.temperature or 1.0, other_weights)
            before = max(abs(a - b) for a, b in zip(sample.logprobs[:edge], old[:edge], strict=True))
            behind = max(abs(a - b) for a, b in zip(sample.logprobs[edge:], new[edge:], strict=True))
            wrong = max(abs(a - b) for a, b in zip(sample.logprobs[edge:], old[edge:], strict=True))
            WORST["before new weights"] = max(before, WORST.get("before new weights", 0.0))
            WORST["behind new weights"] = max(behind, WORST.get("behind new weights", 0.0))
            assert wrong > 1e-2, "the weights are too alike for this test"
            assert before < TOLERANCE
            assert behind < TOLERANCE
        finally:
            await control.resume()
            await _loaded(control, MODEL, "default")
            await control.reset_prefix_cache()


async def test_a_label_told_with_the_load_is_the_label(subject: Subject, other_weights: Path) -> None:
    async with SglangControl([URL]) as control:
        try:
            await control.pause("keep")
            await _loaded(control, other_weights, "step-9")
            assert await control.weight_versions() == ["step-9"]
            await control.resume()
            asked = subject.prompt(model="", version=9, sampling=SamplingParams(temperature=1.0))
            sample = await subject.engine.generate(asked)
            assert [span.version for span in sample.versions] == [9]
            assert off(sample, asked, "after a load", other_weights) < TOLERANCE
        finally:
            await _loaded(control, MODEL, "default")
            await control.reset_prefix_cache()


async def test_a_folder_that_is_no_checkpoint_is_refused_and_the_old_weights_stay(
    subject: Subject, tmp_path: Path
) -> None:
    async with SglangControl([URL]) as control:
        with pytest.raises(SandgateError, match="Cannot find any model weights"):
            await control.reload_weights(str(tmp_path))
    asked = subject.prompt(model="", sampling=SamplingParams(temperature=1.0))
    assert off(await subject.engine.generate(asked), asked, "after a refused load") < TOLERANCE
