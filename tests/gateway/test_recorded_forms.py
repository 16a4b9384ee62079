"""A row says which of its turns the engine was held to a form: their logprobs are of what a grammar left."""

from __future__ import annotations

from tests.support.gateway import BUY, call_text, gateway


async def test_a_turn_that_was_held_to_a_form_says_so_and_no_other_does() -> None:
    async with gateway([call_text("buy", item="kiwi", n=7), '{"a": 1}', '{"a": 1}', "plain"]) as up:
        agent = await up.session()
        await agent.ask("buy", tools=[BUY], tool_choice="required")
        for _ in range(2):
            await agent.ask("json", response_format={"type": "json_object"})
        await agent.ask("free")
        rows = {row["turn_ids"][0]: row for row in await up.finalize(agent)}
        made = await up.tree(agent)
    settings = [
        {**row["sampling"], **(own.get("sampling", {}) if row["turn_settings"] else {})}
        for row in rows.values()
        for own in (row["turn_settings"] or [{}] * len(row["turn_ids"]))
    ]
    assert len(made) == len(settings) == 4
    forms = [one.get("structured_outputs") for one in settings]
    held = [(form["kind"], form["sha256"]) for form in forms if form is not None]
    assert len(held) == 3
    assert len(set(held)) == 2, "two were held to the same"
    assert {kind for kind, _ in held} <= {"structural_tag", "json_object"}
