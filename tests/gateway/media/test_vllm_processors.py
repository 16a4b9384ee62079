"""vLLM's own processors make of what it is sent what was meant: its code, without a model."""

from __future__ import annotations

import json
import os
import subprocess
from array import array
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.engine.generation import Generation
from sandgate.gateway.engine.responses import Step
from sandgate.gateway.media.placing import expand
from tests.gateway.media import kinds, seeing
from tests.gateway.media.test_engines import prompt_of
from tests.support.vllm import borrowed_torchvision, engine_python

HERE = Path(__file__).parent
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL, WIDE, TALL = (
    seeing.url(color, size) for color, size in (("red", (5, 7)), ("green", (300, 90)), ("white", (64, 300)))
)
CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "one": (Message("user", (ImagePart(WIDE),)),),
    "between words": (Message("user", (TextPart("left "), ImagePart(WIDE), TextPart(" right"))),),
    "side by side": (Message("user", (ImagePart(SMALL), ImagePart(TALL))),),
    "five in turns": (
        Message("user", (ImagePart(TALL), TextPart("a"), ImagePart(SMALL), ImagePart(SMALL))),
        Message("assistant", (TextPart("a cat"),)),
        Message("user", (TextPart("look:\n"), ImagePart(WIDE), TextPart("\nand"), ImagePart(TALL))),
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """By kind and case."""
    asks = []
    for name in kinds.KINDS:
        prompts = [prompt_for(name, case) for case in CONVERSATIONS]
        asks.append({
            "folder": str(kinds.folder(name)),
            "asks": [
                {"ids": list(one.told or ()), "pngs": [b64encode(picture.png).decode() for picture in one.pictures]}
                for one in prompts
            ],
        })  # fmt: skip
    done = subprocess.run(
        [engine_python(), HERE / "vllm_processors.py"],
        input=json.dumps(asks), capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": str(borrowed_torchvision(tmp_path_factory.mktemp("borrowed"))),
            "HF_HUB_OFFLINE": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        (name, case): answer
        for name, answers in zip(kinds.KINDS, found, strict=True)
        for case, answer in zip(CONVERSATIONS, answers, strict=True)
    }


def prompt_for(name: str, case: str) -> Any:
    seen, messages = kinds.vision(name), CONVERSATIONS[case]
    pictures = Pictures(seen.rule).of(messages)
    ids, spans = expand(kinds.codec(name).render(messages, ()), seen, pictures)
    return prompt_of(seen, ids, spans, pictures)


@pytest.mark.parametrize("case", CONVERSATIONS)
@pytest.mark.parametrize("name", kinds.KINDS)
def test_vllm_makes_the_ids_that_were_meant(name: str, case: str, told: dict[tuple[str, str], Any]) -> None:
    made, prompt = told[name, case], prompt_for(name, case)
    assert made["ids"] == prompt.ids.tolist()
    step = Step(prompt=array("i", made["ids"]), images=tuple(map(tuple, made["images"])))
    Generation(prompt, told=1, streams=False).take(step)
