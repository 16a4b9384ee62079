"""vLLM's command line, so that it returns exact ids, logprobs and versions: the same for every driver. (pure)"""

from __future__ import annotations

from sandgate.contract.job import ManagedEngineSpec, RolloutJobSpec

VLLM_ENV = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Dev mode: pause, resume and weight updates. Only where nobody else reaches it: on loopback, or behind the
NetworkPolicy that lets in the job's gateways and trainers alone. No bound of vLLM's own on a request's pictures (0 is
none): 0.33's is below the pixels that a gateway takes (media/pictures.py REQUEST_PIXELS_MAX)."""
CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""1 GiB of cache: a small model needs less, and the default takes half the machine. Threads bound to no core: agents
and gateways run beside it. No worker process where one is enough: 0.32 (platforms/cpu.py) starts one otherwise, and it
and the engine's core wait for each other without sleep, for a second after each step (45 s of CPU where 19 do). More
than one worker (tensor parallel) vLLM starts all the same."""
CPU_MEMORY_SHARE = "0.2"
"""Of the memory node, that vLLM wants free when it starts. Given a cache size 0.32 does not ask (it started with 0.99
on a machine in use); where it does ask, its default of 0.92 fails as soon as anything else runs."""


def vllm_argv(
    spec: RolloutJobSpec,
    managed: ManagedEngineSpec,
    python: str,
    model: str,
    port: int,
    host: str = "127.0.0.1",
) -> list[str]:
    """A vLLM that returns exact ids and the logprobs the job asks for. Later arguments win, also over ours."""
    argv = [python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", model, "--served-model-name", served_name(spec)]
    argv += ["--host", host, "--port", str(port)]
    argv += [
        "--enable-scale-out",
        "--logprobs-mode",
        spec.engine.logprobs_mode.value,
        "--enable-prompt-tokens-details",
    ]
    if spec.model.max_model_len:
        argv += ["--max-model-len", str(spec.model.max_model_len)]
    if managed.gpus == 0:
        argv += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "32"]
        argv += ["--gpu-memory-utilization", CPU_MEMORY_SHARE]
    elif managed.gpus > 1:
        argv += ["--tensor-parallel-size", str(managed.gpus)]
    return [*argv, *managed.args]


def served_name(spec: RolloutJobSpec) -> str:
    """The engine's name of the model."""
    return spec.engine.model or spec.model.name


def command_names(spec: RolloutJobSpec, model: str, host: str, port: int) -> dict[str, str]:
    """What `engine.managed.command` may refer to as $(NAME)."""
    return {
        "MODEL": model,
        "MODEL_NAME": served_name(spec),
        "HOST": host,
        "PORT": str(port),
        "MAX_MODEL_LEN": str(spec.model.max_model_len),
    }
