"""Vision: what a checkpoint makes of pictures: its placeholder, and its image processor's rule. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.grids import framed_rule_of, rule_of
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.rows import pixtral_of
from sandgate.gateway.media.rules import Checkpoint, Rule, UnknownProcessor
from sandgate.gateway.media.spans import Span, collapse
from sandgate.gateway.media.squares import gemma3_of, llava_of
from sandgate.gateway.media.tiles import idefics_of
from sandgate.gateway.media.videos import VideoRule, video_of


@dataclass(frozen=True, slots=True)
class Vision:
    """How a model sees pictures."""

    placeholder: int
    """The id that templates write once per picture (`<|image_pad|>`)."""
    text: str
    """Its text."""
    rule: Rule
    wrapped: str = ""
    """What the processor makes of that text before it is encoded, where that is more: Gemma 3's new lines."""
    video: VideoRule | None = None
    """What it makes of videos, if it takes any."""

    @property
    def places(self) -> frozenset[int]:
        """Ids that templates write once per picture, or video."""
        return frozenset((self.placeholder, self.video.placeholder if self.video else self.placeholder))

    def place(self, picture: Picture) -> int:
        """The one that stands for this picture, or video."""
        return self.video.placeholder if picture.frames and self.video else self.placeholder

    def run(self, picture: Picture) -> Ids:
        """The ids that stand for it instead."""
        if picture.frames and self.video:
            return self.video.run(picture)
        return self.rule.run(self.placeholder, picture.width, picture.height)

    @property
    def reserved(self) -> frozenset[int]:
        """Ids that stand for pictures and videos only."""
        return self.rule.reserved(self.placeholder) | self.places

    def told(self, ids: Ids, spans: Iterable[Span]) -> Ids:
        """A prompt as an engine is sent it that puts the placeholders in itself. Raises BadRequest for one that no
        engine would make so."""
        return collapse(ids, spans) if self.video else self.rule.told(self.placeholder, ids, spans)


QWEN = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"))
LLAVA = frozenset(("llava",))


def _qwen(checkpoint: Checkpoint) -> Vision:
    video = video_of(checkpoint.video, checkpoint.model, checkpoint.texts)
    return replace(_named(checkpoint, rule_of(checkpoint.image)), video=video)


def _glm(checkpoint: Checkpoint) -> Vision:
    return _named(checkpoint, framed_rule_of(checkpoint.image))


def _gemma3(checkpoint: Checkpoint) -> Vision:
    first, rule = gemma3_of(checkpoint)
    text = checkpoint.texts[first]
    return Vision(first, text, rule, wrapped=f"\n\n{text}\n\n")


def _llava(checkpoint: Checkpoint) -> Vision:
    return _named(checkpoint, llava_of(checkpoint))


def _pixtral(checkpoint: Checkpoint) -> Vision:
    return _named(checkpoint, pixtral_of(checkpoint))


def _idefics(checkpoint: Checkpoint) -> Vision:
    return _named(checkpoint, idefics_of(checkpoint))


def _named(checkpoint: Checkpoint, rule: Rule) -> Vision:
    """With the placeholder that config.json names."""
    config = checkpoint.model
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    if not isinstance(placeholder, int) or placeholder not in checkpoint.texts:
        raise UnknownProcessor("its config.json names no image_token_id that its tokenizer has")
    return Vision(placeholder, checkpoint.texts[placeholder], rule)


Maker = Callable[[Checkpoint], Vision]
SERVED: Mapping[str, tuple[frozenset[str], Maker]] = {
    "Qwen2VLImageProcessor": (QWEN, _qwen),
    "Glm4vImageProcessor": (frozenset(("glm4v", "glm4v_moe")), _glm),
    "Glm46VImageProcessor": (frozenset(("glm46v",)), _glm),
    "Gemma3ImageProcessor": (frozenset(("gemma3",)), _gemma3),
    "PixtralImageProcessor": (frozenset(("llava", "mistral3")), _pixtral),
    "CLIPImageProcessor": (LLAVA, _llava),
    "LlavaImageProcessor": (LLAVA, _llava),
    "SiglipImageProcessor": (LLAVA, _llava),
    "Idefics3ImageProcessor": (frozenset(("idefics3", "smolvlm")), _idefics),
    "SmolVLMImageProcessor": (frozenset(("smolvlm",)), _idefics),
}
"""`image_processor_type`, without `Fast` or `Pil` -> `model_type` of checkpoints that it is served for, and what makes
their vision. Proved for one of each kind at least; qwen2_vl, qwen3_5 and the mixtures of experts have the processor of
a proved sister, and were not run on their own. What is not here takes no images: another model may put other ids
around the same patches."""


def vision_of(checkpoint: Checkpoint) -> Vision | str:
    """The vision of a checkpoint, or why it has none."""
    if not checkpoint.image:
        return "the checkpoint has no preprocessor_config.json: it is a model of text"
    told = checkpoint.image.get("image_processor_type")
    kind = told.removesuffix("Fast").removesuffix("Pil") if isinstance(told, str) else ""
    if kind not in SERVED:
        return f"its image processor is {told!r}; served are {', '.join(SERVED)}"
    models, make = SERVED[kind]
    model = checkpoint.model.get("model_type")
    if not isinstance(model, str) or model not in models:
        return f"its model_type is {model!r}; {kind} is served for {', '.join(sorted(models))}"
    try:
        return make(checkpoint)
    except UnknownProcessor as error:
        return str(error)
