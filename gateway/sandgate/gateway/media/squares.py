"""Squares: each picture becomes one of the same size, with the same number of placeholders: Gemma 3, LLaVA. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.rules import (
    RESIZED_MAX,
    RGB,
    Checkpoint,
    Fit,
    PlainRule,
    UnknownProcessor,
    too_narrow,
)

if TYPE_CHECKING:
    from sandgate.gateway.media.spans import Span

TOKENS_MAX = 1 << 14
"""Placeholders of a picture."""
NEWLINES_MAX = 4
"""Of a run of new lines beside a picture. Gemma's tokenizer has a token for each run; vLLM makes those of 3 and 4."""


@dataclass(frozen=True, slots=True)
class SquareRule(PlainRule):
    """CLIP's and SigLIP's: resized by the shorter side and cut in the middle, or resized at once."""

    kind: ClassVar[str] = "square"
    side: int
    tokens: int
    resample: int = 3
    cut: bool = True
    """Whether the middle is cut out; else the picture is squeezed."""

    def fit(self, width: int, height: int) -> Fit:
        """See Rule."""
        side = self.side
        if not self.cut:
            return Fit(((side, side),))
        wide, high = (
            (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
        )
        if wide * high > RESIZED_MAX:
            raise too_narrow(width, height)
        left, top = (wide - side) // 2, (high - side) // 2
        return Fit(((wide, high),), (left, top, left + side, top + side))

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """See Rule."""
        return 1, 1, self.tokens

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """See Rule."""
        return array("i", (placeholder,)) * self.tokens


@dataclass(frozen=True, slots=True)
class FramedSquareRule(SquareRule):
    """Gemma 3's: between a first and a last token, and with two new lines on either side, which are tokens together
    with those beside them."""

    patch: int = 0
    """The id that stands for a piece of a picture (`<image_soft_token>`)."""
    end: int = 0
    """Behind the last (`<end_of_image>`)."""
    newlines: tuple[int, ...] = ()
    """Ids of runs of 1, 2, 3, ... new lines."""

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """See Rule."""
        return array("i", (placeholder, *(self.patch,) * self.tokens, self.end))

    def reserved(self, placeholder: int) -> frozenset[int]:
        """See Rule."""
        return frozenset((placeholder, self.patch, self.end))

    def told(self, placeholder: int, ids: Ids, spans: Iterable[Span]) -> Ids:
        """See Rule: without the new lines that the engine puts there itself."""
        spans = tuple(spans)
        left = dict[int, int]()
        for span in spans:
            for at in (span.start - 1, span.start + span.length):
                count = left.get(at)
                if count is None:
                    count = 1 + self.newlines.index(ids[at]) if ids[at] in self.newlines else 0
                    if not 2 <= count <= NEWLINES_MAX:
                        raise InvalidBody(
                            f"an image stands beside more than {NEWLINES_MAX - 2} new lines, which its engine would "
                            "not join as the processor does",
                            field="messages",
                        )
                left[at] = count - 2
        short, done = array("i"), 0
        for span in spans:
            before, behind = span.start - 1, span.start + span.length
            short.extend(ids[done:before])
            if before >= done:  # else it was told behind the picture before
                short.extend(self._newlines(left[before]))
            short.append(placeholder)
            short.extend(self._newlines(left[behind]))
            done = behind + 1
        short.extend(ids[done:])
        return short

    def _newlines(self, count: int) -> tuple[int, ...]:
        return (self.newlines[count - 1],) if count > 0 else ()


def gemma3_of(checkpoint: Checkpoint) -> tuple[int, FramedSquareRule]:
    """The first token, and the rule. Raises UnknownProcessor."""
    config = checkpoint.image
    checkpoint.set_as({**RGB, "do_pan_and_scan": False})
    side = _side(checkpoint, config.get("size") or {"height": 224, "width": 224}, "size")
    told = checkpoint.processor.get("image_seq_length")
    tokens = checkpoint.number("image_seq_length", 256 if told is None else told, TOKENS_MAX)
    if checkpoint.model.get("mm_tokens_per_image", tokens) != tokens:
        raise UnknownProcessor("its image_seq_length is not the model's mm_tokens_per_image")
    first, end = checkpoint.token("<start_of_image>"), checkpoint.token("<end_of_image>")
    patch = checkpoint.token("<image_soft_token>")
    runs = [checkpoint.encode("\n" * count) for count in range(1, NEWLINES_MAX + 1)]
    if any(len(run) != 1 for run in runs):
        raise UnknownProcessor("its tokenizer has no tokens for runs of new lines")
    resample = checkpoint.number("resample", config.get("resample", 2), 5)
    newlines = tuple(run[0] for run in runs)
    return first, FramedSquareRule(side, tokens, resample, cut=False, patch=patch, end=end, newlines=newlines)


def llava_of(checkpoint: Checkpoint) -> SquareRule:
    """Raises UnknownProcessor."""
    config, processor = checkpoint.image, checkpoint.processor
    checkpoint.set_as({**RGB, "do_pad": False})
    size = config.get("size")
    cut = isinstance(size, Mapping) and "shortest_edge" in size
    if isinstance(size, Mapping) and cut:
        checkpoint.set_as({"do_center_crop": True})
        side = _side(checkpoint, config.get("crop_size"), "crop_size")
        if size.get("shortest_edge") != side or set(size) != {"shortest_edge"}:
            raise UnknownProcessor(
                "its image processor cuts pictures to another size than it resizes them to"
            )
    else:
        checkpoint.set_as({"do_center_crop": False})
        side = _side(checkpoint, size, "size")
    patch = checkpoint.number("patch_size (processor_config.json)", processor.get("patch_size"))
    strategy = processor.get("vision_feature_select_strategy")
    if strategy not in ("default", "full"):
        raise UnknownProcessor(
            f"its vision_feature_select_strategy is {strategy!r}; default or full is served"
        )
    more = processor.get("num_additional_image_tokens", 0)
    if more not in (0, 1):
        raise UnknownProcessor(f"its num_additional_image_tokens is {more!r}; 0 or 1 is served")
    tokens = (side // patch) ** 2 + more - (strategy == "default")
    resample = checkpoint.number("resample", config.get("resample", 3), 5)
    return SquareRule(side, checkpoint.number("number of tokens", tokens, TOKENS_MAX), resample, cut)


def _side(checkpoint: Checkpoint, given: object, name: str) -> int:
    """Of a square. Raises UnknownProcessor."""
    if (
        not isinstance(given, Mapping)
        or set(given) != {"height", "width"}
        or given["height"] != given["width"]
    ):
        raise UnknownProcessor(
            f"its image processor's {name} is {given!r}; a height and the same width are served"
        )
    return checkpoint.number(f"{name}.height", given["height"])
