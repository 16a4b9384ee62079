"""Prompts that clients make themselves (POST /v1/completions): text or token ids, one branch where they go on."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sandgate.gateway.journal.memory import MemoryStore
from sandgate.gateway.tokens.load import load_codec
from tests.support.gateway import MODEL, Agent, Running, codec, gateway, ids

EOS = codec().stop_ids[0]


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda ids, number: f" answer {number}") as running:
        yield running


async def post(agent: Agent, prompt: Any, **more: Any) -> httpx.Response:
    return await agent.http.post("v1/completions", json={"model": "shop", "prompt": prompt, **more})


async def complete(agent: Agent, prompt: Any, **more: Any) -> dict[str, Any]:
    answer = await post(agent, prompt, return_token_ids=True, **more)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def test_ids_that_go_on_are_one_branch_with_the_very_ids(g: Running) -> None:
    agent = await g.session()
    prompt = ids("one")
    whole: list[int] = []
    for more in ("two", "three", "four"):
        choice = await complete(agent, prompt)
        assert choice["prompt_token_ids"] == prompt
        assert choice["token_ids"][-1] == EOS
        whole = prompt + choice["token_ids"]
        prompt = whole + ids(more)
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    assert [turn["fork"] for turn in turns] == [None] * 3
    (row,) = await g.finalize(agent)
    assert row["prompt_ids"] + row["response_ids"] == whole


def other_sample(prompt: list[int], sampled: list[int]) -> list[int]:
    return [*prompt, *sampled[:-2], *ids("!"), *ids("two")]


FORKS: dict[str, tuple[Any, str]] = {
    "the same ids again are sampled again": (lambda prompt, sampled: prompt, "retry_resampled"),
    "other ids where some were sampled are an edited answer": (other_sample, "assistant_edited"),
    "fewer ids than before are a truncated history": (
        lambda prompt, sampled: prompt[:-1],
        "history_truncated",
    ),
    "other ids from the first on are a new root": (lambda prompt, sampled: ids("quite another"), "new_root"),
}


@pytest.mark.parametrize(("made", "reason"), FORKS.values(), ids=FORKS)
async def test_ids_that_do_not_go_on_fork(g: Running, made: Any, reason: str) -> None:
    agent = await g.session()
    prompt = ids("one two")
    first = await complete(agent, prompt)
    answer = await post(agent, made(prompt, first["token_ids"]))
    assert answer.headers["x-sandgate-fork"] == reason
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, reason]


async def test_a_second_way_on_from_a_turn_is_named(g: Running) -> None:
    agent = await g.session()
    first = await complete(agent, ids("one"))
    path = ids("one") + first["token_ids"]
    await complete(agent, path + ids("two"))
    answer = await post(agent, path + ids("three"))
    assert answer.headers["x-sandgate-fork"] == "user_or_tool_edited"
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns[1:]] == [turns[0]["turn"]] * 2


async def test_ids_behind_a_turn_that_went_on_with_nothing_added_edit_no_answer(g: Running) -> None:
    agent = await g.session()
    first = await complete(agent, ids("one"))
    path = ids("one") + first["token_ids"]
    more = await complete(agent, path)
    answer = await post(agent, path + ids("three"))
    assert answer.headers["x-sandgate-fork"] == "user_or_tool_edited"
    edited = await post(agent, [*path, *more["token_ids"][:1], *ids("!")])
    assert edited.headers["x-sandgate-fork"] == "assistant_edited"


async def test_ids_of_a_chat_go_on_in_its_tree(g: Running) -> None:
    agent = await g.session()
    await agent.ask("buy 7 kiwi")
    (chat,) = await g.tree(agent)
    path = chat["spans"][0]["ids"] + chat["spans"][1]["ids"]
    answer = await post(agent, path + ids("go on"))
    assert "x-sandgate-fork" not in answer.headers
    assert [turn["parent"] for turn in await g.tree(agent)] == [None, chat["turn"]]


# --- text


async def test_text_that_goes_on_keeps_the_ids_that_were_sampled() -> None:
    """The answer is cut into tokens as no tokenizer would: " " and "kiwi" apart."""
    odd = [*ids(" "), *ids("k"), *ids("iwi"), *ids("\nObservation:")]
    assert odd != ids(" kiwi\nObservation:"), "else this shows nothing"
    async with gateway(lambda prompt, number: odd) as g:
        agent = await g.session()
        text = "Buy"
        for seen in (" 7", " 8"):
            choice = await complete(agent, text, max_tokens=len(odd), stop=["Observation:"])
            text += choice["text"] + "Observation:" + seen
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None, None]
        assert turns[1]["parent"] == turns[0]["turn"]
        assert turns[1]["spans"][0]["ids"] == ids(" 7")
        (row,) = await g.finalize(agent)
        assert row["prompt_ids"] + row["response_ids"] == [*ids("Buy"), *odd, *ids(" 7"), *odd]


async def test_text_that_leaves_out_the_end_of_a_turn_forks_and_keeps_the_rest_of_its_ids(g: Running) -> None:
    agent = await g.session()
    first = await complete(agent, "one")
    assert first["token_ids"][-1] == EOS
    answer = await post(agent, "one" + first["text"] + " two", return_token_ids=True)
    assert answer.headers["x-sandgate-fork"] == "tokens_differ"
    told = answer.json()["choices"][0]["prompt_token_ids"]
    assert told == [*ids("one"), *first["token_ids"][:-1], *ids(" two")]


async def test_text_that_tells_another_answer_forks(g: Running) -> None:
    agent = await g.session()
    await complete(agent, "one")
    answer = await post(agent, "one, no answer of yours, two")
    assert answer.headers["x-sandgate-fork"] == "assistant_edited"


async def test_text_that_spells_a_control_token_is_refused(g: Running) -> None:
    """Encoded as words it would be a prompt that nobody meant; the answer says what to do."""
    agent = await g.session()
    end = codec().decode(array("i", [EOS]))
    answer = await post(agent, f"one{end}two")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "token ids" in answer.json()["error"]["message"]
    assert await g.tree(agent) == []


async def test_where_clients_may_spell_control_tokens_text_is_encoded_as_the_tokenizer_does() -> None:
    spelling = load_codec(MODEL, renderer="template", special_text="control")
    text = spelling.decode(array("i", [EOS])) + "one"
    assert spelling.encode_text(text).tolist() == ids(text)
    assert spelling.encode_text(text)[0] == EOS


# --- the wire


async def test_openais_sdk_reads_what_is_sent_whole_and_streamed(g: Running) -> None:
    agent = await g.session()
    sdk = agent.openai()
    whole = await sdk.completions.create(model="shop", prompt="one", logprobs=2, n=2)
    assert [choice.text for choice in whole.choices] == [" answer 0", " answer 1"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(len(turn["spans"][1]["ids"]) for turn in await g.tree(agent))
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert "".join(logprobs.tokens).startswith(" answer 0")
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:at])) for at in range(len(logprobs.tokens))]
    turn = (await g.tree(agent))[0]
    assert logprobs.token_logprobs == pytest.approx(turn["logprobs"])
    text, last, usage = "", "", 0
    stream = await sdk.completions.create(
        model="shop", prompt="two", stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage += chunk.usage is not None
        for choice in chunk.choices:
            text += choice.text
            last += choice.finish_reason or ""  # type: ignore[unreachable]  # the SDK says it is never None
    assert (text, last) == (" answer 2", "stop")
    assert usage == 1


async def test_a_stream_tells_the_ids_and_logprobs_of_the_whole_answer() -> None:
    async with gateway(lambda prompt, number: " kiwi and more") as g:
        whole_one, streamed_one = await g.session(), await g.session()
        asked = {"logprobs": 0, "return_token_ids": True}
        whole = (await post(whole_one, "one", **asked)).json()["choices"][0]
        sdk = streamed_one.openai()
        told: dict[str, Any] = {"text": "", "token_ids": [], "offsets": [], "logprobs": []}
        async for chunk in await sdk.completions.create(
            model="shop", prompt="one", stream=True, logprobs=0, extra_body={"return_token_ids": True}
        ):
            for choice in chunk.choices:
                told["text"] += choice.text
                told["token_ids"] += getattr(choice, "token_ids", None) or []
                told["prompt"] = getattr(choice, "prompt_token_ids", None) or told.get("prompt")
                if choice.logprobs:
                    told["offsets"] += choice.logprobs.text_offset or []
                    told["logprobs"] += choice.logprobs.token_logprobs or []
        assert told["text"] == whole["text"]
        assert told["token_ids"] == whole["token_ids"]
        assert told["prompt"] == whole["prompt_token_ids"]
        assert told["offsets"] == whole["logprobs"]["text_offset"]
        assert told["logprobs"] == whole["logprobs"]["token_logprobs"]


async def test_sixteen_tokens_are_sampled_if_nobody_says_how_many() -> None:
    async with gateway(lambda prompt, number: ids("word " * 40)) as g:
        agent = await g.session()
        assert len((await complete(agent, "one"))["token_ids"]) == 16
        assert len((await complete(agent, "two", max_tokens=5))["token_ids"]) == 5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "prompt"),
    "an empty text": ({"prompt": ""}, "prompt"),
    "no ids": ({"prompt": []}, "prompt"),
    "a number": ({"prompt": 7}, "prompt"),
    "an object": ({"prompt": {"a": 1}}, "prompt"),
    "an id that is no number": ({"prompt": [1, "a"]}, "prompt[1]"),
    "a negative id": ({"prompt": [1, -1]}, "prompt[1]"),
    "an id over 31 bits": ({"prompt": [2**31]}, "prompt[0]"),
    "an id that the vocabulary does not have": ({"prompt": [2**31 - 1]}, "prompt"),
    "two prompts": ({"prompt": ["a", "b"]}, "prompt"),
    "two prompts of ids": ({"prompt": [[1], [2]]}, "prompt"),
    "a prompt in a list in a list": ({"prompt": [[["a"]]]}, "prompt[0][0]"),
    "echo": ({"prompt": "a", "echo": True}, "echo"),
    "a suffix": ({"prompt": "a", "suffix": "b"}, "suffix"),
    "best of more": ({"prompt": "a", "best_of": 4}, "best_of"),
    "too many logprobs": ({"prompt": "a", "logprobs": 21}, "logprobs"),
    "a prompt without special tokens": ({"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
}


@pytest.mark.parametrize(("body", "field"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_honoured_is_refused_by_name(
    g: Running, body: dict[str, Any], field: str
) -> None:
    agent = await g.session()
    answer = await agent.http.post("v1/completions", json={"model": "shop", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


LISTS = {"a text in a list": (["one"], "one"), "ids in a list": ([ids("one")], ids("one"))}


@pytest.mark.parametrize(("listed", "alone"), LISTS.values(), ids=LISTS)
async def test_a_list_of_one_prompt_is_that_prompt(g: Running, listed: Any, alone: Any) -> None:
    agent, other = await g.session(), await g.session()
    assert (await complete(agent, listed))["prompt_token_ids"] == (await complete(other, alone))[
        "prompt_token_ids"
    ]


async def test_a_prompt_over_the_window_is_told_in_openais_words() -> None:
    async with gateway(["x"]) as g:
        agent = await g.session()
        for prompt in (ids("word") * 5000, "word " * 50_000):
            with pytest.raises(openai.BadRequestError) as seen:
                await agent.openai().completions.create(model="shop", prompt=prompt)
            assert seen.value.code == "context_length_exceeded"


async def test_a_prompt_may_have_an_id_of_the_padded_output_layer_which_was_sampled(tmp_path: Path) -> None:
    """Checkpoints have more outputs than their tokenizer has ids (Qwen: 267), and a policy samples one in the end."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"vocab_size": codec().vocab_size + 64}))
    padding = codec().vocab_size + 3
    model = load_codec(folder, renderer="template")
    async with gateway([[*ids("one"), padding, *ids(" two"), EOS], "three"], model=model) as g:
        agent = await g.session()
        first = await complete(agent, ids("hi"))
        assert (first["token_ids"][1], first["text"]) == (padding, "one two")
        again = [*ids("hi"), *first["token_ids"], *ids("next")]
        assert (await complete(agent, again))["prompt_token_ids"] == again
        refused = await post(agent, [*again, codec().vocab_size + 64])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        (row,) = await g.finalize(agent)
    assert row["response_ids"][: len(first["token_ids"])] == first["token_ids"]


# --- restarts


async def test_a_tree_of_given_prompts_is_there_after_a_restart_and_goes_on() -> None:
    store = MemoryStore()
    async with gateway([" answer"], store=store) as g:
        agent = await g.session()
        first = await complete(agent, "one")
        before, handle = await g.tree(agent), agent.handle
    async with gateway([" later"], store=store) as g:
        agent = g.agent(handle)
        assert [turn["turn"] for turn in await g.tree(agent)] == [turn["turn"] for turn in before]
        again = await complete(agent, ids("one") + first["token_ids"] + ids("two"))
        assert again["text"] == " later"
        turns = await g.tree(agent)
        assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"]]
    await store.aclose()
