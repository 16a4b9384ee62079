"""What verl lacks to run its own trainer on a CPU, in the places that it has for plugins: a platform, and a rollout
replica whose engine is transformers. `small_fit.ENVIRONMENT` loads it; the config says `trainer.device=cpu`,
`actor.strategy=fsdp2` and `rollout.name=transformers`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import types
from contextlib import contextmanager
from typing import Any

import ray  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from verl.plugin.platform.platform_base import PlatformBase  # type: ignore[import-not-found]
from verl.plugin.platform.platform_manager import PlatformRegistry  # type: ignore[import-not-found]

NAME = "transformers"
SLOT = "NPU"
"""Ray's resource that stands for an accelerator: verl counts those called GPU or NPU, and no others."""


def _device_module() -> types.ModuleType:
    """`torch.cpu`, with the numbers of memory that verl's workers log."""
    made = types.ModuleType("torch_cpu")
    made.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if name[0] != "_"})
    nothing: dict[str, Any] = dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), lambda *_: 0
    )
    nothing |= dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), lambda *_: None)
    nothing |= {"mem_get_info": lambda *_: (0, 0), "manual_seed": torch.manual_seed}
    nothing |= {"get_device_name": lambda *_: "cpu", "get_rng_state": torch.get_rng_state}
    nothing |= {"set_rng_state": torch.set_rng_state}
    made.__dict__.update(nothing)
    return made


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """No accelerator."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_SLOTS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return SLOT

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


# -- the rollout -----------------------------------------------------------------------------------------------------


class Server:
    """An inference server: transformers' model, and the sampling of a few lines."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.version: int | None = None
        self.asleep = False

    async def load(self, weights: dict[str, Any], version: int | None) -> None:
        """As a weight update ends."""
        assert self.asleep or self.version is None, "weights change only while verl has the servers asleep"
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not missing, (missing, unexpected)
        assert not unexpected, (missing, unexpected)
        self.version, self.asleep = version, False

    async def sleep(self) -> None:
        self.asleep = True

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """verl's TokenOutput."""
        from verl.workers.rollout.replica import TokenOutput  # type: ignore[import-not-found]

        assert not self.asleep, "a turn reached a server that sleeps"
        version = self.version
        ids, logprobs = await asyncio.to_thread(self._sample, prompt_ids, sampling_params)
        return TokenOutput(
            token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields={"global_steps": version}
        )

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _sample(self, prompt_ids: list[int], params: dict[str, Any]) -> tuple[list[int], list[float]]:
        temperature, stops = params["temperature"], set(params.get("stop_token_ids") or ())
        ids: list[int] = []
        logprobs: list[float] = []
        given, past = torch.tensor([prompt_ids]), None
        while len(ids) < params["max_tokens"] and not (ids and ids[-1] in stops):
            out = self.model(given, past_key_values=past, use_cache=True)
            told = torch.log_softmax(out.logits[0, -1].float() / (temperature or 1.0), -1)
            token = int(torch.multinomial(told.exp(), 1) if temperature else told.argmax())
            ids.append(token)
            logprobs.append(float(told[token]))
            given, past = torch.tensor([[token]]), out.past_key_values
        return ids, logprobs


def server_name(rank: int) -> str:
    """Of the actor."""
    return f"transformers-server-{rank}"


def _replica() -> type:
    from verl.workers.rollout.replica import RolloutReplica

    class TransformersReplica(RolloutReplica):  # type: ignore[misc]
        """One server for one worker."""

        async def launch_servers(self) -> None:
            made = ray.remote(Server).options(name=server_name(self.replica_rank), num_cpus=0)
            path = (
                self.model_config["path"] if isinstance(self.model_config, dict) else self.model_config.path
            )
            self._server_handle = made.remote(path)
            self.servers = [self._server_handle]
            self._server_address = server_name(self.replica_rank)
            await self._server_handle.__ray_ready__.remote()

    return TransformersReplica


def _register() -> None:
    from verl.utils import distributed  # type: ignore[import-not-found]
    from verl.workers.rollout import base, replica  # type: ignore[import-not-found]

    # verl/utils/distributed.py:89 names gloo for the CPU and again for the device, which torch refuses.
    distributed.initialize_global_process_group_ray = functools.partial(
        distributed.initialize_global_process_group_ray, backend="cpu:gloo"
    )
    replica.RolloutReplicaRegistry.register(NAME, _replica)
    base._ROLLOUT_REGISTRY[(NAME, "async")] = "cpu_verl.ServerAdapter"


def __getattr__(name: str) -> Any:
    """`ServerAdapter`, made when verl asks for it: its base needs the whole of verl."""
    if name != "ServerAdapter":
        raise AttributeError(name)
    from verl.workers.rollout.base import BaseRollout  # type: ignore[import-not-found]

    class ServerAdapter(BaseRollout):  # type: ignore[misc]
        """Hands the actor's weights to its server."""

        async def resume(self, tags: list[str]) -> None: ...

        async def release(self) -> None: ...

        async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
            server = ray.get_actor(server_name(int(os.environ["RANK"])))
            found = {name: value.detach().cpu().clone() for name, value in weights}
            await server.load.remote(found, global_steps)

    return ServerAdapter


_register()
