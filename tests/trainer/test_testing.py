"""What users test with works as they are told: a real gateway process, a scripted engine, exact rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from typer.testing import CliRunner

from sandgate.contract.errors import NotFound, Unavailable
from sandgate.gateway.tokens.load import load_codec, read_checkpoint
from sandgate.trainer import tinymodel
from sandgate.trainer.cli.command import app
from sandgate.trainer.testing import RunningGateway, gateway

TEXTS = [
    "",
    "buy 7 kiwi",
    "naïve café — 你好 🙂",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<tool_call>\n{}\n</tool_call>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tiny_tokenizer_is_what_its_file_says(tmp_path: Path, text: str) -> None:
    vocab = read_checkpoint(tinymodel.write_tiny_model(tmp_path)).vocab
    assert list(vocab.encode(text)) == tinymodel.encode(text)
    assert vocab.decode(tinymodel.encode(text)) == text == tinymodel.decode(tinymodel.encode(text))


def test_the_tiny_template_bridges_every_kind_of_tail(tmp_path: Path) -> None:
    codec = load_codec(tinymodel.write_tiny_model(tmp_path))
    shapes = codec.shapes()  # type: ignore[attr-defined]
    assert {name: shape.why for name, shape in shapes.items() if hasattr(shape, "why")} == {}
    assert tinymodel.END in codec.stop_ids


async def talk(running: RunningGateway, session_id: str, *asked: str) -> list[str]:
    """One conversation through OpenAI's own client; what was answered."""
    handle = await running.client.create_session(session_id=session_id, uid="q1", job="shop")
    said: list[dict[str, str]] = []
    answers = []
    async with AsyncOpenAI(base_url=handle.base_url, api_key=handle.api_key, max_retries=0) as client:
        for text in asked:
            said.append({"role": "user", "content": text})
            reply = await client.chat.completions.create(model=running.model, messages=said)  # type: ignore[arg-type]
            answers.append(reply.choices[0].message.content or "")
            said.append({"role": "assistant", "content": answers[-1]})
    return answers


async def test_a_conversation_becomes_one_exact_row() -> None:
    async with gateway(["hello", "bye"]) as running:
        assert await talk(running, "s1", "hi", "more") == ["hello", "bye"]
        (row,) = await running.client.finalize("s1", reward=0.5)
        assert row.reward == 0.5
        sampled = [token for token, mask in zip(row.response_ids, row.loss_mask, strict=True) if mask]
        assert tinymodel.decode(sampled) == "hello<|im_end|>bye<|im_end|>"
        assert tinymodel.decode(row.prompt_ids + row.response_ids) == (
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
            "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\nbye<|im_end|>"
        )
        async for group in running.client.groups(job="shop", idle_s=0.0):
            async with group:
                assert [(one.session_id, one.reward) for one in group.trajectories] == [("s1", 0.5)]
        assert await running.client.lease(job="shop") is None


async def test_a_session_outlives_its_gateway(tmp_path: Path) -> None:
    async with gateway(["one"], folder=tmp_path) as first:
        await talk(first, "s1", "a")
    async with gateway(["two"], folder=tmp_path) as second:
        tree = await second.client.tree("s1")
        assert [span["text"] for span in tree["turns"][0]["spans"]][1] == "one<|im_end|>"


async def test_versions_and_pauses_reach_the_tokens() -> None:
    async with gateway(["x"]) as running:
        running.player.label = "7"
        async with running.client.weight_update(7):
            assert (await running.client.status())["paused"]
        assert not (await running.client.status())["paused"]
        await talk(running, "s1", "a")
        (row,) = await running.client.finalize("s1")
        assert set(row.versions) == {7}


async def test_the_clients_errors_are_the_gateways() -> None:
    async with gateway(["x"]) as running:
        with pytest.raises(NotFound, match="no session 'nobody'"):
            await running.client.session("nobody")


async def test_commands_ask_a_gateway() -> None:
    """And show text, which an --out directory alone does not have."""
    async with gateway(["hello"]) as running:
        await talk(running, "s1", "hi")

        def ask(*words: str) -> str:
            said = CliRunner().invoke(app, [*words, "--url", running.origin, "--key", running.admin_key])
            assert said.exit_code == 0, said.output
            return said.stdout

        shown = await asyncio.to_thread(ask, "show", "s1")
        assert "«hello<|im_end|>»" in shown
        assert await asyncio.to_thread(ask, "show", "s") == shown, "by its beginning"
        await talk(running, "s2", "hi")
        words = ["show", "s", "--url", running.origin, "--key", running.admin_key]
        said = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert said.stderr == "error: several sessions begin with 's': s1, s2 [field SESSION]\n"
        listed = json.loads(await asyncio.to_thread(ask, "sessions", "--json"))
        assert [one["session_id"] for one in listed] == ["s1", "s2"]
        assert json.loads(await asyncio.to_thread(ask, "forks", "--json")) == []
        assert json.loads(await asyncio.to_thread(ask, "status", "shop", "--json"))["turns"] == 2


async def test_the_fixture_is_the_context_manager(sandgate_gateway: object) -> None:
    assert sandgate_gateway is gateway


async def test_a_gateway_that_does_not_start_says_why() -> None:
    with pytest.raises(Unavailable, match=r"(?s)did not start: it ended with 2.*bogus"):
        async with gateway(["x"], settings={"limits": {"bogus": 1}}):
            pytest.fail("it started")
