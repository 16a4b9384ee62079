"""A tiny Qwen2.5-VL on a real vLLM, through a whole gateway: rows are what the engine saw, as transformers says."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.trajectory import from_json
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.media import seeing
from tests.gateway.media.seeing import shown, url
from tests.support.environments import python_of
from tests.support.gateway import gateway
from tests.support.vllm import FLAGS, Vllm, another, engine_python

HERE = Path(__file__).parent
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
CLOSE = 1e-4
"""Of a logprob: two implementations of a forward pass in float32. 36 of them differed by 5e-7 at most."""
BORROWED = ("torchvision", "torchvision.libs")
"""vLLM's Qwen-VL needs it, the engine's environment has none, and verl's has one for the same torch."""


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    made = tmp_path_factory.mktemp("borrowed")
    (packages,) = python_of("trainer-env.sh", "verl").parents[1].glob("lib/python3.*/site-packages")
    for name in (*BORROWED, *(path.name for path in packages.glob("torchvision-*.dist-info"))):
        (made / name).symlink_to(packages / name)
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, borrowed: Path) -> Iterator[Vllm]:
    folder = seeing.write(tmp_path_factory.mktemp("seeing"))
    subprocess.run(
        [engine_python(), HERE / "weights.py", folder], check=True, cwd=folder, capture_output=True
    )
    flags = [*FLAGS, "--limit-mm-per-prompt", '{"image": 8, "video": 0}', "--mm-processor-cache-gb", "0"]
    with another(flags, model=folder, env={"PYTHONPATH": str(borrowed)}) as vllm:
        yield vllm


def forward(folder: Path, borrowed: Path, **asked: Any) -> list[float]:
    done = subprocess.run(
        [engine_python(), HERE / "forward.py", folder],
        input=json.dumps(asked), capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(borrowed), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def test_a_conversation_with_pictures_is_what_transformers_says(served: Vllm, borrowed: Path) -> None:
    engine = await VllmEngine.connect([served.url], model="shop", logprobs_mode="processed_logprobs")
    async with gateway(engine, model=load_codec(served.folder)) as g:
        agent = await g.session()
        history: list[Any] = [shown("what is it? ", url("red", (300, 200)))]
        for at, more in enumerate(("and now?", shown("and this? ", url("green", (84, 28))))):
            answer = await agent.post(*history, max_tokens=12, temperature=1.0, seed=at)
            assert answer.status_code == 200, answer.text
            history += [answer.json()["choices"][0]["message"], more]
        answer = await agent.post(*history, max_tokens=12, stream=True, temperature=1.0, seed=7)
        assert (answer.status_code, "error" in answer.text) == (200, False), answer.text
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None] * 3
        (row,) = [from_json(one) for one in await g.finalize(agent)]
    assert row.multimodal is not None
    size = int.from_bytes(row.multimodal[:8], "little")
    header = json.loads(row.multimodal[8 : 8 + size])
    pngs = []
    for one in json.loads(header["__metadata__"]["sandgate"])["images"]:
        start, end = header[f"png.{one['digest']}"]["data_offsets"]
        pngs.append(b64encode(row.multimodal[8 + size + start : 8 + size + end]).decode())
    assert len(pngs) == 2
    told = forward(
        served.folder, borrowed, prompt=row.prompt_ids.tolist(), response=row.response_ids.tolist(), pngs=pngs
    )
    sampled = [at for at, mask in enumerate(row.loss_mask) if mask]
    assert len(sampled) >= 3
    worst = max(abs(told[at] - row.response_logprobs[at]) for at in sampled)
    assert worst < CLOSE, worst
    other = forward(
        served.folder, borrowed, prompt=row.prompt_ids.tolist(), response=row.response_ids.tolist(),
        pngs=[b64encode(seeing.encoded(seeing.picture("white", (112, 84)))).decode(), pngs[1]],
    )  # fmt: skip
    assert max(abs(other[at] - told[at]) for at in sampled) > CLOSE, "the picture counts"
