"""Checks a model folder: whether its tokenizer and template can be used without asking anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.load import load_codec
from sandgate.gateway.tokens.tool_support import not_forced
from sandgate.trainer.doctor.findings import Finding, fail, ok, skip, warn

NO_LIMIT = 10**9
"""Tokenizers that know no length say 1e30."""


@dataclass(slots=True)
class CheckedModel:
    """A model folder, and its codec once it is loaded."""

    folder: Path
    codec: Codec | None = None

    def config(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; {} if it is missing or no object."""
        try:
            value = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


def check_model(model: CheckedModel) -> Iterator[Finding]:
    """All checks of the folder; sets `model.codec` if there is one."""
    if not (model.folder / "tokenizer.json").is_file():
        yield fail(
            "tokenizer",
            f"no tokenizer.json in {model.folder}",
            "save it with AutoTokenizer.from_pretrained(...).save_pretrained(DIR)",
        )
        return
    try:
        model.codec = load_codec(model.folder)
    except SandgateError as error:
        yield fail(
            "codec", str(error), "give the checkpoint a chat_template.jinja whose turns render independently"
        )
        return
    codec = model.codec
    yield ok("tokenizer", f"{codec.vocab_size:,} ids, digest {codec.tokenizer_digest[:16]}")
    yield ok("codec", codec.name)
    yield tools(codec)
    yield images(model, codec)
    yield forms(codec)
    yield tails(codec)
    yield stop_ids(model, codec)
    yield tied_embeddings(model)
    yield window(model)


def tools(codec: Codec) -> Finding:
    """Can it be given tools?"""
    if not codec.no_tools:
        return ok("tools", "shown to the model; a call as the template writes it is read back equal")
    return warn(
        "tools",
        codec.no_tools,
        "requests with `tools` are refused with 400; use a chat template that shows tools and keeps calls, or describe "
        "tools in the prompt and read calls from the text",
    )


def images(model: CheckedModel, codec: Codec) -> Finding:
    """Can it be given images?"""
    if codec.vision is not None:
        return ok(
            "images",
            f"taken, as {codec.vision.rule.kind}; each is where the template writes {codec.vision.text}",
        )
    if not model.config("preprocessor_config.json") and not model.config("processor_config.json"):
        return ok("images", "a model of text")
    return warn(
        "images",
        codec.no_images,
        "requests with images are refused with 400; docs/protocols.md has the processors that are served",
    )


def forms(codec: Codec) -> Finding:
    """Can turns be held to what a request asks for?"""
    if codec.no_tools:
        return ok("forms", "response_format; there are no tools to call")
    refused = not_forced(codec)
    if not refused:
        return ok("forms", "response_format, tool_choice and parallel_tool_calls are enforced")
    fields = {
        "required": "tool_choice required or a function",
        "one call at most": "parallel_tool_calls: false",
    }
    asked = " or ".join(fields[name] for name in refused)
    return warn(
        "forms",
        f"not enforced: {', '.join(refused)}",
        f"requests with {asked} are refused with 400; leave the choice to the model",
    )


def tails(codec: Codec) -> Finding:
    """Which kinds of next message can be bridged, so that they never fork."""
    shapes = getattr(codec, "shapes", None)
    if shapes is None:
        return ok("bridge", "a renderer of the model's family, equal to the checkpoint's template")
    found = shapes()
    broken = {name: shape.why for name, shape in found.items() if hasattr(shape, "why")}
    if not broken:
        return ok("bridge", f"proved for all {len(found)} kinds of next messages")
    why = "; ".join(f"{name}: {text}" for name, text in broken.items())
    return warn(
        "bridge",
        f"not proved for {why}",
        "such turns fork with template_not_additive: exact, but a new training row each; "
        "change the template, or use a model whose family has a renderer",
    )


def stop_ids(model: CheckedModel, codec: Codec) -> Finding:
    """Does the engine, left alone, end a turn where the template ends it?"""
    said = model.config("generation_config.json").get("eos_token_id")
    listed = [said] if isinstance(said, int) else said if isinstance(said, list) else []
    missing = [stop for stop in codec.stop_ids if stop not in listed]
    if not codec.stop_ids:
        return fail("stop ids", "nothing ends a turn", "set eos_token in tokenizer_config.json")
    if not missing:
        return ok("stop ids", f"{list(codec.stop_ids)}, all in generation_config.json")
    return warn(
        "stop ids",
        f"{missing} end a turn, but generation_config.json lists {listed or 'none'}",
        f"rollouts are right (the gateway sends them); for other uses set eos_token_id to {list(codec.stop_ids)}",
    )


def tied_embeddings(model: CheckedModel) -> Finding:
    """vLLM's `reload_weights` leaves a tied CPU output head at the old weights, silently (measured on 0.32)."""
    config = model.config("config.json")
    if not config:
        return skip("output head", "no config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    if not (text or {}).get("tie_word_embeddings", config.get("tie_word_embeddings", False)):
        return ok("output head", "not tied to the embeddings")
    return warn(
        "output head",
        "tied to the embeddings: vLLM's reload_weights on CPU keeps the old head, and says 200",
        "save the model with tie_word_embeddings=False, or compare captured with trainer's logprobs after an update",
    )


def positions(model: CheckedModel) -> int:
    """What the weights can attend over; 0 if the folder does not say."""
    config = model.config("config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    found = (text or {}).get("max_position_embeddings", 0)
    return found if isinstance(found, int) else 0


def window(model: CheckedModel) -> Finding:
    """Does the tokenizer promise more than the weights can hold?"""
    length = model.config("tokenizer_config.json").get("model_max_length", 0)
    limit = positions(model)
    if not limit:
        return skip("window", "config.json does not say max_position_embeddings")
    if isinstance(length, int | float) and limit < length < NO_LIMIT:
        return warn(
            "window",
            f"the tokenizer says {length:,.0f} tokens, the weights hold {limit:,}",
            f"set model_max_length to {limit} in tokenizer_config.json",
        )
    return ok("window", f"{limit:,} positions")
