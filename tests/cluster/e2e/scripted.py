"""Jobs whose tokens do not matter: a scripted engine in a pod, and agents that are a few lines of Python."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.e2e.world import World, image, shop_job, tokenizer_files
from tests.cluster.harness.images import PYTHON

Json = dict[str, Any]

SCRIPT = "scripted"
"""ConfigMap with the engine's replies."""
TALK = """
import json, os, time, urllib.error, urllib.request

def say(text):
    "A conversation's first turn."
    return ask([{"role": "user", "content": text}])

def ask(messages, patience_s=240):
    "One turn. As clients of services that restart do, it asks again until it is answered."
    body = json.dumps({"model": os.environ["SANDGATE_MODEL"], "messages": messages})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    give_up = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=60) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except OSError as error:
            if getattr(error, "code", 503) not in (429, 502, 503) or time.monotonic() > give_up:
                raise
            time.sleep(0.5)

def leave(**result):
    with open("/dev/termination-log", "w") as log:
        json.dump(result, log)
"""
"""What agents begin with."""
RESTRICTED = {"runAsUser": 1000}
"""The test world's image says root; the rest of `restricted` is laid over by the operator."""


def python(name: str, program: str) -> Json:
    """A container that runs it, in an image that has nothing else."""
    return {
        "name": name,
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "workingDir": "/",
        "command": ["python3", "-c", program],
        "securityContext": RESTRICTED,
    }


def engine(token_ms: float = 0.0) -> Json:
    """`spec.engine`: the scripted engine of the gateway's image."""
    command = [
        "python",
        "-m",
        "sandgate.gateway.engine.scripted.server",
        "--host=0.0.0.0",
        "--port=8000",
    ]
    command += ["--model-dir=/models/model", "--script=/script/replies.jsonl", "--served-model-name=shop"]
    mounts = {"model": "/models/model", "script": "/script"}
    maps = {"model": "shop-tokenizer", "script": SCRIPT}
    return {
        "kind": "vllm",
        "logprobsMode": "processed_logprobs",
        "managed": {
            "image": image("gateway"),
            "replicas": 1,
            "gpus": 0,
            "command": [*command, f"--token-ms={token_ms}"],
            "template": {
                "spec": {
                    "terminationGracePeriodSeconds": 1,  # it plays, and has nothing to finish
                    "containers": [
                        {
                            "name": "engine",
                            "imagePullPolicy": "Never",
                            "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
                            "volumeMounts": [{"name": n, "mountPath": at} for n, at in mounts.items()],
                        }
                    ],
                    "volumes": [{"name": n, "configMap": {"name": of}} for n, of in maps.items()],
                }
            },
        },
    }


def job(name: str, program: str, *, tasks: int = 1, samples: int = 1, **spec: Any) -> Json:
    """A RolloutJob whose agents run `program` after TALK. `spec`: further blocks, over these."""
    blocks: Json = {
        "engine": engine(),
        "tasks": {"inline": [{"uid": f"q{number}", "prompt": f"task {number}"} for number in range(tasks)]},
        "groupSize": samples,
        "parallelism": tasks * samples,
        "limits": {"turns": 400, "sessionSeconds": 300, "startSeconds": 120},
        "agent": {"template": {"spec": {"containers": [python("agent", TALK + program)]}}},
        "reward": {"source": "agent"},
    }
    return shop_job(name, **(blocks | spec))


def prepare(world: World, namespace: str, replies: tuple[str, ...] = ("receipt 42",)) -> None:
    """What engines and gateways of these jobs mount."""
    lines = "".join(f"{json.dumps(reply)}\n" for reply in replies)
    meta = {"name": SCRIPT, "namespace": namespace}
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"replies.jsonl": lines}}
    model = tokenizer_files()
    model["metadata"]["namespace"] = namespace
    world.cluster.apply(model, script)


def submit(world: World, namespace: str, *bodies: Json) -> None:
    """kubectl apply."""
    for body in bodies:
        body["metadata"]["namespace"] = namespace
    world.cluster.apply(*bodies)
