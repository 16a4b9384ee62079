"""Vision: what a checkpoint makes of pictures: its placeholder, and its image processor's rule. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandgate.gateway.media.grids import GridRule, UnknownProcessor, rule_of


@dataclass(frozen=True, slots=True)
class Vision:
    """How a model sees pictures."""

    placeholder: int
    """The id that stands for each patch (`<|image_pad|>`)."""
    text: str
    """Its text, which templates write once per picture."""
    rule: GridRule


def vision_of(
    processor: Mapping[str, Any], model: Mapping[str, Any], texts: Mapping[int, str]
) -> Vision | str:
    """The vision of a checkpoint, or why it has none. `processor`: preprocessor_config.json; `model`: config.json;
    `texts`: added tokens by id."""
    if not processor:
        return "the checkpoint has no preprocessor_config.json: it is a model of text"
    placeholder = model.get("image_token_id")
    if not isinstance(placeholder, int) or placeholder not in texts:
        return "its config.json names no image_token_id that its tokenizer has"
    try:
        return Vision(placeholder, texts[placeholder], rule_of(processor))
    except UnknownProcessor as error:
        return str(error)
