"""Recorded logprobs are the model's, whatever its architecture: soft-capped logits, sliding windows, experts, sinks.

`make truth` holds all of them, and writes docs/logprobs.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.truth import TOLERANCE
from tests.support.vllm import another
from tests.truth.architectures import ARCHITECTURES
from tests.truth.checkpoints import checkpoint
from tests.truth.held import FLAGS, hold
from tests.truth.page import PAGE


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [pytest.param("Gemma 2", marks=pytest.mark.endurance), "gpt-oss"])
async def test_recorded_logprobs_are_those_of_a_forward_pass(name: str, tmp_path: Path) -> None:
    with another(FLAGS, model=checkpoint(ARCHITECTURES[name], tmp_path / "model")) as vllm:
        held = await hold(vllm)
    assert held.worst < TOLERANCE
    assert held.untempered > 100 * TOLERANCE, "a wrong temperature would be seen"
    assert held.tokens > 50


def test_the_page_has_every_architecture() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text("utf-8").splitlines()]
    assert [row for row in rows if row in ARCHITECTURES] == list(ARCHITECTURES)
