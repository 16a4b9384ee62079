"""Each kind of image processor: what it makes of files, settings, tails and conversations, and what it refuses."""

from __future__ import annotations

import io
import json
import re
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sandgate.contract.errors import BadRequest, InvalidBody
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Trajectory, from_json
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.engine.scripted.engine import ScriptedEngine
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.media.pictures import read
from sandgate.gateway.media.placing import expand
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.media import kinds, test_pictures
from tests.gateway.media.seeing import encoded, picture, shown, url
from tests.support.gateway import Running, gateway

RED, GREEN, WIDE = url(), url("green"), url("green", (84, 28))
WINDOW = 4096


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.parametrize("case", test_pictures.KINDS)
def test_a_file_of_any_form_is_made_what_the_model_sees(name: str, case: str) -> None:
    raw, _, color = test_pictures.KINDS[case]
    rule = kinds.vision(name).rule
    made = read(raw, rule)
    found = Image.open(io.BytesIO(made.png))
    assert (found.mode, found.size, made.kind) == ("RGB", (made.width, made.height), rule.kind)
    assert made.grid == rule.grid(*found.size)
    seen = found.getpixel((found.width - 1, found.height - 1))
    assert isinstance(seen, tuple)
    assert all(abs(one - other) <= 3 for one, other in zip(seen, color, strict=True)), seen


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_photograph_is_turned_before_it_is_cut(name: str, orientation: int) -> None:
    rule, tall = kinds.vision(name).rule, orientation in (6, 8)
    made = read(test_pictures.exif(orientation), rule)
    fit = rule.fit(56, 84) if tall else rule.fit(84, 56)
    assert (made.width, made.height) == (fit.resized[-1] if fit.box is None else (56, 56))


@pytest.mark.parametrize("name", kinds.KINDS)
def test_what_is_no_picture_is_refused_by_each_kind(name: str) -> None:
    for case, (make, why) in test_pictures.REFUSED.items():
        if "strip" not in case:
            with pytest.raises(InvalidBody, match=why):
                read(make(), kinds.vision(name).rule)


@pytest.mark.parametrize("name", kinds.KINDS)
def test_what_was_made_for_the_model_is_not_changed_again(name: str) -> None:
    rule = kinds.vision(name).rule
    for size in ((1, 1), (31, 97), (500, 333), (640, 1)):
        raw = encoded(picture("red", size))
        try:
            rule.fit(*size)
        except InvalidBody:
            with pytest.raises(InvalidBody, match="too narrow"):
                read(raw, rule)
        else:
            made = read(raw, rule)
            assert read(made.png, rule) == made


def test_a_strip_that_would_grow_without_bounds_is_refused(tmp_path: Path) -> None:
    large = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    made = load_codec(kinds.write(tmp_path, "llava", image=large))
    assert made.vision is not None
    with pytest.raises(InvalidBody, match="4000 and 1, which is too narrow"):
        read(encoded(Image.new("L", (4000, 1))), made.vision.rule)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Gemma 3 that pans and scans": ("gemma3", {"image": {"do_pan_and_scan": True}}, "do_pan_and_scan True; False is"),
    "Gemma 3 of another number than its processor's": (
        "gemma3", {"model": {"mm_tokens_per_image": 64}}, "not the model's mm_tokens_per_image"),
    "a processor's number that is none": (
        "gemma3", {"processor": {"image_seq_length": "16"}}, "image_seq_length is '16'"),
    "pictures that are no squares": (
        "gemma3", {"image": {"size": {"height": 56, "width": 28}}}, "a height and the same width are served"),
    "pictures that are not resized": ("gemma3", {"image": {"do_resize": False}}, "do_resize False; True is served"),
    "pictures that are not rescaled": ("llava", {"image": {"do_rescale": False}}, "do_rescale False; True is served"),
    "LLaVA that pads to squares": ("llava", {"image": {"do_pad": True}}, "do_pad True; False is served"),
    "LLaVA that does not cut": ("llava", {"image": {"do_center_crop": False}}, "do_center_crop False; True is served"),
    "LLaVA that cuts more than it resizes to": (
        "llava", {"image": {"size": {"shortest_edge": 28}}}, "another size than it resizes them to"),
    "LLaVA without a processor_config.json": (
        "llava", {"processor": {"patch_size": ...}}, r"patch_size \(processor_config.json\) is None"),
    "LLaVA with another strategy": (
        "llava", {"processor": {"vision_feature_select_strategy": "first"}}, "strategy is 'first'; default or full"),
    "Pixtral by height and width": (
        "pixtral", {"image": {"size": {"height": 64, "width": 64}}}, "a longest_edge is served"),
    "Pixtral of a side that is no multiple": (
        "pixtral", {"image": {"size": {"longest_edge": 70}}}, "70 is no multiple of its patches of 16"),
    "Pixtral whose tokenizer lacks a token": (
        "pixtral", {"processor": {"image_break_token": "[BR]"}}, r"no token \[BR\]"),
    "Idefics3 that is not split": ("idefics3", {"image": {"do_image_splitting": False}}, "do_image_splitting False"),
    "Idefics3 of a side that is no multiple": (
        "idefics3", {"image": {"size": {"longest_edge": 100}}}, "100 is no multiple"),
    "Idefics3 beyond all bounds": ("idefics3", {"image": {"size": {"longest_edge": 28 * 20}}}, "or more than 4096"),
    "GLM-4V with a moment of many frames": (
        "glm4v", {"image": {"temporal_patch_size": 64}}, "temporal_patch_size is 64"),
    "a processor that nobody proved": (
        "llava", {"image": {"image_processor_type": "LlavaNextImageProcessor"}},
        "image processor is 'LlavaNextImageProcessor'; served are Qwen2VLImageProcessor, "),
    "a processor that has no name": (
        "llava", {"image": {"image_processor_type": ...}}, "image processor is None; served"),
    "a model that nobody proved with it": (
        "llava", {"model": {"model_type": "paligemma"}},
        "model_type is 'paligemma'; CLIPImageProcessor is served for llava"),
    "Qwen's processor in another model": (
        "qwen3_vl", {"model": {"model_type": "keye_vl"}},
        "model_type is 'keye_vl'; Qwen2VLImageProcessor is served for"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_a_checkpoint_that_is_not_served_answers_images_with_400_and_why(
    case: str, tmp_path: Path
) -> None:
    name, changes, why = REFUSED[case]
    model = load_codec(kinds.write(tmp_path, name, **changes))
    assert model.vision is None
    async with gateway(engine(name), model=model) as g:
        agent = await g.session()
        answer = await agent.post(shown("what?", RED))
        assert answer.status_code == 400
        assert re.search(why, answer.json()["error"]["message"]), answer.text
        assert (await agent.post("what?")).status_code == 200


TAILS: dict[str, tuple[Message, ...]] = {
    "text": (Message("user", (TextPart("and now?"),)),),
    "an image": (Message("user", (ImagePart(WIDE), TextPart("and this?"))),),
    "two side by side": (Message("user", (ImagePart(WIDE), ImagePart(RED))),),
}


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.parametrize("case", TAILS)
def test_a_tail_is_bridged_to_what_a_whole_render_has(name: str, case: str) -> None:
    made, seen, tail = kinds.codec(name), kinds.vision(name), TAILS[case]
    asked = Message("user", (ImagePart(RED), TextPart("what is it?")))
    words = (
        " a cat" if "llava" in name else "a cat"
    )  # its template writes the space in front of what was said
    sampled = array("i", made.vocab.encode_whole(words + kinds.KINDS[name].end))

    def whole(*messages: Message) -> Any:
        return expand(made.render(messages, ()), seen, Pictures(seen.rule).of(messages))[0]

    added = made.bridge(whole(asked), sampled, tail, (), closed=True)
    assert not isinstance(added, ForkReason)
    own, _ = expand(added, seen, Pictures(seen.rule).of(tail))
    assert whole(asked) + sampled + own == whole(asked, Message("assistant", (TextPart("a cat"),)), *tail)


def engine(name: str, *said: str) -> ScriptedEngine:
    codec = kinds.codec(name)
    return ScriptedEngine(
        list(said or ("a cat",)), encode=codec.vocab.encode_whole, decode=codec.vocab.decode,
        eos_ids=codec.stop_ids, max_model_len=WINDOW, vocab_size=codec.vocab_size,
    )  # fmt: skip


@pytest.fixture(params=kinds.KINDS)
async def seeing_gateway(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, Running]]:
    name = request.param
    async with gateway(engine(name), model=kinds.codec(name), folder=tmp_path) as running:
        yield name, running


async def test_a_conversation_is_one_row_with_its_pictures(seeing_gateway: tuple[str, Running]) -> None:
    name, g = seeing_gateway
    agent = await g.session()
    history: list[Any] = [shown("what is it?", RED)]
    for more in ("sure?", shown(WIDE, "and this?"), "sure?"):
        history += [await agent.ask(*history), more]
    await agent.ask(*history)
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 4
    assert [turn["parent"] for turn in turns] == [None, *(turn["turn"] for turn in turns[:-1])]
    prompt, seen = g.engine.prompts[-1], kinds.vision(name)
    (row,) = [from_json(one) for one in await g.finalize(agent)]
    told = told_in(row)
    assert [(one["start"], one["length"], one["digest"]) for one in told["images"]] == [
        (span.start, span.length, span.digest.hex()) for span in prompt.media
    ]
    assert told.get("kind", "grid") == seen.rule.kind
    assert told["version"] == (1 if seen.rule.kind == "grid" else 2)
    sizes = {"grid": "image_grid_thw", "rows": "image_sizes"}.get(seen.rule.kind)
    assert {key for key in told["tensors"] if not key.startswith("png.")} == ({sizes} if sizes else set())
    for span, one in zip(prompt.media, prompt.pictures, strict=True):
        run = seen.rule.run(seen.placeholder, one.width, one.height)
        assert prompt.ids[span.start : span.start + span.length] == run
    assert prompt.told is not None
    assert prompt.told.count(seen.placeholder) == 2


def told_in(row: Trajectory) -> dict[str, Any]:
    assert row.multimodal is not None
    size = int.from_bytes(row.multimodal[:8], "little")
    header = json.loads(row.multimodal[8 : 8 + size])
    about: dict[str, Any] = json.loads(header.pop("__metadata__")["sandgate"])
    return about | {"tensors": header}


async def test_a_picture_alone_makes_another_conversation(seeing_gateway: tuple[str, Running]) -> None:
    _, g = seeing_gateway
    agent = await g.session()
    said = await agent.ask(shown("what is it?", RED))
    await agent.ask(shown("what is it?", RED), said, "sure?")
    await agent.ask(shown("what is it?", GREEN), said, "sure?")
    first, _, third = g.engine.prompts
    assert first.ids == third.ids[: len(first.ids)]
    assert [turn["parent"] is None for turn in await g.tree(agent)] == [True, False, True]


async def test_what_stands_for_pictures_is_nobody_elses(seeing_gateway: tuple[str, Running]) -> None:
    """Ids that a client gives, and words that the model sampled."""
    name, g = seeing_gateway
    seen, agent = kinds.vision(name), await g.session()
    for token in seen.reserved:
        body = {"token_ids": [5, token], "sampling_params": {"max_tokens": 1}}
        answer = await agent.http.post("inference/v1/generate", json=body)
        assert answer.status_code == 400, token
        assert "images are taken in messages only" in answer.text


@pytest.mark.parametrize("name", kinds.KINDS)
async def test_a_placeholder_that_the_model_sampled_is_not_taken_for_a_picture(name: str) -> None:
    seen = kinds.vision(name)
    words = [kinds.codec(name).vocab.texts[token] for token in sorted(seen.reserved)]
    for word in words:
        async with gateway(engine(name, f"odd {word} thing"), model=kinds.codec(name)) as g:
            agent = await g.session()
            said = await agent.ask(shown("q", RED))
            answer = await agent.post(shown("q", RED), said, "sure?")
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-sandgate-fork"] == "multimodal_not_bridgeable"
            assert g.engine.prompts[-1].told is not None
            assert g.engine.prompts[-1].told.count(seen.placeholder) == 1


@pytest.mark.parametrize("name", ["gemma3", "pixtral", "idefics3"])
def test_where_clients_may_spell_control_tokens_no_text_stands_for_an_image(name: str) -> None:
    made = kinds.codec(name, special_text="control")
    for token in kinds.vision(name).reserved:
        with pytest.raises(BadRequest, match=r"a text spells .*, which stands for an image"):
            made.render((Message("user", (TextPart(f"x {made.vocab.texts[token]}"),)),), ())


@pytest.mark.parametrize("name", ["gemma3", "pixtral", "idefics3"])
async def test_pictures_live_through_a_restart(name: str, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "journal.sqlite")
    async with store, gateway(engine(name), model=kinds.codec(name), folder=tmp_path, store=store) as g:
        agent = await g.session()
        said = await agent.ask(shown("q", RED))
        handle = agent.handle
    store = await SqliteStore.open(tmp_path / "journal.sqlite")
    async with store, gateway(engine(name), model=kinds.codec(name), folder=tmp_path, store=store) as g:
        agent = g.agent(handle)
        await agent.ask(shown("q", RED), said, shown(WIDE, "sure?"))
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]
        (row,) = [from_json(one) for one in await g.finalize(agent)]
        assert told_in(row)["kind"] == kinds.vision(name).rule.kind


BESIDE: dict[str, tuple[tuple[str, ...], bool]] = {
    "nothing": (("{}",), True),
    "one new line on either side": (("a\n{}\nb",), True),
    "two new lines on either side": (("a\n\n{}\n\nb",), True),
    "three new lines in front": (("a\n\n\n{}",), False),
    "three new lines behind": (("{}\n\n\nb",), False),
    "a new line between two": (("{}\n{}",), False),
    "two side by side": (("{}{}",), True),
}


@pytest.mark.parametrize("case", BESIDE)
def test_gemmas_engine_is_told_pictures_without_their_new_lines(case: str) -> None:
    """It puts them in itself, and joins them to up to two that are there; with more its ids would not be those of the
    processor, so such a request is a 400."""
    (text,), taken = BESIDE[case]
    made, seen = kinds.codec("gemma3"), kinds.vision("gemma3")
    count = text.count("{}")
    pictures = Pictures(seen.rule).of([Message("user", (ImagePart(RED),) * count)])
    whole = made.vocab.encode_whole("q" + text.replace("{}", seen.wrapped) + "w")
    ids, spans = expand(whole, seen, pictures)
    if taken:
        assert seen.told(ids, spans) == made.vocab.encode_whole("q" + text.replace("{}", seen.text) + "w")
    else:
        with pytest.raises(InvalidBody, match="beside more than 2 new lines"):
            seen.told(ids, spans)


async def test_too_many_new_lines_beside_an_image_are_a_400_and_no_turn(tmp_path: Path) -> None:
    kinds.write(tmp_path, "gemma3")
    template = kinds.KINDS["gemma3"].template.replace(" | trim", "")
    (tmp_path / "chat_template.jinja").write_text(template, "utf-8")
    async with gateway(engine("gemma3"), model=load_codec(tmp_path)) as g:
        agent = await g.session()
        answer = await agent.post(shown("a\n\n\n", RED))
        assert (answer.status_code, g.generations) == (400, 0)
        assert "beside more than 2 new lines" in answer.text
        assert (await agent.post(shown("a\n\n", RED))).status_code == 200
