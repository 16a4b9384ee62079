"""The examples as jobs of the tests: the real engine behind a recorder, real gateways, real agents."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.trajectory import Trajectory
from sandgate.operator.local.job import Event, JobResult, run_local
from sandgate.trainer.export.parquet import merge_parquet, read_parquet, samples_in_parquet, write_parquet

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SHOP = EXAMPLES / "shop" / "job.yaml"
SANDGATE = Path(sys.executable).with_name("sandgate")
WITHIN_S = 200.0
"""A run that does not end in this time will not; alone on two cores they take 10 to 60 s."""

T = TypeVar("T")


def job(path: Path, **changes: Any) -> RolloutJob:
    """An example's job, with `changes` as `manifest` takes them."""
    return decode(RolloutJob, manifest(path, **changes))


def manifest(
    path: Path,
    *,
    uids: Collection[str] = (),
    before: Sequence[str] = (),
    args: Sequence[str] = (),
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """An example's manifest: some of its tasks, with words before and after its agent's command, and fields of its
    agent's container and of its spec that replace its own."""
    told: dict[str, Any] = yaml.safe_load(path.read_text())
    own = told["spec"]
    if name := own["tasks"].pop("file", None):
        lines = (path.parent / name).read_text("utf-8").splitlines()
        own["tasks"]["inline"] = [json.loads(line) for line in lines]
    own["tasks"]["inline"] = [one for one in own["tasks"]["inline"] if not uids or one["uid"] in uids]
    agent = own["agent"]["template"]["spec"]["containers"][0]
    agent |= container or {}
    agent["command"] = [*before, *agent["command"]]
    agent["args"] = [*agent.get("args", ()), *args]
    for name, value in spec.items():
        own[name] = {**own[name], **value} if isinstance(value, dict) else value
    return told


def written(folder: Path, path: Path, **changes: Any) -> Path:
    """The same as a file in `folder`: for the command line."""
    told = manifest(path, **changes)
    own = told["spec"]
    own["model"]["tokenizer"] = str(path.parent / own["model"]["tokenizer"])
    verifier = own["reward"]["verifier"]["container"]
    for one in (own["agent"]["template"]["spec"]["containers"][0], verifier):
        one["workingDir"] = str((path.parent / one.get("workingDir", ".")).resolve())
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


@dataclass
class Run:
    """One `--out` folder; runs in it may follow each other."""

    out: Path
    engine: str
    base: Path = SHOP.parent
    """What paths of the manifest begin at."""
    events: list[Event] = field(default_factory=list)
    on_event: Callable[[Event], None] = lambda event: None

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    def of(self, kind: type[T]) -> list[T]:
        """Events of a kind."""
        return [one for one in self.events if isinstance(one, kind)]

    async def go(self, wanted: RolloutJob, *, within_s: float = WITHIN_S) -> JobResult:
        """`sandgate run`, without its command line."""
        async with asyncio.timeout(within_s):
            return await run_local(
                wanted,
                manifest_dir=self.base,
                out=self.out,
                write_groups=write_parquet,
                merge=merge_parquet,
                samples_in=samples_in_parquet,
                engine_url=self.engine,
                progress=self._tell,
            )

    def rows(self) -> list[Trajectory]:
        """Of the merged file."""
        return list(read_parquet(self.out / "trajectories.parquet"))


class Command:
    """`sandgate ARGS --json`, running. `async with Command(...) as command`."""

    def __init__(self, *args: str | Path) -> None:
        self._args = [str(SANDGATE), *map(str, args), "--json"]

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(*self._args, stdout=PIPE, cwd=ROOT)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> tuple[int, Any]:
        """Its exit code, and what it printed as JSON; None if it could not."""
        async with asyncio.timeout(WITHIN_S):
            out, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, json.loads(out) if out else None


async def command(*args: str | Path) -> tuple[int, Any]:
    """From its start to its end."""
    async with Command(*args) as started:
        return await started.end()
