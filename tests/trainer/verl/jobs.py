"""Servers as verl's client calls them, and a job over them, for the tests of RolloutJobs inside verl."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from sandgate.trainer import tinymodel

AGENT = """
import json, os, sys, time, urllib.request
prompt = os.environ["SANDGATE_PROMPT"]
if prompt.startswith("crash") and os.environ["SANDGATE_SESSION_ID"].split("-")[-2] == "0":
    sys.exit(3)
if prompt == "hang":
    time.sleep(600)
if prompt == "silent":
    sys.exit(0)
def ask(messages):
    body = {"model": os.environ["SANDGATE_MODEL"], "messages": messages}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
messages = [{"role": "user", "content": prompt}]
for turn in range(1 if prompt == "once" else 2):
    said = ask(messages)["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
seen = json.dumps({name: value for name, value in os.environ.items() if name.startswith("SANDGATE")})
open(os.environ["SANDGATE_TERMINATION_LOG"], "w").write(json.dumps({"reward_info": {"seen": seen, "said": said}}))
"""
"""Two turns, or one, and what it could see of the task. The prompt says how it ends."""

VERIFIER = """
import json, os
task = json.load(open(os.environ["SANDGATE_TASK_FILE"]))
result = json.load(open(os.environ["SANDGATE_RESULT_FILE"]))
told = (result.get("message") or {}).get("reward_info") or {}
truth = task["data"]["reward_model"]["ground_truth"]
info = {"leaked": truth in told.get("seen", "") or truth in str(task["data"]["public"])}
open(os.environ["SANDGATE_TERMINATION_LOG"], "w").write(
    json.dumps({"reward": float(truth in told.get("said", "")), "reward_info": info})
)
"""

MANIFEST = """\
apiVersion: sandgate.dev/v1alpha1
kind: RolloutJob
metadata: {name: ask}
spec:
  model: {name: tiny, tokenizer: model}
  engine: {endpoints: ["http://127.0.0.1:9"]}
  tasks: {queue: {}}
  parallelism: 4
  limits: {sessionSeconds: 60}
  agent:
    backend: Process
    template: {spec: {containers: [{name: agent, image: none, command: [python, agent.py]}]}}
  reward:
    source: verifier
    verifier: {container: {name: verifier, image: none, command: [python, verifier.py]}}
  group: {retry: {infra: 1}}
"""


def write_job(folder: Path, **changes: str) -> Path:
    """The manifest, its agent, its verifier and its model."""
    tinymodel.write_tiny_model(folder / "model")
    (folder / "agent.py").write_text(AGENT)
    (folder / "verifier.py").write_text(VERIFIER)
    text = MANIFEST.replace("[python, ", f"[{sys.executable}, {folder}/")
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def processes(text: str) -> list[int]:
    """Whose command line has it, the newest first. (Process ids wrap round: the highest may be an old one, Ray's.)"""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().decode("utf-8", "replace")
            started = int((path / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        if text in line:
            found.append((started, int(path.name)))
    return [pid for _, pid in sorted(found, reverse=True)]


class Server:
    """An inference server: says `yes <version>` under the version that it was told; may be held, and may cut."""

    def __init__(self, reply: str = "yes") -> None:
        self.version, self.reply = 0, reply
        self.asked: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def set_global_steps(self, version: int) -> None:
        """As verl's weight update ends."""
        self.version = version

    async def hold(self, held: bool) -> None:
        """Generations wait from now on, or go on."""
        (self.open.clear if held else self.open.set)()

    async def seen(self) -> list[dict[str, Any]]:
        """Sampling parameters of all generations."""
        return self.asked

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """verl's TokenOutput."""
        from verl.workers.rollout.replica import TokenOutput  # type: ignore[import-not-found]

        self.asked.append(dict(sampling_params))
        await self.open.wait()
        ids = [*tinymodel.encode(f"{self.reply} {self.version}"), tinymodel.END]
        extra = {"global_steps": self.version}
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=extra
        )
