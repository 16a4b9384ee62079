"""The trace viewer at /ui, in a real Chromium, of a real gateway: what it draws, and that what agents and models say is
text in it and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from openai import AsyncOpenAI

from sandgate.gateway.web.trace_viewer import FILES
from sandgate.trainer.testing import RunningGateway, gateway
from tests.support.browser import Page, browser

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SESSION = "shop-kiwi-0"


@pytest.fixture
async def running() -> AsyncIterator[RunningGateway]:
    """A gateway with two turns of one conversation, and a title that was asked beside it."""
    async with gateway(["buy(kiwi, 7)", f"receipt {MARKUP}", "Kiwi"]) as running:
        created = await running.client.create_session(session_id=SESSION, uid="kiwi", job="shop")
        messages = [{"role": "user", "content": f"buy 7 kiwi {MARKUP}"}]
        async with AsyncOpenAI(base_url=created.base_url, api_key=created.api_key) as agent:
            first = await agent.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
            messages += [
                {"role": "assistant", "content": first.choices[0].message.content or ""},
                {"role": "user", "content": "and the receipt?"},
            ]
            await agent.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
            await agent.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "title of this chat?"}],
                extra_headers={"x-sandgate-role": "side"},
            )
        await running.client.finalize(created.session_id, reward=0.5)
        yield running


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with browser(tmp_path) as page:
        yield page


def viewer(running: RunningGateway, **fragment: str) -> str:
    return f"{running.origin}/ui#{urlencode(fragment)}"


@pytest.mark.slow
async def test_a_session_is_drawn_as_it_was(running: RunningGateway, page: Page) -> None:
    await page.open(viewer(running, key=running.admin_key, session=SESSION))
    assert await page.until("document.querySelectorAll('.turn').length") == 3
    row = await page.run("[...document.querySelectorAll('#sessions tr td')].map((cell) => cell.textContent)")
    assert row == [SESSION, "kiwi", "finalized", "3", "1", "0.5"]
    heads = await page.run("[...document.querySelectorAll('.head')].map((head) => head.innerText)")
    assert "fork: new_root" in heads[2]
    assert "side (x-sandgate-role)" in heads[2]
    assert "fork" not in heads[0] + heads[1]
    branches = await page.run("[...document.querySelectorAll('.turn')].map((turn) => turn.className)")
    assert branches == ["turn branch", "turn", "turn branch"]

    tree = await running.client.tree(SESSION)
    shown = await page.run("[...document.querySelectorAll('.sampled')].map((span) => span.textContent)")
    assert shown == [turn["spans"][1]["text"] for turn in tree["turns"]]

    await page.run("[...document.querySelectorAll('.turn details')].forEach((one) => { one.open = true; })")
    await page.until("document.querySelectorAll('.tokens').length === 3")
    cells = await page.run(
        "[...document.querySelectorAll('.tokens')].map((row) => "
        "[...row.children].map((cell) => [Number(cell.textContent), Number(cell.title.split(' ').at(-1))]))"
    )
    expected = [
        [list(pair) for pair in zip(turn["spans"][1]["ids"], turn["logprobs"], strict=True)]
        for turn in tree["turns"]
    ]
    assert cells == expected


@pytest.mark.slow
async def test_what_agents_and_models_say_is_text(running: RunningGateway, page: Page) -> None:
    await page.open(viewer(running, key=running.admin_key, session=SESSION))
    await page.until("document.querySelectorAll('.turn').length")
    assert await page.run("document.title") == "Sandgate traces"
    assert await page.run("document.querySelectorAll('article img, article script').length") == 0
    assert MARKUP in await page.run("document.querySelector('.context').textContent")
    # Even if it were markup, the browser would not run it.
    await page.run(f"document.querySelector('article').innerHTML = {MARKUP!r}")
    assert await page.run("document.title") == "Sandgate traces"


@pytest.mark.slow
async def test_the_key_leaves_the_address_and_a_wrong_one_is_told(
    running: RunningGateway, page: Page
) -> None:
    await page.open(viewer(running, key="sg-wrong", session=SESSION))
    assert "key" in await page.until("!document.getElementById('error').hidden && document.body.innerText")
    assert await page.run("location.href") == f"{running.origin}/ui"
    assert await page.run("document.querySelectorAll('#sessions tr').length") == 0

    await page.run(f"document.getElementById('key').value = {running.admin_key!r}")
    await page.run("document.querySelector('form button').click()")
    await page.until("document.querySelectorAll('#sessions tr').length === 1")
    await page.run("document.querySelector('#sessions tr').click()")
    assert await page.until("document.querySelectorAll('.turn').length") == 3


async def test_its_files_want_no_key_and_hold_nothing(running: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=running.origin) as http:
        for path, (_, kind) in FILES.items():
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert running.admin_key not in answer.text
            assert SESSION not in answer.text
        assert (await http.get("/ui/../../etc/passwd")).status_code == 404
