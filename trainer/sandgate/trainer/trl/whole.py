"""A model's weights as engines load them: gathered from all processes, adapters merged in."""

from __future__ import annotations

from typing import Any

from sandgate.contract.errors import InvalidBody

INNER = "base_model.model."
"""What peft puts before the names of the model in it."""


def gathered(trainer: Any) -> dict[str, Any] | None:
    """The whole state of the trainer's model, in process 0; None where it lies there whole anyway. In several
    processes all of them have to call it: FSDP and DeepSpeed gather what each of them holds."""
    if trainer.accelerator.num_processes == 1 or adapted(trainer.model):
        return None
    model = trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
    state: dict[str, Any] = trainer.accelerator.get_state_dict(model)
    return state


def adapted(model: Any) -> bool:
    """Is it a peft model?"""
    return hasattr(model, "merge_adapter")


def check(trainer: Any) -> None:
    """Raises InvalidBody for adapters over weights that several processes share: nothing here could merge them."""
    shared = trainer.is_fsdp_enabled or (
        trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    )
    if shared and adapted(trainer.accelerator.unwrap_model(trainer.model)):
        raise InvalidBody(
            "adapters over weights of FSDP or ZeRO 3 cannot be merged for the engines: use DDP or ZeRO 1 or 2, or train"
            " without peft_config",
            field="peft_config",
        )


def plain(model: Any) -> tuple[Any, dict[str, Any]]:
    """Of a peft model: the model in it, and its state with all active adapters merged in, on the CPU, under the names
    that it has without peft. `model` has the very bits that it had before: a merge that is undone leaves rounding
    behind, at each update. Raises InvalidBody for adapters that an engine could not tell from a tied weight."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from peft.tuners.tuners_utils import BaseTunerLayer  # type: ignore[import-not-found, unused-ignore]

    state: dict[str, Any] = {}
    tuned = [(name, one) for name, one in model.named_modules() if isinstance(one, BaseTunerLayer)]
    with torch.no_grad():
        for name, layer in tuned:
            state |= {_name(f"{name}.{key}"): one for key, one in _merged(layer).items()}
        inside = tuple(f"{name}." for name, _ in tuned)
        for name, one in model.state_dict().items():
            plainly = _trained_whole(name, model.active_adapters)
            if plainly and not name.startswith(inside):
                state.setdefault(_name(plainly), one.detach().to("cpu", copy=True))
    base = model.get_base_model()
    _check_tied(base, state)
    return base, state


def _merged(layer: Any) -> dict[str, Any]:
    """What is in the layer below, with the active adapters merged in, on the CPU."""
    base = layer.get_base_layer()
    if layer.merged:  # by its user, who keeps it so
        return {key: one.detach().to("cpu", copy=True) for key, one in base.named_parameters()}
    kept = {key: one.detach().clone() for key, one in base.named_parameters()}
    layer.merge()
    try:
        found = {key: one.detach().to("cpu", copy=True) for key, one in base.named_parameters()}
        layer.unmerge()
    finally:
        for key, one in base.named_parameters():
            one.copy_(kept[key])
    return found


def _check_tied(model: Any, state: dict[str, Any]) -> None:
    import torch

    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return
    for one, other in dict(getattr(model, "_tied_weights_keys", None) or {}).items():
        if one in state and other in state and not torch.equal(state[one], state[other]):
            raise InvalidBody(
                f"adapters make {one} and {other} two weights, and the model's configuration says that they are one"
                " (tie_word_embeddings): an engine would sample from another policy. Leave both out of"
                " target_modules and modules_to_save",
                field="peft_config",
            )


def _trained_whole(name: str, active: list[str]) -> str:
    """Of a module that is trained whole the active adapter's, under the name of what it replaces; empty for all else of
    such a module."""
    for adapter in active:
        name = name.replace(f".modules_to_save.{adapter}.", ".")
    return "" if ".modules_to_save." in name or ".original_module." in name else name


def _name(name: str) -> str:
    """Without what peft puts in."""
    return name.replace(".base_layer", "").removeprefix(INNER)
