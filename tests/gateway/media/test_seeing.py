"""A model that sees: templates with pictures, their ids, bridges, and what can never be lost on the way."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.media import pictures as pictures_module
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.placing import expand, stray
from sandgate.gateway.media.spans import Span, collapse, within
from sandgate.gateway.media.vision import Vision
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.media import seeing
from tests.gateway.media.seeing import RULE, SIDE, codec, ids, placeholder, url, vision

BUY = Tool("buy", "buy some", {"type": "object", "properties": {}})
RED = ImagePart(url())
WIDE = ImagePart(url("green", (SIDE * 3, SIDE)))


def said(role: str, *parts: str | ImagePart, **more: object) -> Message:
    kept = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message(role, kept, **more)  # type: ignore[arg-type]


def pads(count: int) -> str:
    return "<|vision_start|>" + "<|image_pad|>" * count + "<|vision_end|>"


def rendered(*messages: Message, tools: tuple[Tool, ...] = ()) -> Ids:
    pictures = Pictures(RULE).of(messages)
    return expand(codec().render(messages, tools), vision(), pictures)[0]


RENDERED: dict[str, tuple[tuple[Message, ...], str]] = {
    "an image alone": ((said("user", RED),), f"<|im_start|>user\n{pads(4)}<|im_end|>\n"),
    "between words": (
        (said("user", "left ", RED, " right"),),
        f"<|im_start|>user\nleft {pads(4)} right<|im_end|>\n",
    ),
    "two of different sizes": (
        (said("user", WIDE, "and", RED),),
        f"<|im_start|>user\n{pads(3)}and{pads(4)}<|im_end|>\n",
    ),
    "in the answer of a tool": (
        (said("user", "q"), Message("assistant", (), None, (ToolCall("c", "buy", "{}"),)),
         said("tool", "seen: ", RED, tool_call_id="c")),
        '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "buy", "arguments": {}}\n'
        f"</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nseen: {pads(4)}\n</tool_response><|im_end|>\n",
    ),
    "words that spell a placeholder stay words": (
        (said("user", RED, "not <|image_pad|> this"),), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RENDERED)
def test_each_picture_has_as_many_placeholders_as_patches(case: str) -> None:
    messages, text = RENDERED[case]
    found = rendered(*messages)
    if text:
        assert found == ids(text + "<|im_start|>assistant\n")
    assert found.count(placeholder()) == sum(
        RULE.tokens(one.width, one.height) for one in Pictures(RULE).of(messages)
    )
    assert codec().decode(found).count("<|image_pad|>") == found.count(placeholder()) + (not text)


LOST: dict[str, tuple[Message, ...]] = {
    "in a system message, which the template shows without": (said("system", "look", RED), said("user", "q")),
    "in an assistant's message": (said("user", "q"), said("assistant", RED), said("user", "q")),
}


@pytest.mark.parametrize("case", LOST)
def test_an_image_that_would_be_lost_is_refused(case: str) -> None:
    with pytest.raises(BadRequest, match=r"shows 0 of 1 images|assistant message has an image"):
        rendered(*LOST[case])


TAILS: dict[str, tuple[Message, ...]] = {
    "text": (said("user", "and now?"),),
    "an image": (said("user", WIDE, "and this?"),),
    "a tool's image": (said("tool", RED, tool_call_id="call_1"),),
    "two images in two messages": (said("user", WIDE), said("user", RED)),
}


@pytest.mark.parametrize("case", TAILS)
def test_a_tail_is_bridged_to_what_a_whole_render_has(case: str) -> None:
    tail = TAILS[case]
    asked = said("user", RED, "what is it?")
    called = case == "a tool's image"
    calls = (ToolCall("call_1", "buy", "{}"),) if called else ()
    answer = Message("assistant", () if called else (TextPart("a cat"),), None, calls)
    sampled = ids(
        '<tool_call>\n{"name": "buy", "arguments": {}}\n</tool_call><|im_end|>'
        if called
        else "a cat<|im_end|>"
    )
    prompt = rendered(asked, tools=(BUY,))
    added = codec().bridge(
        prompt, array("i", sampled), tail, (BUY,), closed=True, names={"call_1": "buy"} if called else {}
    )
    assert not isinstance(added, ForkReason)
    own, _ = expand(added, vision(), Pictures(RULE).of(tail))
    assert prompt + array("i", sampled) + own == rendered(asked, answer, *tail, tools=(BUY,))


NUMBERED = seeing.TEMPLATE.replace("{% macro said", "{% set seen = namespace(n=0) %}{% macro said").replace(
    "<|vision_start|>", "{% set seen.n = seen.n + 1 %}Picture {{ seen.n }}: <|vision_start|>"
)


def numbering(tmp_path: Path) -> TemplateCodec:
    made = load_codec(seeing.write(tmp_path, NUMBERED))
    assert isinstance(made, TemplateCodec)
    return made


def test_a_template_that_numbers_pictures_is_not_bridged_over_one(tmp_path: Path) -> None:
    made, answer = numbering(tmp_path), array("i", ids("a cat<|im_end|>"))
    text = "Picture 1: <|vision_start|><|image_pad|><|vision_end|>Picture 2: "
    assert text in made.decode(made.render((said("user", RED, RED),), ()))
    tail = (said("user", WIDE),)
    assert made.bridge(array("i"), answer, tail, (), closed=True) is ForkReason.MULTIMODAL_NOT_BRIDGEABLE
    assert not isinstance(made.bridge(array("i"), answer, TAILS["text"], (), closed=True), ForkReason)


BLIND: dict[str, tuple[dict[str, object], str]] = {
    "a template without images": ({"template": seeing.TEMPLATE.replace("part.type == 'image'", "false")}, ""),
    "another processor": ({"image_processor_type": "PixtralImageProcessor"}, ""),
    "a template that shows an image twice": (
        {"template": seeing.TEMPLATE.replace("<|image_pad|>", "<|image_pad|><|image_pad|>")}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BLIND)
def test_a_model_that_cannot_be_shown_images_refuses_them(case: str, tmp_path: Path) -> None:
    made = load_codec(seeing.write(tmp_path, **BLIND[case][0]))  # type: ignore[arg-type]
    assert made.vision is None
    with pytest.raises(Unsupported, match="text only"):
        made.render((said("user", RED),), ())
    assert made.bridge(array("i"), array("i", ids("a<|im_end|>")), (said("user", RED),), (), closed=True) is (
        ForkReason.MULTIMODAL_NOT_BRIDGEABLE
    )


def test_without_pillow_a_model_that_sees_takes_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sandgate.gateway.tokens.load.installed", lambda: False)
    assert pictures_module.installed()
    made = load_codec(seeing.write(tmp_path))
    assert made.vision is None
    assert "sandgate[gateway-vision]" in caplog.text


def test_where_clients_may_spell_control_tokens_no_text_stands_for_an_image() -> None:
    made = codec(special_text="control")
    with pytest.raises(BadRequest, match=r"a text spells <\|image_pad\|>"):
        made.render((said("user", "<|image_pad|>"),), ())
    with pytest.raises(BadRequest, match=r"a text spells <\|image_pad\|>"):
        made.bridge(
            array("i"), array("i", ids("a<|im_end|>")), (said("user", "<|image_pad|>"),), (), closed=True
        )


def shape(digest: bytes, width: int = 56, height: int = 56) -> Picture:
    return Picture(digest=digest, width=width, height=height, grid=RULE.grid(width, height), png=b"")


def test_spans_are_where_the_placeholders_are() -> None:
    pad, seen = 9, Vision(9, "<|image_pad|>", RULE)
    made, spans = expand(array("i", [1, pad, 2, pad]), seen, [shape(b"a"), shape(b"b", 28, 28)])
    assert made.tolist() == [1, pad, pad, pad, pad, 2, pad]
    assert spans == (Span(1, 4, b"a"), Span(6, 1, b"b"))
    assert collapse(made, spans).tolist() == [1, pad, 2, pad]
    assert within(spans, 5, 7) == (Span(1, 1, b"b"),)
    assert not stray(made, seen, spans)
    assert stray(made + array("i", [pad]), seen, spans)


def test_two_pictures_side_by_side_stay_two() -> None:
    made, spans = expand(array("i", [9, 9]), Vision(9, "<|image_pad|>", RULE), [shape(b"a"), shape(b"b")])
    assert (len(made), collapse(made, spans).tolist()) == (8, [9, 9])
