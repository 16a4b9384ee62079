"""The doctor asks an SGLang what a gateway will ask it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.trainer.cli import doctor as command

FIT = ["engine", "version", "model", "max_model_len", "generate", "versions", "logprobs mode"]
UNFIT: dict[str, tuple[dict[str, Any], str, tuple[str, str, str]]] = {
    "cut prompts": ({"truncates": True}, "", ("prompts", "fail", "--allow-auto-truncate")),
    "drafts that are not the model's": (
        {"settings": {"speculative_algorithm": "EAGLE", "speculative_accept_threshold_single": 0.5}}, "",
        ("drafts", "fail", "--speculative-accept-threshold-single"),
    ),
    "streams of all tokens": ({"incremental": False}, "", ("streams", "warn", "--incremental-streaming-output")),
    "seeds that are ignored": ({"seeds": False}, "", ("seed", "warn", "--enable-deterministic-inference")),
    "no versions": ({"versions": False}, "", ("versions", "warn", "0.5.23")),
    "raw logprobs": ({}, "raw_logprobs", ("logprobs mode", "warn", "SGLANG_RETURN_ORIGINAL_LOGPROB")),
    "logits": ({}, "processed_logits", ("logprobs mode", "fail", "logits")),
}  # fmt: skip


async def examined(mode: str = "", **server: Any) -> dict[str, tuple[str, str]]:
    player = Player([[11, 12, 13, 14]])
    player.logprobs_mode = mode or "processed_logprobs"
    async with ScriptedSglang(player, **{"incremental": True, **server}) as serving:
        found = await asyncio.to_thread(lambda: list(command.examine(None, serving.url)))
    return {one.check: (one.verdict, one.fix) for one in found}


async def test_a_fit_sglang_has_nothing_to_mend() -> None:
    found = await examined()
    assert list(found) == FIT
    assert {verdict for verdict, _ in found.values()} == {"ok"}


@pytest.mark.parametrize(("server", "mode", "want"), UNFIT.values(), ids=UNFIT)
async def test_an_unfit_one_is_told_with_the_flag_that_mends_it(
    server: dict[str, Any], mode: str, want: tuple[str, str, str]
) -> None:
    check, verdict, fix = want
    said = (await examined(mode, **server))[check]
    assert said[0] == verdict
    assert fix in said[1]
