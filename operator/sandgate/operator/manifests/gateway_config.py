"""Makes a gateway's settings file (sandgate.gateway.config) from a job: the same for every driver. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sandgate.contract.job import LimitsSpec, RolloutJob


def gateway_config(
    job: RolloutJob,
    *,
    listen: dict[str, Any],
    origin: str,
    journal: str,
    urls: Sequence[str],
    tokenizer: str,
    secret_file: str,
    name: str = "",
    place: str = "",
) -> dict[str, Any]:
    """The file's content. Everything that is not the job's own is given: where to listen, what is found where. `name`:
    of its journal in a shared database. `place`: a name of this gateway that ends with its number."""
    spec = job.spec
    sampling = {name: value for name, value in asdict(spec.sampling).items() if value is not None}
    queue = spec.tasks.queue
    found = {
        "listen": listen,
        "origin": origin,
        "journal": journal,
        "engine": {
            "urls": list(urls),
            "kind": spec.engine.kind.value,
            "logprobs_mode": spec.engine.logprobs_mode.value,
            "model": spec.engine.model,
        },
        "model": {
            "name": spec.model.name,
            "tokenizer": tokenizer,
            "renderer": spec.model.renderer,
            "history_policy": spec.model.history_policy.value,
            "special_tokens_in_text": spec.model.special_tokens_in_text.value,
            "max_model_len": spec.model.max_model_len,
            "template_kwargs": spec.model.template_kwargs,
        },
        "job": job.metadata.name,
        "secret_file": secret_file,
        "session_limits": _session_limits(spec.limits),
        "limits": {"tasks": 0 if queue is None else queue.capacity},
        "sampling": sampling,
        "log_level": "INFO",
    }
    if place and spec.gateway.replicas > 1:
        found["peers"] = {"count": spec.gateway.replicas, "name": place}
    roles = [asdict(rule) for rule in spec.gateway.roles]
    media = asdict(spec.gateway.media) if spec.gateway.media.allowed_hosts else None
    told = {"roles": roles, "name": name, "media": media}
    return found | {field: value for field, value in told.items() if value}


def _session_limits(limits: LimitsSpec) -> dict[str, int]:
    """Bounds of rows only where there are any: an older gateway's settings have no such names."""
    rows = {"prompt_tokens": limits.prompt_tokens, "response_tokens": limits.response_tokens}
    found = {"turns": limits.turns, "total_tokens": limits.total_tokens}
    return found | {name: most for name, most in rows.items() if most}
