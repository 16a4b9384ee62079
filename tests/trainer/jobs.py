"""A job of the smallest kind: an agent that asks once, in front of a scripted engine, run by the real command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.gateway.engine.scripted.engine import Player, Script
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer import tinymodel
from sandgate.trainer.testing import tiny_player

AGENT = """
import json, os, sys, urllib.request
body = {"model": os.environ["SANDGATE_MODEL"], "messages": [{"role": "user", "content": os.environ["SANDGATE_PROMPT"]}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
sys.exit(0 if answer["choices"][0]["message"]["content"] == "yes" else 1)
"""

MANIFEST = """\
apiVersion: sandgate.dev/v1alpha1
kind: RolloutJob
metadata: {name: ask}
spec:
  model: {name: tiny, tokenizer: model}
  engine: {endpoints: ["http://127.0.0.1:9"]}
  tasks: {inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}
  groupSize: 2
  parallelism: 2
  agent:
    backend: Process
    template: {spec: {containers: [{name: agent, image: none, command: [PYTHON, agent.py]}]}}
  reward: {source: exitCode}
"""


@dataclass(slots=True)
class Ended:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class Lab:
    """A folder with a job, and the engine it will talk to."""

    folder: Path
    player: Player
    url: str
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, *words: str, under: Sequence[str] = ()) -> asyncio.subprocess.Process:
        """`sandgate run job.yaml --out out --engine-url URL ...`. `under`: a command that becomes it."""
        script = Path(sys.executable).with_name("sandgate")
        words = ("run", "job.yaml", "--out", "out", "--engine-url", self.url, *words)
        pipe = asyncio.subprocess.PIPE
        made = await asyncio.create_subprocess_exec(
            *under, script, *words, cwd=self.folder, stdout=pipe, stderr=pipe
        )
        self.started.append(made)
        return made

    async def run(self, *words: str) -> Ended:
        """The same, until it ends."""
        return await ended(await self.start(*words))


async def ended(process: asyncio.subprocess.Process) -> Ended:
    """Waits for it."""
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, stdout.decode(), stderr.decode())


@contextlib.asynccontextmanager
async def lab(folder: Path, script: Script) -> AsyncIterator[Lab]:
    """The job, its agent, the tiny model and the engine."""
    tinymodel.write_tiny_model(folder / "model")
    (folder / "agent.py").write_text(AGENT)
    (folder / "job.yaml").write_text(MANIFEST.replace("PYTHON", os.fspath(sys.executable)))
    player = tiny_player(script)
    async with served(folder, player, "tiny") as made:
        yield made


@contextlib.asynccontextmanager
async def served(folder: Path, player: Player, model: str) -> AsyncIterator[Lab]:
    """The job that is in `folder`, and an engine that plays."""
    async with ScriptedServer(player, model=model) as server:
        made = Lab(folder, player, server.url)
        try:
            yield made
        finally:
            for process in made.started:
                if process.returncode is None:  # a test failed; what the command started ends with it
                    process.kill()
                    await process.wait()
