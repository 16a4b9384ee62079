"""Images by address through a whole gateway: fetched once a session, recorded, shown as if the client had sent them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandgate.contract.trajectory import from_json
from sandgate.gateway import offline
from sandgate.gateway.config import MediaConfig
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import ImagesFetched, PicturesKept
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.service import fetched_images
from tests.gateway.journal.samples import turn
from tests.gateway.media.image_host import ImageHost, image_host
from tests.gateway.media.seeing import codec, encoded, picture, shown, url
from tests.gateway.media.test_images import chat, engine, png
from tests.support.gateway import Running, gateway

RED, GREEN = url(), url("green")


@pytest.fixture
async def host() -> AsyncIterator[ImageHost]:
    async with image_host() as made:
        yield made


@pytest.fixture
async def g(host: ImageHost) -> AsyncIterator[Running]:
    async with gateway(engine(), model=codec(), media=MediaConfig(allowed_hosts=(host.origin,))) as running:
        yield running


def messages(image: str) -> tuple[str, dict[str, Any]]:
    block = {"type": "image", "source": {"type": "url", "url": image}}
    said = [{"role": "user", "content": [{"type": "text", "text": "what is it? "}, block]}]
    return "v1/messages", {"model": "shop", "max_tokens": 64, "messages": said}


def tool_result(image: str) -> tuple[str, dict[str, Any]]:
    block = {"type": "image", "source": {"type": "url", "url": image}}
    used = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    said: list[Any] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    return "v1/messages", {"model": "shop", "max_tokens": 64, "messages": said}


def responses(image: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_text", "text": "what is it? "}, {"type": "input_image", "image_url": image}]
    return "v1/responses", {"model": "shop", "input": [{"role": "user", "content": content}]}


def call_output(image: str) -> tuple[str, dict[str, Any]]:
    said = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "t1", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "t1",
            "output": [{"type": "input_image", "image_url": image}],
        },
    ]
    return "v1/responses", {"model": "shop", "input": said}


PLACES: dict[str, tuple[Callable[[str], tuple[str, dict[str, Any]]], str]] = {
    "an image_url part of a chat": (lambda image: chat("what is it? ", image), "messages[0].content[1].image_url.url"),
    "an image block of Messages": (messages, "messages[0].content[1].source.url"),
    "a tool_result of Messages": (tool_result, "messages[2].content[0].content[0].source.url"),
    "an input_image of Responses": (responses, "input[0].content[1].image_url"),
    "a function_call_output of Responses": (call_output, "input[2].output[0].image_url"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
async def test_an_address_is_shown_like_the_data_that_is_there(
    g: Running, host: ImageHost, place: str
) -> None:
    agent = await g.session()
    path, body = PLACES[place][0](f"{host.origin}/red.png")
    answer = await agent.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert g.engine.player.shown[-1] == png(RED)
    assert host.paths == ["/red.png"]


@pytest.mark.parametrize("place", PLACES)
async def test_an_address_of_no_listed_host_is_a_400_that_names_the_field_and_the_setting(
    g: Running, host: ImageHost, place: str
) -> None:
    agent = await g.session()
    make, field = PLACES[place]
    path, body = make("https://elsewhere.example/red.png")
    answer = await agent.http.post(path, json=body)
    assert answer.status_code == 400
    assert f"{field}: no image is fetched from https://elsewhere.example" in answer.text
    assert "spec.gateway.media.allowedHosts" in answer.text
    assert host.asked == []


async def test_an_address_is_fetched_once_in_a_session_and_is_what_it_was(
    g: Running, host: ImageHost
) -> None:
    agent, other = await g.session(), await g.session()
    there = f"{host.origin}/red.png"
    said = await agent.ask(shown("what is it?", there))
    host.answers["/red.png"] = encoded(picture("green"))
    await agent.ask(shown("what is it?", there), said, "sure?")  # the next turn
    await agent.ask(shown("and now?", f"{host.origin.upper().replace('HTTP', 'http')}/red.png#x"))  # a fork
    counted = await agent.http.post("v1/messages/count_tokens", json=messages(there)[1])
    assert counted.status_code == 200, counted.text
    assert set(g.engine.player.shown) == {png(RED)}
    assert host.paths == ["/red.png"]
    await other.ask(shown("what is it?", there))  # another session asks for itself
    assert g.engine.player.shown[-1] == png(GREEN)


async def test_what_was_fetched_survives_the_gateway_and_its_host(tmp_path: Path) -> None:
    journal = tmp_path / "journal.sqlite"
    async with image_host() as host:
        listed = MediaConfig(allowed_hosts=(host.origin,))
        there = f"{host.origin}/red.png"
        async with (
            await SqliteStore.open(journal) as store,
            gateway(engine(), model=codec(), store=store, media=listed) as g,
        ):
            agent = await g.session()
            handle, said = agent.handle, await agent.ask(shown("what is it?", there))
    async with (
        await SqliteStore.open(journal) as store,
        gateway(engine(), model=codec(), store=store, media=listed) as g,
    ):
        again = g.agent(handle)
        await again.ask(shown("what is it?", there), said, "sure?")
        assert g.engine.player.shown[-1] == png(RED)
        assert [turn["fork"] for turn in await g.tree(again)] == [None, None]
        records = [record for _, _, record in store.scan(again.id)]
        (fetched,) = [record for record in records if isinstance(record, ImagesFetched)]
        assert [image.address for image in fetched.images] == [there]
        kept = [
            one.digest for record in records if isinstance(record, PicturesKept) for one in record.pictures
        ]
        assert kept == [fetched.images[0].digest]
        (row,) = [from_json(one) for one in await g.finalize(again)]
        assert row.multimodal is not None
        assert offline.rows_of(journal.parent, again.id) == 1


async def test_the_address_and_the_same_picture_as_data_are_one_conversation(
    g: Running, host: ImageHost
) -> None:
    agent = await g.session()
    said = await agent.ask(shown("what is it?", f"{host.origin}/red.png"))
    await agent.ask(shown("what is it?", RED), said, "sure?")
    first, second = await g.tree(agent)
    assert second["parent"] == first["turn"]


async def test_two_calls_at_once_that_name_an_address_are_shown_the_same(g: Running, host: ImageHost) -> None:
    colors = iter(("red", "green"))

    async def changing(_: web.Request) -> web.Response:
        return web.Response(body=encoded(picture(next(colors))))

    host.answers["/now.png"] = changing
    agent = await g.session()
    await asyncio.gather(*(agent.ask(shown(text, f"{host.origin}/now.png")) for text in ("one", "two")))
    assert set(g.engine.player.shown) == {png(RED)}
    assert host.paths == ["/now.png"]


@pytest.mark.parametrize("slow", [2, 1], ids=["one of two", "the only one has all places"])
async def test_a_host_that_is_slow_keeps_nobody_from_the_images_of_another(
    host: ImageHost, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_images, "AT_ONCE", 4)
    held, go = asyncio.Semaphore(0), asyncio.Event()

    async def waits(_: web.Request) -> web.Response:
        held.release()
        await go.wait()
        return web.Response(body=encoded(picture("green")))

    async with image_host() as other:
        hosts = (host.origin, other.origin)[:slow]
        for number in range(6):
            host.answers[f"/{number}.png"] = waits
        async with (
            gateway(engine(), model=codec(), media=MediaConfig(allowed_hosts=hosts)) as g,
            asyncio.TaskGroup() as tasks,
        ):
            for half in range(2):
                agent = await g.session()
                images = [shown("a", f"{host.origin}/{3 * half + at}.png") for at in range(3)]
                tasks.create_task(agent.ask(*images))
            places = 2 if slow == 2 else 4
            for _ in range(places):
                await held.acquire()
            if slow == 2:
                assert (
                    await (await g.session()).post(shown("b", f"{other.origin}/red.png"))
                ).status_code == 200
            assert len(host.asked) == places
            go.set()
    assert len(host.asked) == 6


async def test_nothing_is_recorded_of_what_was_no_image(g: Running, host: ImageHost) -> None:
    host.answers["/page"] = b"<html>"
    agent = await g.session()
    answer = await agent.post(shown("a", f"{host.origin}/red.png"), shown("b", f"{host.origin}/page"))
    assert answer.status_code == 400
    assert "messages[1].content[1].image_url.url: it is no whole PNG" in answer.text
    assert not [record for _, _, record in g.store.scan(agent.id) if isinstance(record, ImagesFetched)]
    assert g.generations == 0


async def test_a_full_journal_takes_no_more_images(host: ImageHost) -> None:
    media = MediaConfig(allowed_hosts=(host.origin,))
    async with gateway(engine(), model=codec(), media=media, session_limits={"journal_bytes": 1}) as g:
        agent = await g.session()
        counted = await agent.http.post(
            "v1/messages/count_tokens", json=messages(f"{host.origin}/red.png")[1]
        )
        assert (counted.status_code, host.asked) == (400, [])
        assert "journalBytes" in counted.text


async def test_who_has_its_share_of_a_tight_journal_has_no_more_images_fetched(host: ImageHost) -> None:
    media, store = MediaConfig(allowed_hosts=(host.origin,)), MemoryStore(MemoryDisk(size=1 << 20))
    async with gateway(engine(), model=codec(), media=media, store=store) as g:
        agent = await g.session()
        session = g.core.sessions.get(agent.id)
        while not store.space.tight:
            await g.core.sessions.record(session, turn(str(session.turns), tokens=2_000))
        counted = await agent.http.post(
            "v1/messages/count_tokens", json=messages(f"{host.origin}/red.png")[1]
        )
        assert (counted.status_code, host.asked) == (400, [])
        assert "journalShare" in counted.text


async def test_a_model_of_text_fetches_nothing(host: ImageHost) -> None:
    async with gateway(media=MediaConfig(allowed_hosts=(host.origin,))) as g:
        agent = await g.session()
        answer = await agent.post(shown("a", f"{host.origin}/red.png"))
        assert (answer.status_code, host.asked) == (400, [])
        assert "text only" in answer.text
