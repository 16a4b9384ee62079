"""A model's weights as engines load them: gathered from all processes."""

from __future__ import annotations

from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.trl.adapters import adapted


def gathered(trainer: Any) -> dict[str, Any] | None:
    """The whole state of the trainer's model, in process 0; None where it lies there whole anyway. In several
    processes all of them have to call it: FSDP and DeepSpeed gather what each of them holds."""
    if trainer.accelerator.num_processes == 1 or adapted(trainer.model):
        return None
    model = trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
    state: dict[str, Any] = trainer.accelerator.get_state_dict(model)
    return state


def check(trainer: Any, weights: Any) -> None:
    """Raises InvalidBody for adapters over weights that several processes share: nothing here could merge them. And for
    what these `weights` cannot publish, if they say so (`check`): others than ours may need no merge."""
    shared = trainer.is_fsdp_enabled or (
        trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    )
    model = trainer.accelerator.unwrap_model(trainer.model)
    if shared and adapted(model):
        raise InvalidBody(
            "adapters over weights of FSDP or ZeRO 3 are neither merged nor served: use DDP or ZeRO 1 or 2, or train"
            " without peft_config",
            field="peft_config",
        )
    if (look := getattr(weights, "check", None)) is not None:
        look(model)
