"""Which models of peft an engine can serve as base weights and a LoRA adapter, exactly: the others are named."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.trl.adapters import FIELD, SMALLEST, adapted, check_kind

PLAIN = frozenset(
    (
        "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
        "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "use_rslora",
        "layers_to_transform", "layers_pattern", "init_lora_weights", "eva_config", "runtime_config",
    )
)  # fmt: skip
"""Settings of a LoraConfig whose every value an engine serves. Of all others (DoRA, biases, ranks of single modules,
modules_to_save, ...) the default alone: vLLM refuses them, or nobody tried whether it has them as peft does."""
INITS = ("gaussian", "orthogonal", "eva")
"""Beside True and False: those that leave the weights below the adapter as they are."""
INSTEAD = 'use adapters="merged" (the default)'


def check_lora(model: Any) -> str:
    """The name that peft has for the one adapter that `model` computes with. Raises InvalidBody, by name, for what is
    not a plain LoRA of linear layers over the weights that an engine was started with, or trains more than that."""
    if not adapted(model):
        raise InvalidBody(
            'adapters="served" is for a model with adapters: give the trainer peft_config, or a model of'
            " peft.get_peft_model",
            field=FIELD,
        )
    check_kind(model)
    active = list(model.active_adapters)
    if len(active) != 1:
        raise InvalidBody(
            f"{len(active)} adapters are active, and an engine serves one: {INSTEAD}", field=FIELD
        )
    _check_config(model.peft_config[active[0]])
    _check_layers(model.get_base_model(), active[0])
    marks = (f".lora_A.{active[0]}.", f".lora_B.{active[0]}.")
    for name, one in model.named_parameters():
        if one.requires_grad and not any(mark in name for mark in marks):
            raise InvalidBody(
                f"{name} is trained, and is no part of the adapter that engines serve: {INSTEAD}", field=FIELD
            )
    return str(active[0])


def _check_config(config: Any) -> None:
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        raise InvalidBody(f"adapters of {kind} are not served by engines, LoRA is: {INSTEAD}", field=FIELD)
    for one in fields(config):
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        value = getattr(config, one.name)
        if one.name not in PLAIN and value != default and (value or default):
            raise InvalidBody(
                f"LoraConfig({one.name}={value!r}) is not served as an adapter: {INSTEAD}", field=FIELD
            )
    init = config.init_lora_weights
    if isinstance(init, str) and init not in INITS:
        raise InvalidBody(
            f"LoraConfig(init_lora_weights={init!r}) changes the weights below the adapter, which engines have as they"
            f" were: {INSTEAD}",
            field=FIELD,
        )


def _check_layers(base: Any, adapter: str) -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer  # type: ignore[import-not-found, unused-ignore]
    from torch import nn  # type: ignore[import-not-found, unused-ignore]

    head = base.get_output_embeddings()
    for name, layer in base.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        below = layer.get_base_layer()
        if not isinstance(below, nn.Linear) or layer is head:
            raise InvalidBody(
                f"{name}: an adapter of an embedding, of the output head, or of {type(below).__name__} is not served:"
                f" leave it out of target_modules, or {INSTEAD}",
                field=FIELD,
            )
        if below.weight.element_size() < SMALLEST:
            raise InvalidBody(f"{name}: adapters over quantized weights (QLoRA) are not served", field=FIELD)
        if layer.disable_adapters or set(layer.merged_adapters) - {adapter}:
            raise InvalidBody(
                f"{name}: its adapter is switched off, or another is merged into its weights: the model is not its base"
                " weights and one adapter",
                field=FIELD,
            )
