"""Jobs that need nothing but Sandgate's own images: a scripted engine, and agents of a few lines."""

from __future__ import annotations

import json
from typing import Any

from tests.anycluster.kubectl import Json
from tests.cluster.e2e.scripted import TALK
from tests.cluster.e2e.world import tokenizer_files

REPLY = "receipt 42"
"""What the engine samples, each turn."""
SCRIPT, TOKENIZER = "scripted", "shop-tokenizer"
TWO_TURNS = """
task = os.environ["SANDGATE_PROMPT"]
said = [{"role": "user", "content": task}]
answer = ask(said)
answer = ask(said + [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}])
leave(message=answer)
"""
VERIFY = """
import json, os
result = json.load(open(os.environ["SANDGATE_RESULT_FILE"]))
with open("/dev/termination-log", "w") as log:
    json.dump({"reward": 1.0 if result["message"]["message"] == "receipt 42" else 0.0}, log)
"""
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}}


def container(name: str, image: str, program: str) -> Json:
    """Python of the gateway's image."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": "/",
        "command": ["python", "-c", program],
    }


def engine(image: str) -> Json:
    """A Deployment, as a job's own vLLM is."""
    command = ["python", "-m", "sandgate.gateway.engine.scripted.server", "--host=0.0.0.0", "--port=8000"]
    command += ["--model-dir=/models/model", "--script=/script/replies.jsonl", "--served-model-name=shop"]
    mounts = {TOKENIZER: "/models/model", SCRIPT: "/script"}
    pod = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "engine",
                "imagePullPolicy": "IfNotPresent",
                "resources": SMALL,
                "volumeMounts": [{"name": name, "mountPath": at} for name, at in mounts.items()],
            }
        ],
        "volumes": [{"name": name, "configMap": {"name": name}} for name in mounts],
    }
    managed = {"image": image, "replicas": 1, "gpus": 0, "command": command, "template": {"spec": pod}}
    return {"kind": "vllm", "logprobsMode": "processed_logprobs", "managed": managed}


def files() -> tuple[Json, Json]:
    """ConfigMaps that these jobs mount."""
    meta = {"name": SCRIPT}
    data = {"replies.jsonl": json.dumps(REPLY) + "\n"}
    return tokenizer_files(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def job(name: str, image: str, *, tasks: int, samples: int, **spec: Any) -> Json:
    """Agents of two turns and a verifier. `spec`: further blocks, over these."""
    model = {"name": TOKENIZER, "mountPath": "/models/model", "readOnly": True}
    gateway = {
        "containers": [{"name": "gateway", "volumeMounts": [model]}],
        "volumes": [{"name": TOKENIZER, "configMap": {"name": TOKENIZER}}],
    }
    blocks: Json = {
        "model": {"name": "shop", "tokenizer": "model", "maxModelLen": 2048},
        "engine": engine(image),
        "gateway": {"template": {"spec": gateway}},
        "tasks": {"inline": [{"uid": f"q{number}", "prompt": f"task {number}"} for number in range(tasks)]},
        "groupSize": samples,
        "parallelism": 8,
        "limits": {"turns": 10, "sessionSeconds": 120, "startSeconds": 60},
        "agent": {"template": {"spec": {"containers": [container("agent", image, TALK + TWO_TURNS)]}}},
        "reward": {"source": "verifier", "verifier": {"container": container("verifier", image, VERIFY)}},
    }
    meta = {"name": name}
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": meta,
        "spec": blocks | spec,
    }
