"""A good manifest, and how to spoil it."""

from __future__ import annotations

import copy
from typing import Any

Manifest = dict[str, Any]

CONTAINER = {"name": "agent", "image": "my/agent:1", "command": ["python", "agent.py"]}

GOOD: Manifest = {
    "apiVersion": "sandgate.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "shop", "managedFields": [{"manager": "kubectl"}]},
    "spec": {
        "model": {
            "name": "tiny",
            "tokenizer": "/models/tiny",
            "renderer": "auto",
            "historyPolicy": "sampled",
            "maxModelLen": 4096,
        },
        "engine": {"endpoints": ["http://10.0.0.5:8000"], "kind": "vllm"},
        "gateway": {"replicas": 1, "beside": "Preferred", "journal": {"sqlite": {"storage": "1Gi"}}},
        "tasks": {
            "inline": [{"uid": "q1", "prompt": "buy 7 kiwi", "data": {"verb": "buy", "item": "kiwi", "n": 7}}]
        },
        "groupSize": 4,
        "parallelism": 8,
        "sampling": {"temperature": 1.0, "maxTokens": 512, "override": True},
        "limits": {"turns": 20, "totalTokens": 32768, "sessionSeconds": 900, "startSeconds": 300},
        "agent": {
            "backend": "Pod",
            "template": {"spec": {"containers": [CONTAINER]}},
            "taskDelivery": "Env",
            "completion": "Exit",
        },
        "reward": {"source": "verifier", "verifier": {"container": {"image": "judge:1"}}, "discount": 1.0},
        "group": {"quorum": 4, "stragglerSeconds": 120, "retry": {"infra": 3}},
        "staleness": {"maxVersionsBehind": 1, "batchSize": 64},
        "output": {"lease": {}},
        "trainer": {"heartbeatSeconds": 300},
        "suspend": False,
        "activeDeadlineSeconds": 86400,
        "ttlSecondsAfterFinished": 3600,
    },
}
"""Every field of docs/reference/rolloutjob.md."""

GONE = object()
"""As a value: remove the field."""


def spoilt(*changes: tuple[str, Any]) -> Manifest:
    """GOOD with changes, each (path with dots and [index], value)."""
    manifest = copy.deepcopy(GOOD)
    for path, value in changes:
        put(manifest, path, value)
    return manifest


def put(manifest: Manifest, path: str, value: Any) -> None:
    """Set, or remove, what `path` names; objects in between are made."""
    *parents, last = path.replace("[", ".[").split(".")
    at: Any = manifest
    for name in parents:
        at = at[int(name[1:-1])] if name.startswith("[") else at.setdefault(name, {})
    key: Any = int(last[1:-1]) if last.startswith("[") else last
    if value is GONE:
        del at[key]
    else:
        at[key] = value
