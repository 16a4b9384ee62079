"""Videos of chat completions, as frames: to the engine with their placeholders, into the journal and the row."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import from_json
from sandgate.gateway import offline
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, VideoPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.engine.api import Delta
from sandgate.gateway.engine.scripted.script import Player, Reply
from sandgate.gateway.journal.records import PicturesKept
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import read
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.sources import FRAMES_MAX, PICTURES_MAX
from sandgate.gateway.media.videos import VideoRule, video_of
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.media import seeing
from tests.gateway.media.seeing import RULE, codec, encoded, ids, picture, url
from tests.gateway.media.test_engines import asked, playing
from tests.gateway.media.test_images import engine
from tests.support.gateway import Running, gateway

COLORS = ("red", "green", "white", "black")


def film(*colors: str, size: tuple[int, int] = (56, 56), kind: str = "PNG") -> list[str]:
    """Data URLs of frames."""
    return [url(color, size, kind) for color in colors]


def vllm(frames: list[str]) -> dict[str, Any]:
    """A video as vLLM's clients send its frames."""
    data = ",".join(frame.partition(",")[2] for frame in frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{data}"}}


def qwen(frames: list[str]) -> dict[str, Any]:
    return {"type": "video", "video": frames}


def said(*parts: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts],
    }


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(engine(), model=codec()) as running:
        yield running


def rule() -> VideoRule:
    found = seeing.vision().video
    assert found is not None
    return found


@pytest.mark.parametrize("form", [vllm, qwen])
@pytest.mark.parametrize("many", [1, 2, 3, 4])
async def test_the_engine_is_sent_the_frames_with_their_placeholders(
    g: Running, form: Any, many: int
) -> None:
    frames = film(*COLORS[:many], size=(84, 56))
    agent = await g.session()
    answer = await agent.post(
        said("left ", form(frames), " right ", {"type": "image_url", "image_url": url()})
    )
    assert answer.status_code == 200, answer.text
    prompt = g.engine.prompts[-1]
    pads = "<|video_pad|>" * (6 * (-(-many // 2)))
    text = (
        f"<|im_start|>user\nleft <|vision_start|>{pads}<|vision_end|> right "
        f"<|vision_start|>{'<|image_pad|>' * 4}<|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.ids == array("i", ids(text))
    video, _ = prompt.pictures
    assert video.grid == (-(-many // 2), 4, 6)
    assert video.seconds == 2.0
    pngs = tuple(read(encoded(picture(color, (84, 56))), RULE).png for color in COLORS[:many])
    assert g.engine.player.shown[-1][:many] == pngs


async def test_both_forms_are_the_same_video(g: Running) -> None:
    agent = await g.session()
    frames = film("red", "green")
    await agent.ask(said("q", vllm(frames)))
    again = await agent.post(said("q", qwen(frames)))
    first, second = (prompt.pictures[0].digest for prompt in g.engine.prompts)
    assert first == second
    assert again.status_code == 200


async def test_later_turns_are_bridged_and_another_frame_is_another_conversation(g: Running) -> None:
    agent = await g.session()
    film_a, film_b = film("red", "green"), film("red", "white")
    answer = await agent.ask(said("q", vllm(film_a)))
    await agent.ask(said("q", vllm(film_a)), answer, said("and this?", vllm(film_b), "?"))
    await agent.ask(said("q", vllm(film_b)), answer, said("sure?"))
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], None]
    assert turns[1]["fork"] is None


async def test_journal_and_row_have_the_frames(tmp_path: Path) -> None:
    async with (
        await SqliteStore.open(tmp_path / "journal.sqlite") as store,
        gateway(engine(), model=codec(), store=store) as g,
    ):
        agent = await g.session()
        frames = film("red", "green", "white")
        await agent.ask(said("q", vllm(frames), {"type": "image_url", "image_url": url()}, vllm(film("red"))))
        records = [record for _, _, record in store.scan(agent.id)]
        (kept,) = [record for record in records if isinstance(record, PicturesKept)]
        assert (kept.schema, [len(one.frames) for one in kept.pictures]) == (10, [3, 0, 1])
        (row,) = [from_json(one) for one in await g.finalize(agent)]
        assert offline.rows_of(tmp_path, agent.id) == 1
    assert row.multimodal is not None
    size = int.from_bytes(row.multimodal[:8], "little")
    header = json.loads(row.multimodal[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sandgate"])
    assert (about["version"], len(about["images"])) == (3, 1)
    assert [(one["frames"], one["length"]) for one in about["videos"]] == [(3, 8), (1, 4)]
    assert header["video_grid_thw"]["shape"] == [2, 3]
    assert header["second_per_grid_ts"]["shape"] == [2]
    assert {name for name in header if name.startswith(f"png.{about['videos'][0]['digest']}.")} == {
        f"png.{about['videos'][0]['digest']}.{number}" for number in range(3)
    }


FRAME = film("red")[0]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an MP4": ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}, "MP4 and other files are"),
    "an address": ({"type": "video_url", "video_url": {"url": "https://x.example/a.mp4"}}, "none is fetched"),
    "a file": ({"type": "video", "video": "file:///a.mp4"}, "none is fetched"),
    "an address as a frame": ({"type": "video", "video": ["https://x.example/a.png"]}, "no frame is fetched"),
    "no frames": ({"type": "video", "video": []}, f"1 to {FRAMES_MAX} frames"),
    "no data": ({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,"}}, "has no data"),
    "too many": (qwen([FRAME] * (FRAMES_MAX + 1)), f"1 to {FRAMES_MAX} frames"),
    "a broken frame": (qwen([FRAME, "data:image/png;base64,AAAA"]), "video 1 of the request: frame 2: it is"),
    "another size": (qwen([FRAME, url("red", (84, 28))]), "frame 2 has another size than the first"),
    "another rate": ({**qwen([FRAME]), "fps": 2.0}, "content\\[0\\].fps is 2.0: engines count"),
    "a setting": ({**qwen([FRAME]), "max_pixels": 100}, "content\\[0\\].max_pixels: a video is shown"),
    "nothing": ({"type": "video"}, "content\\[0\\].video is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_no_video_is_a_400_that_says_why(g: Running, case: str) -> None:
    part, why = REFUSED[case]
    answer = await (await g.session()).post(said(part))
    assert answer.status_code == 400, answer.text
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(json.loads(answer.text)["error"]["message"])
    assert g.generations == 0


async def test_frames_count_as_images_of_a_request(g: Running) -> None:
    many = PICTURES_MAX // FRAMES_MAX + 1
    answer = await (await g.session()).post(said(*[qwen([FRAME] * FRAMES_MAX)] * many))
    assert answer.status_code == 400
    assert f"{many * FRAMES_MAX} images and frames; at most {PICTURES_MAX}" in answer.text


async def test_an_assistant_says_no_video(g: Running) -> None:
    agent = await g.session()
    answer = await agent.post("q", {"role": "assistant", "content": [qwen([FRAME])]}, "sure?")
    assert answer.status_code == 400, answer.text


NO_VIDEO = seeing.TEMPLATE.replace("part.type == 'video'", "false")
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a template that shows none": (NO_VIDEO, {}, {}),
    "a model whose videos have times between their frames": (seeing.TEMPLATE, {}, {"model_type": "qwen3_vl"}),
    "a processor that leaves frames out": (seeing.TEMPLATE, {"do_sample_frames": True}, {}),
    "a processor that bounds all frames together": (seeing.TEMPLATE, {"cap_pixels_per_frame": True}, {}),
    "another processor": (seeing.TEMPLATE, {"video_processor_type": "Qwen3VLVideoProcessor"}, {}),
}


@pytest.mark.parametrize("which", MODELS)
async def test_a_model_without_videos_says_so(which: str, tmp_path: Path) -> None:
    template, video, model = MODELS[which]
    folder = seeing.write(tmp_path, template)
    (folder / "video_preprocessor_config.json").write_text(json.dumps({**seeing.PROCESSOR, **video}))
    config = json.loads((folder / "config.json").read_text()) | model
    (folder / "config.json").write_text(json.dumps(config))
    async with gateway(engine(), model=load_codec(folder)) as g:
        agent = await g.session()
        answer = await agent.post(said(qwen([FRAME])))
        assert answer.status_code == 400
        assert "takes no videos" in answer.text
        shown = await agent.post(said({"type": "image_url", "image_url": url()}))
        assert shown.status_code == 200, shown.text


async def test_a_model_of_text_says_so() -> None:
    async with gateway() as g:
        answer = await (await g.session()).post(said(qwen([FRAME])))
        assert answer.status_code == 400
        assert "text only" in answer.text


TEXTS = {7: "<|video_pad|>"}
SIZES: dict[str, tuple[dict[str, Any], GridRule]] = {
    "what the file says": ({"min_pixels": 784, "max_pixels": 7840}, GridRule(14, 2, 784, 7840)),
    "by its newer name": ({"size": {"shortest_edge": 784, "longest_edge": 7840}}, GridRule(14, 2, 784, 7840)),
    "the processor's own": ({}, GridRule(14, 2, 128 * 28 * 28, 768 * 28 * 28)),
}


@pytest.mark.parametrize("which", SIZES)
def test_frames_have_the_size_that_the_processor_gives_them(which: str) -> None:
    config, wanted = SIZES[which]
    found = video_of(config, {"model_type": "qwen2_vl", "video_token_id": 7}, TEXTS)
    assert found == VideoRule(7, "<|video_pad|>", wanted)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_an_engine_makes_the_ids_that_were_meant(stream: bool) -> None:
    vision = seeing.vision()
    player, deltas = Player([Reply([3, 4])]), list[Delta]()
    prompt = video_prompt()
    async with playing(player, vision) as served:
        sample = await served.generate(prompt, deltas.append if stream else None)
    assert sample.ids.tolist() == [3, 4]
    assert player.shown[-1] == prompt.pictures[0].frames


def video_prompt() -> Any:
    vision, plain = seeing.vision(), asked()
    shown = Pictures(vision.rule, vision.video).of(
        [Message("user", (VideoPart(tuple(film("red", "green"))),))]
    )
    whole, media = expand(array("i", [1, 2, rule().placeholder, 3]), vision, shown)
    told = vision.told(whole, media)
    return replace(plain, ids=whole, media=media, pictures=tuple(shown), told=told)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(COLORS), min_size=1, max_size=5), st.integers(0, 4), st.sampled_from(COLORS))
def test_two_videos_that_differ_in_one_frame_are_two(frames: list[str], at: int, other: str) -> None:
    changed = list(frames)
    changed[at % len(frames)] = other
    vision = seeing.vision()
    both = [VideoPart(tuple(film(*one))) for one in (frames, changed)]
    first, second = Pictures(vision.rule, vision.video).of([Message("user", tuple(both))])
    assert (first.digest == second.digest) is (frames == changed)


def test_a_video_of_one_frame_is_not_that_picture() -> None:
    vision = seeing.vision()
    parts = (VideoPart((FRAME,)), ImagePart(FRAME), TextPart("x"))
    video, image = Pictures(vision.rule, vision.video).of([Message("user", parts)])
    assert video.digest != image.digest


def test_a_video_for_a_model_of_images_is_refused() -> None:
    with pytest.raises(Exception, match="takes no videos") as caught:
        Pictures(RULE).of([Message("user", (VideoPart((FRAME,)),))])
    assert isinstance(caught.value, InvalidBody)
