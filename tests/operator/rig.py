"""Local runs against real gateway processes, and a scripted engine that speaks vLLM's wire in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.trajectory import Ids, Trajectory
from sandgate.gateway.engine.scripted.script import Gate, Line, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.tokens.load import read_checkpoint
from sandgate.operator.local.job import Event, JobResult, run_local
from sandgate.sandbox import procfs
from sandgate.trainer.export.parquet import merge_parquet, read_parquet, samples_in_parquet, write_parquet

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "examples" / "shop" / "model"
WITHIN_S = 90.0
"""A run that does not end in this time will not; on an idle machine they take about five seconds."""

T = TypeVar("T")


def job(*tasks: str, **spec: Any) -> RolloutJob:
    """A task per text; its uid is the first word. `spec`: fields that replace these."""
    inline = [{"uid": text.split()[0], "prompt": text, "data": {"n": 7}} for text in tasks]
    container = {"command": ["python", "agent.py"]}
    fields = {
        "model": {"name": "shop", "tokenizer": str(MODEL), "maxModelLen": 4096},
        "engine": {"endpoints": ["http://127.0.0.1:9"]},
        "tasks": {"inline": inline},
        "agent": {"backend": "Process", "template": {"spec": {"containers": [container]}}},
        "reward": {"source": "agent"},
        **spec,
    }
    return decode(
        RolloutJob,
        {
            "apiVersion": "sandgate.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": "shop"},
            "spec": fields,
        },
    )


class Script:
    """Answers by what is said: rules (word -> reply), else "done"."""

    def __init__(self) -> None:
        self.rules: dict[str, Line] = {}
        self.vocab = read_checkpoint(MODEL).vocab
        self.asked: list[str] = []

    def __call__(self, prompt: Ids, number: int) -> Line:
        text = self.vocab.decode(list(prompt))
        self.asked.append(text)
        return next((line for word, line in self.rules.items() if word in text), Reply("done"))

    def gate(self, word: str) -> Gate:
        """Prompts that hold `word` wait after the first token, until the gate is opened."""
        gate = Gate()
        self.rules[word] = Reply("receipt 44", gate=gate, gate_at=1)
        return gate


@dataclass
class Rig:
    """One folder and one engine; runs may follow each other."""

    folder: Path
    script: Script
    url: str
    events: list[Event] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    on_event: Callable[[Event], None] = lambda event: None

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    def of(self, kind: type[T]) -> list[T]:
        """Events of a kind."""
        return [one for one in self.events if isinstance(one, kind)]

    async def run(self, wanted: RolloutJob, *, url: str | None = "", retry_failed: bool = False) -> JobResult:
        """Events are of this run only."""
        self.events.clear()
        async with asyncio.timeout(WITHIN_S):
            return await run_local(
                wanted,
                manifest_dir=HERE,
                out=self.out,
                write_groups=write_parquet,
                merge=merge_parquet,
                samples_in=samples_in_parquet,
                engine_url=self.url if url == "" else url,
                progress=self.tell,
                stop=self.stop,
                abort=self.abort,
                retry_failed=retry_failed,
            )

    def rows(self) -> list[Trajectory]:
        """Of the merged file."""
        return list(read_parquet(self.out / "trajectories.parquet"))

    def processes(self) -> list[int]:
        """Agents and verifiers of this job that run, anywhere on this machine."""
        sessions = [path.stem.removesuffix(".verifier") for path in (self.out / "logs").glob("shop-*.log")]
        return procfs.marked(f"SANDGATE_SESSION_ID={one}".encode() for one in sessions)


@asynccontextmanager
async def rig(folder: Path) -> AsyncIterator[Rig]:
    """An engine that listens."""
    script = Script()
    eos = read_checkpoint(MODEL).eos_ids
    player = Player(
        script,
        encode=script.vocab.encode,
        decode=script.vocab.decode,
        eos_ids=eos,
        max_model_len=4096,
        vocab_size=script.vocab.size,
    )
    async with ScriptedServer(player, model="shop") as server:
        yield Rig(folder, script, server.url)
