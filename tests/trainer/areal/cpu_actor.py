"""AReaL's own FSDPPPOActor on a CPU: FSDP2 over gloo, its advantages, its loss, its optimizer.

What its trainer package imports besides, and this environment lacks (loggers that talk to servers, LoRA), stands in as
empty modules.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

LACKING = frozenset(
    (
        "pybase64",
        "swanlab",
        "wandb",
        "tensorboardX",
        "trackio",
        "peft",
        "datasets",
        "torch_memory_saver",
        "pynvml",
        "tabulate",
    )
)


class Lacking(MetaPathFinder, Loader):
    """Finds them, and gives whatever they are asked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".", maxsplit=1)[0] in LACKING else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made: Any = MagicMock(name=spec.name)
        made.__path__, made.__spec__, made.__name__ = [], spec, spec.name
        return made  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


sys.meta_path.append(Lacking())

import torch  # type: ignore[import-not-found]  # noqa: E402
from areal.api.cli_args import OptimizerConfig, PPOActorConfig  # type: ignore[import-not-found]  # noqa: E402
from areal.api.io_struct import FinetuneSpec  # type: ignore[import-not-found]  # noqa: E402
from areal.engine.fsdp_engine import FSDPPPOActor  # type: ignore[import-not-found]  # noqa: E402


def actor(model: str, experiment: str) -> Any:
    """With no norms of its own: what it is given as rewards are advantages already."""
    # Port 0: one that is free by then.
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    config = PPOActorConfig(
        experiment_name=experiment,
        trial_name="ci",
        backend="fsdp:d1",
        path=model,
        attn_impl="sdpa",
        dtype="float32",
        gradient_checkpointing=False,
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps_proportion=0.0),
        reward_norm=None,
        adv_norm=None,
        kl_ctl=0.0,
        ppo_n_minibatches=1,
        recompute_logprob=False,
        use_decoupled_loss=False,
    )
    made = FSDPPPOActor(config)
    made.create_process_group()
    made.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=8, train_batch_size=2))
    return made


def weights(made: Any) -> Any:
    """All of them, in one."""
    return torch.cat([one.detach().full_tensor().reshape(-1) for one in made.model.parameters()])
