"""Positions of a row's tokens, counted from the row's first token, as engines count."""

from __future__ import annotations

import inspect
from typing import Any


def count_from_first(model: Any) -> None:
    """From now on `model`, called with an `attention_mask` and no `position_ids`, numbers a row's tokens from 0.

    TRL pads prompts on the left and leaves positions to transformers, which counts the padding: a row then has other
    positions than it was sampled at. A model that learned its positions computes something else there. Rotary positions
    are relative, but their angles are float32: moved by two, a token of float32 weights was off by 2.7e-4 (one in a
    sentence that made no sense; most move by 1e-6), at the engine's positions by 1.3e-5.

    Changes nothing for models that take no positions, and for those of images, which number their own.
    """
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft hides the signature
    text = plain.config.get_text_config() is plain.config
    if text and "position_ids" in inspect.signature(plain.forward).parameters:
        model.register_forward_pre_hook(_positions, with_kwargs=True)


def _positions(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, Any] | None:
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if ids is None or mask is None or mask.shape != ids.shape or given.get("position_ids") is not None:
        return None
    return args, {**given, "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}
