"""What one session keeps of responses is nobody else's, whatever is asked for at once, and costs others no time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Agent, Running, gateway

STEP_S = 0.05
"""CPU time for which nothing may hold the event loop, five times what was seen: the client's work is in it, and others
use this machine. It was up to 240 ms."""


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(lambda ids, number: f"<think>\nso\n</think>\n\nanswer {number}") as running:
        yield running


async def post(agent: Agent, **body: Any) -> httpx.Response:
    return await agent.http.post("v1/responses", json={"model": "shop", "input": "hi", **body})


ATTACKS: dict[str, Any] = {
    "GET": lambda thief, made, url: thief.http.get(url),
    "GET of its input": lambda thief, made, url: thief.http.get(f"{url}/input_items"),
    "DELETE": lambda thief, made, url: thief.http.delete(url),
    "cancel": lambda thief, made, url: thief.http.post(f"{url}/cancel"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_another_sessions_response_is_not_there(g: Running, attack: Any) -> None:
    owner, thief = await g.session(), await g.session()
    made = (await post(owner)).json()
    by_own_path = await attack(thief, made, f"v1/responses/{made['id']}")
    assert by_own_path.status_code == 404
    by_its_path = await attack(thief, made, f"{owner.handle['base_url']}/responses/{made['id']}")
    assert by_its_path.status_code == 403
    by_turn = await attack(thief, made, f"v1/responses/{made['id'].removeprefix('resp_')}")
    assert by_turn.status_code == 404
    for answer in (by_own_path, by_its_path, by_turn):
        assert "answer" not in answer.text
    assert (await owner.http.get(f"v1/responses/{made['id']}")).json() == made


async def test_another_sessions_response_is_nothing_to_go_on_from(g: Running) -> None:
    owner, thief = await g.session(), await g.session()
    made = (await post(owner, include=["reasoning.encrypted_content"])).json()
    assert (await post(thief, previous_response_id=made["id"])).status_code == 400
    for item in made["output"]:
        reference = {"type": "item_reference", "id": item["id"]}
        assert (await post(thief, input=[reference])).status_code == 404
        assert (await post(owner, input=[{"role": "user", "content": "hi"}, reference])).status_code == 200
    assert await g.tree(thief) == []


IDS = [
    "",
    "resp_",
    "%00",
    "%2e%2e%2f",
    "a" * 60_000,
    "é",
    "%F0%9F%A5%9D",
    "resp_%0d%0ax: y",
    "*",
    "__class__",
]


@pytest.mark.parametrize("name", IDS, ids=range(len(IDS)))
@pytest.mark.parametrize("behind", ["", "/input_items", "/input_items/x", "/cancel"])
async def test_odd_ids_are_not_found(g: Running, name: str, behind: str) -> None:
    agent = await g.session()
    for method in ("GET", "DELETE", "PUT"):
        answer = await agent.http.request(method, f"v1/responses/{name}{behind}")
        assert answer.status_code in (404, 405), answer.text
        assert len(answer.content) < 2_000


async def test_what_is_not_stored_cannot_be_gone_on_from(g: Running) -> None:
    agent = await g.session()
    hidden = (await post(agent, store=False)).json()
    assert (await agent.http.get(f"v1/responses/{hidden['id']}")).status_code == 404
    assert (await post(agent, previous_response_id=hidden["id"])).status_code == 400
    shown = (await post(agent, input="other")).json()
    last = (await post(agent, input="and", previous_response_id=shown["id"], store=False)).json()
    assert last["previous_response_id"] == shown["id"]
    assert (await post(agent, previous_response_id=last["id"])).status_code == 400
    _, second, third = await g.tree(agent)
    assert (second["parent"], third["parent"]) == (None, second["turn"])


async def test_deletions_and_requests_at_once_are_one_or_the_other(g: Running) -> None:
    agent = await g.session()
    first = (await post(agent)).json()["id"]
    second = (await post(agent, input="b", previous_response_id=first)).json()["id"]
    asked = [post(agent, input=f"{n}", previous_response_id=second) for n in range(8)]
    gone = [agent.http.delete(f"v1/responses/{first}") for _ in range(4)]
    reads = [agent.http.get(f"v1/responses/{name}") for name in (first, second) for _ in range(4)]
    answers = await asyncio.gather(*asked, *gone, *reads)
    went_on, deleted, read = answers[:8], answers[8:12], answers[12:]
    assert {answer.status_code for answer in went_on} <= {200, 400}
    assert sorted(answer.status_code for answer in deleted).count(200) >= 1
    assert {answer.status_code for answer in (*deleted, *read)} <= {200, 404}
    assert {answer.status_code for answer in read[4:]} == {200}
    tree = {turn["turn"]: turn["parent"] for turn in await g.tree(agent)}
    for answer in went_on:
        if answer.status_code == 200:
            assert tree[answer.json()["id"].removeprefix("resp_")] == second.removeprefix("resp_")
    kept = g.core.sessions.get(agent.id).kept
    assert len(kept.by_turn) == len(tree) - 1
    assert kept.weight == sum(map(kept._weight, kept.by_turn.values()))


async def test_a_deletion_while_a_request_that_goes_on_from_it_is_sampled_leaves_the_turn(g: Running) -> None:
    agent = await g.session()
    first = (await post(agent)).json()["id"]
    wants, gone = await asyncio.gather(
        post(agent, input="b", previous_response_id=first), agent.http.delete(f"v1/responses/{first}")
    )
    assert gone.status_code == 200
    if wants.status_code == 200:
        read = await agent.http.get(f"v1/responses/{wants.json()['id']}")
        assert read.json() == wants.json()
        more = await post(agent, previous_response_id=wants.json()["id"])
        assert more.status_code == 400


class Watch:
    """The longest time for which this thread worked between two turns of the event loop."""

    def __init__(self) -> None:
        self.most_s = 0.0

    async def __aenter__(self) -> Watch:
        self._task = asyncio.ensure_future(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            self.most_s = max(self.most_s, time.thread_time() - last)
            last = time.thread_time()


REASONING = b'{"type":"reasoning","summary":[],"n":%d},'
WIDE = b",".join(b'"k%d":1' % number for number in range(300_000))
BODIES = {
    "19,000 items": b"".join(REASONING % number for number in range(19_000))
    + b'{"role":"user","content":"x"}',
    "one item 19,000 times": REASONING % 0 * 19_000 + b'{"role":"user","content":"x"}',
    "an item of 300,000 names": b'{"role":"user","content":"x",' + WIDE + b"}",
}


@pytest.mark.parametrize("items", BODIES.values(), ids=BODIES)
async def test_much_that_is_kept_holds_the_event_loop_for_moments_only(g: Running, items: bytes) -> None:
    least: dict[str, float] = {}
    for number in range(3):
        agent = await g.session()  # one that wastes so much waits
        body = b'{"model":"shop","user":"%d","input":[%s]}' % (number, items)
        async with Watch() as watch:
            made = await agent.http.post("v1/responses", content=body)
        assert made.status_code == 200, made.text
        steps = {"POST": watch.most_s}
        name = made.json()["id"]
        for path in ("", "/input_items"):
            async with Watch() as watch:
                read = await agent.http.get(f"v1/responses/{name}{path}")
            assert read.status_code == 200
            steps[f"GET{path}"] = watch.most_s
        async with Watch() as watch:
            more = await post(agent, input=f"and {number}", previous_response_id=name)
        assert more.status_code == 200, more.text
        steps["going on"] = watch.most_s
        least = {what: min(took, least.get(what, took)) for what, took in steps.items()}
    assert {what: took for what, took in least.items() if took > STEP_S} == {}


async def test_input_items_have_an_id_each_however_many_members_they_have(g: Running) -> None:
    agent = await g.session()
    sent: list[Any] = [
        {"role": "user", "content": "hi", "x": None},
        {"id": None, "role": "user", "content": "a"},
        {"role": "user", "content": "b", "id": "own"},
        {"role": "user", "content": "c", **{f"k{number}": 1 for number in range(20_000)}},
    ]
    name = (await post(agent, input=sent)).json()["id"]
    listed = (await agent.http.get(f"v1/responses/{name}/input_items?order=asc")).json()
    turn = name.removeprefix("resp_")
    ids = [f"in_{turn}_0", f"in_{turn}_1", "own", f"in_{turn}_3"]
    assert [item["id"] for item in listed["data"]] == ids
    assert [item["content"] for item in listed["data"]] == [
        *([{"type": "input_text", "text": text}] for text in "hi a b".split()),
        "c",
    ]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (ids[0], ids[3], False)
