"""What is SGLang's only: what is sent, what is refused before sampling, what of an answer is not believed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import (
    EngineFailed,
    EngineUnavailable,
    ModelNotServed,
    Overloaded,
    PromptTooLong,
    RefusedByEngine,
    SandgateError,
    Unsupported,
)
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.generation import Generation
from sandgate.gateway.engine.scripted.engine import Gate, Player, Reply, Script
from sandgate.gateway.engine.scripted.script import Fault
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang.control import SglangControl
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.sglang.refusals import ABORTED
from sandgate.gateway.engine.sglang.wire import SglangWay, rid_of
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.journal.top_logprobs import unpacked
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.service.sampling import clamp
from tests.gateway.engine.subjects import EOS
from tests.support.waiting import until

IDS = [11, 12, 13, 14]
PROCESSED, RAW = "processed_logprobs", "raw_logprobs"


def prompt(**more: Any) -> Prompt:
    base: dict[str, Any] = {
        "request_id": "r", "ids": array("i", [5, 6, 7]), "sampling": SamplingParams(), "max_tokens": 20,
    }  # fmt: skip
    return Prompt(**{**base, **more})


@asynccontextmanager
async def served(
    script: Script = (IDS,),
    *,
    mode: str = "unknown",
    model: str = "",
    player: dict[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[tuple[SglangEngine, ScriptedSglang]]:
    playing = Player(script, eos_ids=EOS, **(player or {}))
    playing.logprobs_mode = mode if mode != "unknown" else PROCESSED
    async with ScriptedSglang(playing, **server) as serving:
        engine = await SglangEngine.connect([serving.url], logprobs_mode=mode, model=model, vocab_size=1_000)
        try:
            yield engine, serving
        finally:
            await engine.aclose()


# -- what is sent -----------------------------------------------------------------------------------------------


def asked(**more: Any) -> dict[str, Any]:
    one = prompt(**more)
    body = (
        SglangWay()
        .request(one, one.ids, request_id=one.request_id, max_tokens=one.max_tokens, salt="v3")
        .body
    )
    told: dict[str, Any] = orjson.loads(body)
    return told


def test_all_of_a_request_is_said() -> None:
    assert asked(ids=array("i", [1, 2]), stop_ids=(9,)) == {
        "input_ids": [1, 2],
        "rid": "r~",
        "sampling_params": {
            "stop_regex": None, "min_new_tokens": 0, "n": 1, "json_schema": None, "regex": None, "ebnf": None,
            "structural_tag": None, "ignore_eos": False, "skip_special_tokens": False,
            "spaces_between_special_tokens": True, "no_stop_trim": True, "stream_interval": None, "logit_bias": None,
            "custom_params": None, "beam_width": None, "watermark": None, "temperature": 1.0, "top_p": 1.0,
            "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
            "max_new_tokens": 20, "stop": [], "stop_token_ids": [9], "sampling_seed": None,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "return_text_in_logprobs": False,
        "stream": False,
        "extra_key": "v3",
    }  # fmt: skip


CONSTRAINTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a schema is text": ({"json": {"type": "object"}}, {"json_schema": '{"type": "object"}'}),
    "a schema that is text already": ({"json": '{"type":"object"}'}, {"json_schema": '{"type":"object"}'}),
    "a regular expression": ({"regex": "a+"}, {"regex": "a+"}),
    "a tag is text": ({"structural_tag": {"type": "structural_tag"}}, {"structural_tag": '{"type": "structural_tag"}'}),
    "any object": ({"json_object": True}, {"json_schema": '{"type":"object"}'}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "sent"), CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_constraints(given: dict[str, Any], sent: dict[str, str]) -> None:
    params = asked(constraint=given)["sampling_params"]
    grammars = ("json_schema", "regex", "ebnf", "structural_tag")
    assert {name: params[name] for name in grammars if params[name] is not None} == sent


def test_a_top_k_of_0_is_all_as_for_vllm() -> None:
    assert asked(sampling=SamplingParams(top_k=0))["sampling_params"]["top_k"] == -1


@given(st.text(max_size=12), st.text(max_size=12))
@example("a-1", "a-12")
@example("a", "a-r1")
@example("a", "a~")
def test_no_rid_is_the_beginning_of_another(one: str, other: str) -> None:
    """SGLang aborts all that begin with the one that is named."""
    mine, theirs = rid_of(one), rid_of(other)
    assert mine == theirs or not theirs.startswith(mine)


async def test_an_abort_ends_its_own_generation_only() -> None:
    gates = [Gate(), Gate()]
    script = [Reply(IDS, gate=gate, gate_at=1) for gate in gates]
    async with served(script) as (engine, server):
        tasks = []
        for name, gate in zip(("turn-1", "turn-12"), gates, strict=True):
            tasks.append(asyncio.create_task(engine.generate(prompt(request_id=name))))
            await gate.reached.wait()

        async def alone() -> bool:
            return server.player.running == 1

        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await until(alone, what="the first is gone")
        gates[1].open.set()
        sample = await tasks[1]
        assert (sample.ids.tolist(), sample.resumed) == (IDS, 0)


# -- what is refused before anything is sampled -----------------------------------------------------------------

PICTURE = Picture(digest=b"", width=1, height=1, grid=(1, 1, 1), png=b"")
UNFIT: dict[str, tuple[str, dict[str, Any], type[SandgateError], str]] = {
    "top_p is not in SGLang's logprobs": (PROCESSED, {"sampling": SamplingParams(top_p=0.9)}, Unsupported, "top_p"),
    "nor is top_k": (PROCESSED, {"sampling": SamplingParams(top_k=20)}, Unsupported, "top_k"),
    "nor is min_p": (PROCESSED, {"sampling": SamplingParams(min_p=0.1)}, Unsupported, "min_p"),
    "penalties are in its raw ones": (
        RAW, {"sampling": SamplingParams(presence_penalty=0.5)}, Unsupported, "presence_penalty",
    ),
    "a seed would be ignored": ("unknown", {"sampling": SamplingParams(seed=3)}, Unsupported, "seed"),
    "images": ("unknown", {"pictures": (PICTURE,)}, Unsupported, "images"),
    "a choice has no grammar": ("unknown", {"constraint": {"choice": ["a"]}}, Unsupported, "choice"),
    "a model that it does not have": ("unknown", {"model": "other"}, ModelNotServed, "other"),
    "an id that does not exist": ("unknown", {"ids": array("i", [5, 1_000])}, EngineFailed, "out of vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize(("mode", "more", "kind", "word"), UNFIT.values(), ids=UNFIT)
async def test_what_sglang_would_drop_is_refused_before_it_is_asked(
    mode: str, more: dict[str, Any], kind: type[SandgateError], word: str
) -> None:
    async with served(mode=mode, seeds=False) as (engine, server):
        before = len(server.bodies)
        with pytest.raises(kind, match=word):
            await engine.generate(prompt(**more))
        assert len(server.bodies) == before


KILLS: dict[str, SamplingParams] = {
    "alone": SamplingParams(min_p=0.1),
    "with a seed": SamplingParams(min_p=0.1, seed=3),
    "with the most likely token, as others are in its batch": SamplingParams(min_p=0.1, temperature=0.0),
}


@pytest.mark.parametrize("mode", [RAW, "unknown", PROCESSED])
@pytest.mark.parametrize("sampling", KILLS.values(), ids=KILLS)
async def test_min_p_which_kills_a_deterministic_sglang_is_refused(
    mode: str, sampling: SamplingParams
) -> None:
    """Its sampler asserts that no seed comes with min_p, and there everything has a seed: seen on a GPU (0.5.23)."""
    async with served(mode=mode, seeds=True) as (engine, server):
        before = len(server.bodies)
        with pytest.raises(Unsupported, match="min_p"):
            await engine.generate(prompt(sampling=sampling))
        assert len(server.bodies) == before


async def test_min_p_is_sampled_where_nothing_has_a_seed() -> None:
    async with served(mode=RAW, seeds=False) as (engine, _):
        assert (await engine.generate(prompt(sampling=SamplingParams(min_p=0.1)))).ids.tolist() == IDS


async def test_samples_without_a_seed_differ_on_a_deterministic_sglang() -> None:
    """It gives 42 to all that say none: every sample of a group was the same, seen on a GPU (0.5.23)."""
    async with served(seeds=True) as (engine, server):
        for at in range(4):
            await engine.generate(prompt(request_id=f"turn-{at}"))
        seeds = {body["sampling_params"]["sampling_seed"] for body in server.bodies[-4:]}
        assert len(seeds - {None}) == 4


async def test_a_seed_is_left_out_where_it_would_be_ignored() -> None:
    async with served(seeds=False) as (engine, server):
        await engine.generate(prompt())
        assert server.bodies[-1]["sampling_params"]["sampling_seed"] is None


FIT: dict[str, tuple[str, SamplingParams]] = {
    "a temperature is in processed logprobs": (PROCESSED, SamplingParams(temperature=0.7)),
    "so are penalties": (PROCESSED, SamplingParams(frequency_penalty=0.5)),
    "filters that filter nothing": (PROCESSED, SamplingParams(top_p=1.0, top_k=-1, min_p=0.0)),
    "a top_k of 0": (PROCESSED, SamplingParams(top_k=0)),
    "no filter matters to the most likely token": (PROCESSED, SamplingParams(temperature=0.0, top_p=0.5)),
    "filters are not in raw logprobs, as the mode says": (RAW, SamplingParams(top_p=0.9)),
}


@pytest.mark.parametrize(("mode", "sampling"), FIT.values(), ids=FIT)
async def test_what_is_honoured_is_sampled(mode: str, sampling: SamplingParams) -> None:
    async with served(mode=mode) as (engine, _):
        assert (await engine.generate(prompt(sampling=sampling))).ids.tolist() == IDS


async def test_a_seed_goes_on_where_it_was() -> None:
    async with served([Reply(IDS, gate=(gate := Gate()), gate_at=2)]) as (engine, server):
        task = asyncio.create_task(engine.generate(prompt(sampling=SamplingParams(seed=3))))
        await gate.reached.wait()
        server.player.abort_all()
        assert (await task).resumed == 1
        assert [body["sampling_params"]["sampling_seed"] for body in server.bodies] == [3, 3]


async def test_an_adapter_is_asked_for_by_its_name() -> None:
    async with served(model="scripted", adapters=["math"]) as (engine, server):
        await engine.generate(prompt(model="math"))
        await engine.generate(prompt(model="scripted"))
        assert [body.get("lora_path") for body in server.bodies] == ["math", None]


async def test_a_model_that_a_weight_update_renamed_is_still_the_jobs() -> None:
    async with served(model="scripted") as (_, server), SglangControl([server.url]) as control:
        await control.reload_weights("/ckpt/step-3")
        await control.update_weight_version("step-3")
        late = await SglangEngine.connect([server.url], model="scripted")
        try:
            assert (await late.generate(prompt(model="scripted", version=3))).versions[0].version == 3
        finally:
            await late.aclose()


# -- what of an answer is not believed --------------------------------------------------------------------------


def meta(**more: Any) -> dict[str, Any]:
    base = {
        "finish_reason": {"type": "stop", "matched": 12},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, None]],
    }
    return {**base, **more}


def answered(*metas: dict[str, Any], told: Prompt | None = None, ids: list[int] | None = None) -> Generation:
    one = told or prompt()
    read, made = SglangWay().reader(one, one.ids, vocab_size=1_000), Generation(one, told=0, streams=True)
    for each in metas:
        output = [entry[1] for entry in each["output_token_logprobs"]] if ids is None else ids
        made.take(read(orjson.dumps({"output_ids": output, "meta_info": each})))
    return made


def test_an_answer() -> None:
    made = answered(meta(cached_tokens=2))
    assert (made.ids.tolist(), made.logprobs.tolist(), made.finish) == ([11, 12], [-0.5, -0.25], "stop")
    assert (made.stop_reason, made.cached_tokens) == (None, 2), "the model's own end is no reason"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a prompt that was cut": ({"prompt_tokens": 2}, "read 2 of 3 prompt ids: start SGLang without"),
    "no logprobs": ({"output_token_logprobs": []}, "counts 2 tokens"),
    "one logprob too many": ({"completion_tokens": 1}, "counts 1 tokens"),
    "an id that was put in for one that does not exist": (
        {"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "NaN happened",
    ),
    "an id outside of the vocabulary": ({"output_token_logprobs": [[-1.0, 11, None], [-1.0, 1_000, None]]}, "1000"),
    "no number": ({"output_token_logprobs": [[None, 11, None], [-1.0, 12, None]]}, "logprob is None"),
    "the least float": ({"output_token_logprobs": [[-3.4e38, 11, None], [-1.0, 12, None]]}, "missing or NaN"),
    "logits": ({"output_token_logprobs": [[3.0, 11, None], [-1.0, 12, None]]}, "positive"),
    "an end that nobody knows": ({"finish_reason": {"type": "tired"}}, "tired"),
}  # fmt: skip


@pytest.mark.parametrize(("more", "says"), WRONG.values(), ids=WRONG)
def test_an_answer_that_cannot_be_trusted_says_why(more: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineFailed, match=says):
        answered(meta(**more))


def test_ids_and_logprobs_of_different_tokens() -> None:
    with pytest.raises(EngineFailed, match="a token's id is 13, but its logprob is of id 12"):
        answered(meta(), ids=[11, 13])


ENDS: dict[str, tuple[dict[str, Any], Prompt, str, object]] = {
    "the model's own end": ({"type": "stop", "matched": 12}, prompt(), "stop", None),
    "several ids of an end": ({"type": "stop", "matched": [11, 12]}, prompt(), "stop", None),
    "a stop id": ({"type": "stop", "matched": 12}, prompt(stop_ids=(12,)), "stop", 12),
    "a stop string": ({"type": "stop", "matched": "x"}, prompt(), "stop", "x"),
    "a client's own words": (
        {"type": "stop", "matched": "NaN happened"}, prompt(sampling=SamplingParams(stop=("NaN happened",))),
        "stop", "NaN happened",
    ),
    "the limit": ({"type": "length", "length": 2}, prompt(), "length", None),
    "an abort": ({"type": "abort", "message": "Aborted", "status_code": None}, prompt(), "abort", None),
    "an abort behind a token": (
        {"type": "abort", "message": ABORTED, "status_code": 400}, prompt(), "abort", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("finish", "told", "kind", "reason"), ENDS.values(), ids=ENDS)
def test_ends(finish: dict[str, Any], told: Prompt, kind: str, reason: object) -> None:
    made = answered(meta(finish_reason=finish), told=told)
    assert (made.finish, made.stop_reason) == (kind, reason)


ABORTS: dict[str, tuple[int, str, type[SandgateError]]] = {
    "a full queue": (503, "The request queue is full.", EngineUnavailable),
    "too many requests": (429, "slow down", Overloaded),
    "a grammar that does not compile": (400, "Invalid grammar", RefusedByEngine),
    "a prompt over what fits": (
        400, "Input length (3 tokens) exceeds the maximum allowed length (2 tokens).", PromptTooLong,
    ),
    "an error of the engine": (500, "CUDA error", EngineFailed),
}  # fmt: skip


@pytest.mark.parametrize(("status", "message", "kind"), ABORTS.values(), ids=ABORTS)
def test_an_abort_with_a_status_is_a_refusal_until_a_token_was_told(
    status: int, message: str, kind: type[SandgateError]
) -> None:
    end = {"type": "abort", "message": message, "status_code": status, "err_type": None}
    none = meta(finish_reason=end, completion_tokens=0, output_token_logprobs=[])
    with pytest.raises(kind):
        answered(none)
    behind = answered(meta(finish_reason=None), meta(finish_reason=end))
    assert (behind.ids.tolist(), behind.finish) == ([11, 12], "abort"), (
        "what was told stands; the rest is asked again"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_weight_updates_abort_of_what_waits_for_its_grammar_goes_on(stream: bool) -> None:
    """SGLang calls it a bad request. Nothing was sampled, and the request is as good as before."""
    fault = Fault("status", status=400, message=ABORTED)
    async with served([Reply(IDS, fault=fault), IDS]) as (engine, server):
        one = prompt(constraint={"json": {"type": "object"}})
        sample = await engine.generate(one, (lambda _: None) if stream else None)
        assert (sample.ids.tolist(), len(server.bodies)) == (IDS, 2)


def logprobs(entries: list[list[Any]]) -> dict[str, Any]:
    """Of tokens whose only alternative is themselves."""
    return {"output_token_logprobs": entries, "output_top_logprobs": [[entry] for entry in entries]}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.booleans(), st.booleans(), st.integers(0, 8))
@example([3, 2], True, True, 0)
@example([3, 2], True, True, 1)
@example([3, 2, 1], True, True, 2)
@example([3], True, True, 8)
def test_streams_of_all_and_of_new_tokens_are_the_same_sample(
    sizes: list[int], incremental: bool, aborted: bool, queued: int
) -> None:
    """An abort in a stream of new tokens tells all logprobs again, and the last id only; of what was `queued` before it
    SGLang makes one event with it (0.5.23, `_coalesce_streaming_chunks`)."""
    total = sum(sizes)
    entries = [[-at / 8 - 0.125, 100 + at, None] for at in range(total)]
    one = prompt(max_tokens=100, top_logprobs=1)
    read, made = SglangWay().reader(one, one.ids, vocab_size=1_000), Generation(one, told=0, streams=True)
    done, joined = 0, list[list[Any]]()
    for at, size in enumerate(sizes):
        done += size
        part = entries[done - size : done] if incremental else entries[:done]
        if incremental and aborted and at >= len(sizes) - queued:
            joined += part
            continue
        told = meta(finish_reason=None, completion_tokens=done, **logprobs(part))
        made.take(read(orjson.dumps({"output_ids": [entry[1] for entry in part], "meta_info": told})))
    end = {"type": "abort", "message": "Aborted"} if aborted else {"type": "stop", "matched": 5}
    part = entries if aborted or not incremental else []
    ids = [entries[-1][1]] if aborted and incremental else [entry[1] for entry in part]
    part, ids = joined + part, [entry[1] for entry in joined] + ids
    last = meta(finish_reason=end, completion_tokens=total, **logprobs(part))
    made.take(read(orjson.dumps({"output_ids": ids, "meta_info": last})))
    assert made.ids.tolist() == [100 + at for at in range(total)]
    assert [unpacked(top) for top in made.top] == [((entry[1], entry[0]),) for entry in entries]
    assert made.logprobs.tolist() == [entry[0] for entry in entries]
    assert made.finish == ("abort" if aborted else "stop")


def test_an_abort_behind_tokens_that_are_not_those_of_its_logprobs_is_refused() -> None:
    one = prompt(max_tokens=100)
    read = SglangWay().reader(one, one.ids, vocab_size=1_000)
    entries = [[-0.5, 100, None], [-0.5, 101, None]]
    end = {"type": "abort", "message": "Aborted"}
    said = meta(finish_reason=end, completion_tokens=2, output_token_logprobs=[[-0.5, 7, None], *entries])
    with pytest.raises(EngineFailed, match="aborted behind 1 tokens"):
        read(orjson.dumps({"output_ids": [7, 101], "meta_info": said}))


# -- what a server says of itself -------------------------------------------------------------------------------


async def test_a_server_says_what_it_is() -> None:
    async with served(adapters=["math"]) as (engine, _):
        facts = engine.facts
        assert (facts.build, facts.models, facts.max_model_len) == (
            "sglang 0.5.23",
            ["scripted", "math"],
            32_768,
        )


async def test_a_server_that_cuts_prompts_is_not_used() -> None:
    with pytest.raises(EngineFailed, match="without --allow-auto-truncate"):
        async with served(truncates=True):
            pass


LOSSY: dict[str, dict[str, Any]] = {
    "drafts above a likelihood": {"speculative_algorithm": "EAGLE", "speculative_accept_threshold_single": 0.3},
    "drafts that are made likelier": {"speculative_algorithm": "NGRAM", "speculative_accept_threshold_acc": 0.3},
    "set while it runs": {
        "speculative_algorithm": "EAGLE", "internal_states": [{}, {"speculative_accept_threshold_acc": 0.5}],
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", LOSSY.values(), ids=LOSSY)
async def test_a_server_that_takes_drafts_which_it_would_not_sample_is_not_used(
    settings: dict[str, Any],
) -> None:
    """Its logprobs are of another distribution than its tokens; temperatures do not show it."""
    with pytest.raises(EngineFailed, match="without --speculative-accept-threshold"):
        async with served(settings=settings):
            pass


async def test_thresholds_without_drafts_do_nothing() -> None:
    async with served(settings={"speculative_accept_threshold_acc": 0.3}) as (engine, _):
        assert (await engine.generate(prompt())).ids.tolist() == IDS


CAPACITY: dict[str, tuple[dict[str, Any], int]] = {
    "a cache of more than the window": ({"max_req_input_len": 2042, "page_size": 64}, 2_048),
    "a smaller cache": ({"max_req_input_len": 994, "page_size": 1}, 998),
    "of pages": ({"max_req_input_len": 994, "page_size": 16}, 968),
    "drafts": (
        {
            "speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 8, "speculative_num_steps": 5,
            "speculative_num_draft_tokens": 32, "max_req_input_len": 2042, "page_size": 1,
        },
        2_008,
    ),
    "drafts of as many steps as it likes": (
        {
            "speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1, "speculative_num_steps": 3,
            "speculative_num_draft_tokens": 4, "speculative_adaptive": True,
        },
        2_040,
    ),
    "a cache that is smaller than the drafts": ({"max_req_input_len": 1, "page_size": 64}, 1),
    "an older server, which says nothing of pages": ({"max_req_input_len": 994, "page_size": None}, 998),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "room"), CAPACITY.values(), ids=CAPACITY)
async def test_the_window_is_what_a_prompt_and_its_answer_may_fill(
    settings: dict[str, Any], room: int
) -> None:
    async with served(settings=settings, player={"max_model_len": 2_048}) as (engine, _):
        assert (engine.facts.max_model_len, engine.facts.window) == (2_048, room)


async def test_an_answer_that_fills_the_window_fits_beside_drafts() -> None:
    """SGLang counts them on top of each prompt, and refused it as too long."""
    async with served(reserved=4, player={"max_model_len": 2_048}) as (engine, _):
        most = clamp(None, prompt=100, window=engine.facts.window)
        sample = await engine.generate(prompt(ids=array("i", [3] * 100), max_tokens=most))
        assert (most, sample.ids.tolist()) == (1_944, IDS)
        with pytest.raises(PromptTooLong):
            await engine.generate(prompt(ids=array("i", [3] * 100), max_tokens=most + 1))


async def test_one_label_in_many_workers_is_read_where_tokens_are_sampled() -> None:
    """The worker that is told a label keeps it to itself: whoever asks another has the label of the start."""
    async with served([IDS] * 3, workers=4) as (engine, server), SglangControl([server.url]) as control:
        await control.update_weight_version(7)
        for _ in range(4):
            await engine.version_told()
            assert [(one.healthy, one.detail) for one in engine.status()] == [(True, "")]
            sample = await engine.generate(prompt(version=7))
            assert [span.version for span in sample.versions] == [7]


async def test_weights_of_the_start_in_a_server_of_many_workers_are_not_used() -> None:
    async with served([IDS] * 2, workers=4) as (engine, server), SglangControl([server.url]) as control:
        await control.update_weight_version(7)
        await engine.generate(prompt(version=7))
        server.player.restart()
        await engine.version_told()
        with pytest.raises(EngineUnavailable, match="'default', which is no version"):
            await engine.generate(prompt(version=7))


async def test_the_oldest_label_of_several_ranks_counts() -> None:
    states = [{"weight_version": "8"}, {"weight_version": "7"}]
    async with served(workers=2, settings={"internal_states": states}) as (engine, server):
        way = engine._way(server.url)
        assert await engine.dialect.label_of(engine._http, server.url, way) == "7"


async def test_many_workers_of_a_server_that_does_not_say_its_own_label_are_not_used() -> None:
    with pytest.raises(EngineFailed, match="without --tokenizer-worker-num"):
        async with served(workers=2, settings={"internal_states": [{}]}):
            pass


async def test_vllm_is_no_sglang_and_sglang_no_vllm() -> None:
    async with ScriptedServer(Player([IDS])) as vllm, ScriptedSglang(Player([IDS])) as sglang:
        with pytest.raises(EngineFailed, match="this is no SGLang server"):
            await SglangEngine.connect([vllm.url])
        with pytest.raises(EngineFailed):
            await VllmEngine.connect([sglang.url])


MODES: dict[str, tuple[str, str, str]] = {
    "both processed": (PROCESSED, PROCESSED, ""),
    "both raw": (RAW, RAW, ""),
    "raw, and the job says processed": (RAW, PROCESSED, "without SGLANG_RETURN_ORIGINAL_LOGPROB"),
    "processed, and the job says raw": (PROCESSED, RAW, "SGLANG_RETURN_ORIGINAL_LOGPROB=1"),
    "logits": ("processed_logits", PROCESSED, "logits"),
}


@pytest.mark.parametrize(("started", "said", "why"), MODES.values(), ids=MODES)
async def test_the_logprobs_mode_is_measured_by_two_temperatures(started: str, said: str, why: str) -> None:
    player = Player([IDS])
    player.logprobs_mode = started
    async with ScriptedSglang(player) as server:
        if why:
            with pytest.raises(EngineFailed, match=why):
                await SglangEngine.connect([server.url], logprobs_mode=said)
            return
        engine = await SglangEngine.connect([server.url], logprobs_mode=said)
        await engine.aclose()


async def test_a_weight_update_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    """/health samples a token, and so does not answer while the engine is paused."""
    monkeypatch.setattr("sandgate.gateway.engine.sglang.engine.PROBE_TIMEOUT_S", 0.5)
    async with served() as (engine, server):
        server.player.pause("keep")
        assert (await engine.dialect.check(engine._http, server.url)).failure is None
        server.player.resume()
        server.healthy = False
        assert (await engine.dialect.check(engine._http, server.url)).failure == "/health answers 503"


async def test_controls_swap_weights_in_the_middle_of_a_generation() -> None:
    async with served([Reply(IDS, gate=(gate := Gate()), gate_at=2)]) as (engine, server):
        async with SglangControl([server.url]) as control:
            await control.update_weight_version(7)
            task = asyncio.create_task(engine.generate(prompt(version=7)))
            await gate.reached.wait()
            await control.pause("keep")
            await control.reload_weights("/ckpt/8")
            await control.update_weight_version(8)
            await control.reset_prefix_cache()
            await control.resume()
            gate.open.set()
            sample = await task
            assert await control.weight_versions() == ["8"]
        assert [(span.version, span.start, span.end) for span in sample.versions] == [(7, 0, 2), (8, 2, 4)]
