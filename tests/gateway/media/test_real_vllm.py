"""A tiny Qwen2.5-VL on a real vLLM, through a whole gateway: rows are what the engine saw, as transformers says.

For the other kinds test_vllm_processors.py has vLLM's code without a model: 0.32 does not read the weights of a Gemma 3
that transformers 5.19 writes (their names differ).
"""

from __future__ import annotations

import json
import os
import struct
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
from tests.gateway.media.test_videos import film, said
from tests.gateway.media.test_videos import qwen as qwen_video
from tests.gateway.media.test_videos import vllm as vllm_video
from tests.support.gateway import gateway
from tests.support.vllm import FLAGS, Vllm, another, borrowed_torchvision, engine_python

HERE = Path(__file__).parent
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
CLOSE = 1e-4
"""Of a logprob: two implementations of a forward pass in float32. 36 of them differed by 5e-7 at most."""


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    return borrowed_torchvision(tmp_path_factory.mktemp("borrowed"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, borrowed: Path) -> Iterator[Vllm]:
    folder = seeing.write(tmp_path_factory.mktemp("seeing"))
    subprocess.run(
        [engine_python(), HERE / "weights.py", folder], check=True, cwd=folder, capture_output=True
    )
    flags = [*FLAGS, "--limit-mm-per-prompt", '{"image": 8, "video": 2}', "--mm-processor-cache-gb", "0"]
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


async def test_a_conversation_with_videos_is_what_transformers_says(served: Vllm, borrowed: Path) -> None:
    engine = await VllmEngine.connect([served.url], model="shop", logprobs_mode="processed_logprobs")
    async with gateway(engine, model=load_codec(served.folder)) as g:
        agent = await g.session()
        films = [film("red", "green", "white", size=(150, 100)), film("white", "black", size=(56, 28))]
        history: list[Any] = [said("what is it? ", vllm_video(films[0]))]
        for at, more in enumerate(
            (said("and this? ", qwen_video(films[1]), shown(url("green"))["content"][0]), None)
        ):
            answer = await agent.post(*history, max_tokens=12, temperature=1.0, seed=at, stream=at == 1)
            assert (answer.status_code, '"error"' in answer.text) == (200, False), answer.text
            if more is not None:
                history += [answer.json()["choices"][0]["message"], more]
        assert [turn["fork"] for turn in await g.tree(agent)] == [None] * 2
        (row,) = [from_json(one) for one in await g.finalize(agent)]
    assert row.multimodal is not None
    size = int.from_bytes(row.multimodal[:8], "little")
    header = json.loads(row.multimodal[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sandgate"])

    def png(name: str) -> str:
        start, end = header[f"png.{name}"]["data_offsets"]
        return b64encode(row.multimodal[8 + size + start : 8 + size + end]).decode()  # type: ignore[index]

    videos = [[png(f"{one['digest']}.{at}") for at in range(one["frames"])] for one in about["videos"]]
    assert [len(frames) for frames in videos] == [3, 2]
    asked: dict[str, Any] = {
        "prompt": row.prompt_ids.tolist(),
        "response": row.response_ids.tolist(),
        "pngs": [png(one["digest"]) for one in about["images"]],
    }
    per_second = json.loads((served.folder / "config.json").read_text())["vision_config"]["tokens_per_second"]
    found = [
        (one["start"], _numbers(row.multimodal, header, f"{kind}_grid_thw")[3 * at : 3 * at + 3], step)
        for kind, step in (("image", 1.0), ("video", 2.0 * per_second))
        for at, one in enumerate(about[f"{kind}s"])
    ]
    asked["positions"] = engine_positions(len(row.prompt_ids) + len(row.response_ids), sorted(found))
    told = forward(served.folder, borrowed, **asked, videos=videos)
    sampled = [at for at, mask in enumerate(row.loss_mask) if mask]
    worst = max(abs(told[at] - row.response_logprobs[at]) for at in sampled)
    assert worst < CLOSE, worst
    other = forward(served.folder, borrowed, **asked, videos=[[*videos[0][:2], videos[0][0]], videos[1]])
    assert max(abs(other[at] - told[at]) for at in sampled) > CLOSE, "the last frame counts"


def _numbers(raw: bytes, header: Any, name: str) -> list[int]:
    """Of an int64 tensor of a row's file."""
    start, end = header[name]["data_offsets"]
    size = 8 + int.from_bytes(raw[:8], "little")
    return list(struct.unpack(f"<{(end - start) // 8}q", raw[size + start : size + end]))


def engine_positions(length: int, shown: list[tuple[int, list[int], float]]) -> list[list[int]]:
    """Temporal, height and width: what follows a video goes on behind its largest position. `shown`: (start, grid, step
    of a moment)."""
    cells: list[tuple[int, int, int]] = []
    after = 0
    for start, (moments, high, wide), step in shown:
        for _ in range(start - len(cells)):
            cells.append((after,) * 3)
            after += 1
        here = [
            (after + int(t * step), after + h, after + w)
            for t in range(moments)
            for h in range(high // 2)
            for w in range(wide // 2)
        ]
        cells += here
        after = max(map(max, here)) + 1
    for at in range(length - len(cells)):
        cells.append((after + at,) * 3)
    return [list(axis) for axis in zip(*cells, strict=True)]
