"""Callbacks that transformers' Trainer and TRL call: saves, steps, weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

from sandgate.contract.errors import Conflict
from sandgate.trainer.trl.checkpoints import sync


class CheckpointAcks(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Tells how many optimizer steps are safe: in a checkpoint, or, where none are saved, done."""

    def __init__(self, committed: Callable[[int], None]) -> None:
        self._committed = committed

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is written, as far as this process has a part of it."""
        first = bool(getattr(state, "is_world_process_zero", True))
        sync(Path(args.output_dir) / f"checkpoint-{state.global_step}", own=first)
        self._committed(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Without checkpoints nothing can be resumed: a step that is done is done."""
        if str(getattr(args.save_strategy, "value", args.save_strategy)) == "no":
            self._committed(int(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The model is the caller's now."""
        self._committed(int(state.global_step))


class OneModel(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Refuses to train where each process would train a model of its own, which nothing else would say."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raises Conflict. `evaluate` marks the model as prepared, and `train` then wraps it no more (transformers 5.19
        with accelerate 1.15)."""
        from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found, unused-ignore]

        trainer = self._trainer
        kind = str(getattr(trainer.accelerator.distributed_type, "value", ""))
        if not kind.startswith("MULTI_") or getattr(trainer, "is_distributed_loading_by_transformers", False):
            return
        model = trainer.model_wrapped
        while hasattr(model, "_orig_mod"):  # compiled
            model = model._orig_mod
        if not isinstance(model, DistributedDataParallel):
            raise Conflict(
                "the model is not wrapped for several processes: each would train one of its own. trainer.evaluate()"
                " before trainer.train() leaves it so: use GRPOConfig(eval_on_start=True) instead"
            )


class EngineSync:
    """Stands where TRL keeps its own vLLM client: asked to sync weights before generation, once per optimizer step."""

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish

    def sync_weights(self) -> None:
        """Called by GRPOTrainer."""
        self._publish()
