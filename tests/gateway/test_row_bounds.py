"""What a session's trainer takes is held before anything is sampled, and told in the client's own words."""

from __future__ import annotations

import openai
import pytest

from sandgate.gateway.config import SessionLimits
from sandgate.gateway.service.row_bounds import bounds, most
from tests.support.gateway import gateway

LONG = "kiwi " * 40


async def size_of(limits: dict[str, int], *texts: str, **gateways: int) -> tuple[int, int]:
    """(prompt, sampled) tokens of a first turn within these limits; `gateways`: what sessions have otherwise."""
    async with gateway(lambda ids, number: LONG, session_limits=gateways) as g:
        agent = await g.session(limits=limits)
        assert (await agent.post(*texts)).status_code == 200
        (turn,) = await g.tree(agent)
        (row,) = await g.finalize(agent)
        return len(row["prompt_ids"]), turn["sampled_tokens"]


async def test_an_answer_ends_where_the_trainers_row_ends() -> None:
    prompt, sampled = await size_of({}, "hi")
    assert sampled > 10
    assert await size_of({"response_tokens": 10}, "hi") == (prompt, 10)
    assert await size_of({"promptTokens": prompt, "responseTokens": 7}, "hi") == (prompt, 7)


async def test_a_gateway_has_bounds_for_sessions_that_bring_none() -> None:
    """A job's sessions are opened by the operator, by trainers, and through AReaL's protocol."""
    prompt, sampled = await size_of({}, "hi")
    assert await size_of({}, "hi", response_tokens=10) == (prompt, 10)
    assert await size_of({"response_tokens": 7}, "hi", response_tokens=10) == (prompt, 7)
    assert await size_of({"response_tokens": 0}, "hi", response_tokens=10) == (prompt, sampled)
    async with gateway(["kiwi"], session_limits={"prompt_tokens": prompt - 1}) as g:
        agent = await g.session()
        assert (await agent.post("hi")).status_code == 400
        assert g.generations == 0


async def test_a_first_prompt_over_the_bound_is_refused_before_it_is_sampled() -> None:
    prompt, _ = await size_of({}, "hi")
    async with gateway(["kiwi"]) as g:
        agent = await g.session(limits={"prompt_tokens": prompt - 1, "response_tokens": 500})
        with pytest.raises(openai.BadRequestError) as seen:
            await agent.openai().chat.completions.create(
                model="shop", messages=[{"role": "user", "content": "hi"}]
            )
        assert seen.value.code == "context_length_exceeded"
        assert f"{prompt - 1} tokens" in seen.value.message
        assert g.generations == 0
        said = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert said["limit_reached"] == "context"


async def test_a_history_over_the_bound_is_refused_in_anthropics_words() -> None:
    async with gateway(lambda ids, number: "kiwi") as g:
        agent = await g.session(limits={"prompt_tokens": 400, "response_tokens": 30})
        body = {"model": "shop", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}
        answer = (await agent.http.post("v1/messages", json=body)).json()
        assert answer["usage"]["output_tokens"] < 30
        more = [{"role": "assistant", "content": "kiwi"}, {"role": "user", "content": LONG}]
        refused = await agent.http.post("v1/messages", json={**body, "messages": body["messages"] + more})  # type: ignore[operator]
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("prompt is too long: ")
        assert g.generations == 1


async def test_all_that_follows_the_first_prompt_is_within_the_bound_whatever_the_agent_asks() -> None:
    async with gateway(lambda ids, number: "kiwi " * (1 + number)) as g:
        agent = await g.session(limits={"prompt_tokens": 400, "response_tokens": 90})
        history: list[object] = ["hi"]
        while (answer := await agent.post(*history, max_tokens=1_000_000)).status_code == 200:
            history += [answer.json()["choices"][0]["message"], "and then?"]
        assert answer.status_code == 400
        rows = await g.finalize(agent)
        assert [len(row["response_ids"]) <= 90 for row in rows] == [True]
        assert len(rows[0]["turn_ids"]) > 1


async def test_a_conversation_that_begins_anew_has_the_bounds_for_itself() -> None:
    async with gateway(lambda ids, number: "kiwi") as g:
        agent = await g.session(limits={"response_tokens": 12})
        for number in range(6):
            assert (await agent.post(f"title {number}")).status_code == 200
        assert len(await g.finalize(agent)) == 6


@pytest.mark.parametrize(
    ("limits", "window"),
    [({}, 100), ({"prompt_tokens": 8, "response_tokens": 9}, 17), ({"prompt_tokens": 8}, 100),
     ({"response_tokens": 9}, 100), ({"prompt_tokens": 80, "response_tokens": 90}, 100),
     ({"prompt_tokens": None, "response_tokens": 0}, 100)],
)  # fmt: skip
def test_no_prompt_may_be_longer_than_both_bounds_and_the_window(
    limits: dict[str, int | None], window: int
) -> None:
    assert most(bounds(limits, SessionLimits()), 100) == window


SUMMARISE, TITLE = "Please summarize the conversation so far.", "Generate a short title for it."
AFTER: dict[str, tuple[list[str], str | None]] = {
    "nothing more": ([], "context"),
    "a summary alone": ([SUMMARISE], "context"),
    "a title alone": ([TITLE], "context"),
    "a summary, and it went on": ([SUMMARISE, "Summary: we said hello. Go on."], None),
    "it went on, and its prompt was too long again": (["Go on.", "much " * 400], "context"),
}


@pytest.mark.parametrize(("asks", "reached"), AFTER.values(), ids=AFTER)
async def test_a_window_that_a_session_got_over_is_not_the_reason_of_its_end(
    asks: list[str], reached: str | None
) -> None:
    async with gateway(lambda ids, number: "kiwi", max_model_len=200) as g:
        agent = await g.session()
        await agent.ask("hello")
        assert (await agent.post("word " * 400)).status_code == 400
        for said in asks:
            await agent.post(said)
        assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["limit_reached"] == reached
