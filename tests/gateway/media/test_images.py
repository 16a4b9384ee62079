"""Images through a whole gateway, in each protocol: to the engine, into the journal, into the row; and never lost."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.trajectory import from_json
from sandgate.gateway import offline
from sandgate.gateway.engine.scripted.engine import ScriptedEngine
from sandgate.gateway.journal.records import PicturesKept, TurnCommitted
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.media.pictures import read
from tests.gateway.media import seeing
from tests.gateway.media.seeing import RULE, codec, encoded, ids, picture, placeholder, shown, url
from tests.support.gateway import Agent, Running, gateway

RED, GREEN, WIDE = url(), url("green"), url("green", (84, 28))
WINDOW = 4096


def engine(*said: str) -> ScriptedEngine:
    return ScriptedEngine(
        list(said or ("a cat",)),
        encode=ids,
        decode=codec().vocab.decode,
        eos_ids=codec().stop_ids,
        max_model_len=WINDOW,
        vocab_size=codec().vocab_size,
    )


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(engine(), model=codec()) as running:
        yield running


def split(image: str) -> dict[str, Any]:
    head, _, data = image.partition(",")
    return {"type": "base64", "media_type": head.removeprefix("data:").removesuffix(";base64"), "data": data}


def chat(*parts: str) -> tuple[str, dict[str, Any]]:
    return "v1/chat/completions", {"model": "shop", "messages": [shown(*parts)]}


def messages(*parts: str) -> tuple[str, dict[str, Any]]:
    content = [
        {"type": "image", "source": split(part)}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return "v1/messages", {
        "model": "shop",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": content}],
    }


def responses(*parts: str) -> tuple[str, dict[str, Any]]:
    content = [
        {"type": "input_image", "image_url": part}
        if part.startswith("data:")
        else {"type": "input_text", "text": part}
        for part in parts
    ]
    return "v1/responses", {"model": "shop", "input": [{"role": "user", "content": content}]}


PROTOCOLS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "chat": chat, "messages": messages, "responses": responses,
}  # fmt: skip


def png(*images: str) -> tuple[bytes, ...]:
    return tuple(read(base64.b64decode(one.partition(",")[2]), RULE).png for one in images)


async def ask(agent: Agent, wanted: tuple[str, dict[str, Any]], **more: Any) -> Any:
    path, body = wanted
    answer = await agent.http.post(path, json={**body, **more})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_engine_is_sent_the_picture_with_its_placeholders(
    g: Running, protocol: str, stream: bool
) -> None:
    agent = await g.session()
    await ask(agent, PROTOCOLS[protocol]("left ", RED, " right ", WIDE), stream=stream)
    prompt = g.engine.prompts[-1]
    pads = [f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in (4, 3)]
    text = f"<|im_start|>user\nleft {pads[0]} right {pads[1]}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids == array("i", ids(text))
    assert [(span.length, span.digest) for span in prompt.media] == [
        (4, prompt.pictures[0].digest), (3, prompt.pictures[1].digest)
    ]  # fmt: skip
    assert g.engine.player.shown[-1] == png(RED, WIDE)


@pytest.mark.parametrize("other", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_picture_alone_makes_another_conversation(g: Running, protocol: str, other: str) -> None:
    agent = await g.session()
    await ask(agent, PROTOCOLS[protocol]("what is it?", RED))
    answer = await ask(agent, PROTOCOLS[other]("what is it?", GREEN))
    first, second = g.engine.prompts
    assert first.ids == second.ids
    assert [turn["parent"] for turn in await g.tree(agent)] == [None, None]
    assert "x-sandgate-fork" in answer.headers
    rows = await g.finalize(agent)
    assert len(rows) == 2
    assert rows[0]["multimodal"] != rows[1]["multimodal"]


async def test_a_conversation_with_another_first_picture_goes_its_own_way(g: Running) -> None:
    agent = await g.session()
    for first in (RED, GREEN):
        said = await agent.ask(shown("what is it?", first))
        await agent.ask(shown("what is it?", first), said, "sure?")
    assert len({prompt.ids.tobytes() for prompt in g.engine.prompts}) == 2
    one, one_more, two, two_more = await g.tree(agent)
    assert (one["parent"], two["parent"]) == (None, None)
    assert (one_more["parent"], two_more["parent"]) == (one["turn"], two["turn"])
    mixed = await agent.post(shown("what is it?", RED), {"role": "assistant", "content": "a dog"}, "sure?")
    assert mixed.status_code == 200


async def test_later_turns_are_bridged_and_new_pictures_too(g: Running) -> None:
    agent = await g.session()
    history: list[Any] = [shown("what is it?", RED)]
    for more in ("sure?", shown(WIDE, "and this?"), "sure?"):
        history += [await agent.ask(*history), more]
    await agent.ask(*history)
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 4
    assert [turn["parent"] for turn in turns] == [None, *(turn["turn"] for turn in turns[:-1])]
    assert [[image["length"] for image in turn["images"]] for turn in turns] == [[4], [], [3], []]
    assert [turn["spans"][0]["text"].count("<|image_pad|>") for turn in turns] == [1, 0, 1, 0]
    whole = g.engine.prompts[-1]
    assert whole.ids.count(placeholder()) == 7
    assert g.engine.player.shown[-1] == png(RED, WIDE)
    for span in whole.media:
        assert whole.ids[span.start : span.start + span.length].count(placeholder()) == span.length
    (row,) = [from_json(one) for one in await g.finalize(agent)]
    await told_in(row, whole.media)


async def told_in(row: Any, media: Any) -> None:
    assert row.multimodal is not None
    size = int.from_bytes(row.multimodal[:8], "little")
    header = json.loads(row.multimodal[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sandgate"])
    assert about["version"] == 1
    assert [(one["start"], one["length"], one["digest"]) for one in about["images"]] == [
        (span.start, span.length, span.digest.hex()) for span in media
    ]
    all_ids = row.prompt_ids + row.response_ids
    for one in about["images"]:
        assert all_ids[one["start"] : one["start"] + one["length"]].count(placeholder()) == one["length"]
        start, end = header[f"png.{one['digest']}"]["data_offsets"]
        assert row.multimodal[8 + size + start : 8 + size + end].startswith(b"\x89PNG")


async def test_a_retry_is_not_sampled_twice_and_another_picture_is(g: Running) -> None:
    agent = await g.session()
    body = {"model": "shop", "messages": [shown("q", RED)]}
    retry = {"x-stainless-retry-count": "1"}
    first = await agent.http.post("v1/chat/completions", json=body)
    again = await agent.http.post("v1/chat/completions", json=body, headers=retry)
    assert (again.json(), g.generations) == (first.json(), 1)
    body["messages"] = [shown("q", GREEN)]
    other = await agent.http.post("v1/chat/completions", json=body, headers=retry)
    assert (other.status_code, g.generations) == (200, 2)


TOOL = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object", "properties": {}}}}


async def test_an_image_in_a_tools_answer_of_claude_code(g: Running) -> None:
    agent = await g.session()
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "image", "source": split(RED)}],
    }
    body = {
        "model": "shop", "max_tokens": 64, "tools": [{"name": "buy", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "buy", "input": {}}]},
            {"role": "user", "content": [result]},
        ],
    }  # fmt: skip
    await ask(agent, ("v1/messages", body))
    assert g.engine.player.shown[-1] == png(RED)


async def test_an_image_in_a_tools_answer_of_codex(g: Running) -> None:
    agent = await g.session()
    body = {
        "model": "shop", "tools": [{"type": "function", "name": "buy", "parameters": {"type": "object"}}],
        "input": [
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "buy", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1",
             "output": [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": RED}]},
        ],
    }  # fmt: skip
    await ask(agent, ("v1/responses", body))
    assert g.engine.player.shown[-1] == png(RED)


async def test_a_kept_response_is_gone_on_from_with_its_picture(g: Running) -> None:
    agent = await g.session()
    first = (await ask(agent, responses("q", RED))).json()
    await ask(
        agent, ("v1/responses", {"model": "shop", "input": "sure?", "previous_response_id": first["id"]})
    )
    assert g.engine.player.shown[-1] == png(RED)
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]


async def test_tokens_are_counted_with_the_pictures(g: Running) -> None:
    agent = await g.session()
    path, body = messages("q", RED)
    counted = (await ask(agent, ("v1/messages/count_tokens", body))).json()["input_tokens"]
    await ask(agent, (path, body))
    assert counted == len(g.engine.prompts[-1].ids)


REFUSED: dict[str, tuple[tuple[str, dict[str, Any]], str]] = {
    "an address (chat)": (chat("q", "data:image/png;base64,x"), "image 1 of the request: its data is no base64"),
    "no picture (messages)": (messages(seeing.data_url(b"hello")), "image 1 of the request: it is no whole PNG"),
    "half a picture (responses)": (
        responses(seeing.data_url(encoded(picture("red", (560, 560)))[:300])),
        "image 1 of the request: it is no whole PNG",
    ),
    "a thousand": (chat(*[RED] * 1000), "the request has 1000 images; at most 100 are taken"),
    "more placeholders than the window": (
        chat(*[url("red", (560, 560))] * 99, "q w e " * 2000),
        "context length",
    ),
    "in a system message": (
        ("v1/chat/completions", {"model": "shop", "messages": [
            {"role": "system", "content": [seeing.chat_part(RED)]}, shown("q")]}),
        "",
    ),
    "in an assistant's message": (
        ("v1/responses", {"model": "shop", "input": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "input_image", "image_url": RED}]},
            {"role": "user", "content": "q"}]}),
        "assistant message has an image",
    ),
    "placeholders as ids": (
        ("inference/v1/generate", {"token_ids": [5, placeholder()], "sampling_params": {"max_tokens": 1}}),
        "images are taken in messages only",
    ),
    "placeholders as ids of a completion": (
        ("v1/completions", {"model": "shop", "prompt": [5, placeholder()]}),
        "images are taken in messages only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_a_picture_that_cannot_be_shown_is_a_400_and_no_turn(g: Running, case: str) -> None:
    (path, body), why = REFUSED[case]
    agent = await g.session()
    answer = await agent.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert why in answer.text
    assert g.generations == 0
    assert await g.tree(agent) == []


BROKEN = seeing.data_url(b"zz")
NAMED: dict[str, tuple[tuple[str, dict[str, Any]], str]] = {
    "chat": (chat(BROKEN), "messages"),
    "responses have no messages": (responses(BROKEN), "input"),
}


@pytest.mark.parametrize("case", NAMED)
async def test_a_broken_picture_is_named_by_a_field_of_its_protocol_in_the_same_words_each_time(
    g: Running, case: str
) -> None:
    (path, body), field = NAMED[case]
    agent = await g.session()
    first, again = [(await agent.http.post(path, json=body)).json()["error"] for _ in range(2)]
    assert first == again
    assert first["param"] == field
    assert first["message"].endswith("image 1 of the request: it is no whole PNG, JPEG, WebP or GIF")


ADDRESSES: dict[str, tuple[tuple[str, dict[str, Any]], str]] = {
    "chat": (
        ("v1/chat/completions", {"model": "shop", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}]}]}),
        "messages[0].content[0].image_url.url",
    ),
    "messages": (
        ("v1/messages", {"model": "shop", "max_tokens": 1, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]}]}),
        "messages[0].content[0].source.url",
    ),
    "responses": (
        ("v1/responses", {"model": "shop", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "file:///etc/passwd"}]}]}),
        "input[0].content[0].image_url",
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", ADDRESSES)
async def test_an_address_is_a_400_that_names_the_field(g: Running, protocol: str) -> None:
    (path, body), field = ADDRESSES[protocol]
    answer = await (await g.session()).http.post(path, json=body)
    assert answer.status_code == 400
    assert f"{field}: " in answer.text
    assert "spec.gateway.media.allowedHosts" in answer.text


async def test_a_completion_that_spells_a_turn_with_a_picture_does_not_join_it(g: Running) -> None:
    agent = await g.session()
    await agent.ask(shown("q", RED))
    text = codec().decode(g.engine.prompts[-1].ids) + "a cat<|im_end|>"
    answer = await agent.http.post("v1/completions", json={"model": "shop", "prompt": text})
    assert answer.status_code == 400, answer.text
    assert len(await g.tree(agent)) == 1


async def test_a_placeholder_that_the_model_sampled_is_not_taken_for_a_picture() -> None:
    async with gateway(engine("odd <|image_pad|> thing"), model=codec()) as g:
        agent = await g.session()
        said = await agent.ask(shown("q", RED))
        answer = await agent.post(shown("q", RED), said, "sure?")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-sandgate-fork"] == "multimodal_not_bridgeable"
        assert g.engine.prompts[-1].ids.count(placeholder()) == 4


async def test_pictures_and_branches_live_through_a_restart(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "journal.sqlite")
    async with store, gateway(engine(), model=codec(), folder=tmp_path, store=store) as g:
        agent = await g.session()
        said = await agent.ask(shown("q", RED))
        handle = agent.handle
        await agent.ask(shown("q", RED), said, shown(WIDE))
    store = await SqliteStore.open(tmp_path / "journal.sqlite")
    async with store, gateway(engine(), model=codec(), folder=tmp_path, store=store) as g:
        agent = g.agent(handle)
        other = await agent.post(shown("q", GREEN), said, "sure?")
        assert other.status_code == 200
        await agent.ask(shown("q", RED), said, "sure?")
        turns = await g.tree(agent)
        assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], None, turns[0]["turn"]]
        records = [record for _, _, record in g.store.scan(agent.id)]
        kept = [one for record in records if isinstance(record, PicturesKept) for one in record.pictures]
        assert len(kept) == len({one.digest for one in kept}) == 3
        assert {record.schema for record in records if isinstance(record, TurnCommitted)} == {8, 1}
        rows = [from_json(row) for row in await g.finalize(agent)]
        assert len(rows) == offline.rows_of(tmp_path, agent.id) == 3
        assert all(row.multimodal for row in rows)


async def test_a_session_of_text_has_rows_without_pictures(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hello")
    (row,) = await g.finalize(agent)
    assert row["multimodal"] is None


async def test_a_model_of_text_answers_a_picture_with_400() -> None:
    async with gateway() as g:
        agent = await g.session()
        for path, body in (chat(RED), messages(RED), responses(RED)):
            answer = await agent.http.post(path, json=body)
            assert answer.status_code == 400
            assert "text only; images cannot be given" in answer.text
        assert g.generations == 0
