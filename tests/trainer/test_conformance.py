"""The conformance suite itself: it holds for a sink of plain lists, and for no broken one. TRL's needs no package."""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandgate.trainer.areal.batches import ArealSink
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import CreditedRow, prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import CreditRules, Truncated
from sandgate.trainer.credit.sink import RolloutSink, SinkGroup, checked
from sandgate.trainer.openrlhf import OpenRLHFSink
from sandgate.trainer.skyrl import SkyRLSink
from sandgate.trainer.tinker import TinkerSink
from sandgate.trainer.trl import TrlSink
from sandgate.trainer.verl import VerlSink
from tests.trainer import conformance
from tests.trainer.conformance import Reading, Taught


@dataclass
class SampleId:
    instance_id: str
    repetition_id: int


EVERY: list[RolloutSink[Any]] = [
    ArealSink(),
    OpenRLHFSink(),
    SkyRLSink(SampleId),
    TinkerSink(),
    TrlSink(),
    VerlSink(Lengths(8, 64)),
]
"""mypy says that each is one."""


@dataclass
class Plain:
    """The smallest sink: `prepare`, and each row as it is."""

    truncated: Truncated = "score"

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> list[CreditedRow]:
        found: list[CreditedRow] = []
        for group in groups:
            made = prepare(checked(group), scale=False, truncated=self.truncated)
            found += made.taught
            if counters is not None:
                counters.add(len(made.taught), made.left_out)
        return found


def read_plain(batch: Sequence[CreditedRow]) -> list[Taught]:
    found = []
    for one in batch:
        row, before = one.trajectory, len(one.trajectory.prompt_ids)
        found.append(
            Taught(
                ids=[*row.prompt_ids, *row.response_ids],
                mask=[0] * before + list(row.loss_mask),
                logprobs=[0.0] * before + list(row.response_logprobs),
                versions=[-1] * before + list(row.versions),
                score=one.advantage,
            )
        )
    return found


def read_trl(batch: dict[str, list[Any]]) -> list[Taught]:
    columns = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "sandgate_versions", "env_reward")
    return [
        Taught(
            ids=prompt + ids,
            mask=[0] * len(prompt) + mask,
            logprobs=[0.0] * len(prompt) + logprobs,
            versions=[-1] * len(prompt) + versions,
            score=reward,
        )
        for prompt, ids, mask, logprobs, versions, reward in zip(
            *(batch[name] for name in columns), strict=True
        )
    ]


PLAIN = Reading(Plain, read_plain, score="advantage")
TRL = Reading(lambda truncated: TrlSink(rules=CreditRules(truncated=truncated)), read_trl, rows="path")


@pytest.mark.parametrize("reading", [PLAIN, TRL], ids=["plain", "trl"])
def test_the_suite_holds(reading: Reading) -> None:
    conformance.check(reading)


@pytest.mark.parametrize("name", conformance.mutants(TRL))
def test_the_suite_fails_for_a_broken_sink(name: str) -> None:
    reading = TRL if name in conformance.mutants(TRL) else PLAIN

    def read(batch: Any) -> list[Taught]:
        return conformance.mutants(reading)[name](reading.read(batch))

    with pytest.raises(AssertionError, match="seed"):
        conformance.check(Reading(reading.sink, read, reading.rows, reading.score))


def test_a_sink_that_drops_a_row_of_a_fork_is_found() -> None:
    def read(batch: Sequence[CreditedRow]) -> list[Taught]:
        return read_plain([one for one in batch if one.trajectory.trajectory_id == 0])

    with pytest.raises(AssertionError, match="seed"):
        conformance.check(Reading(Plain, read, score="advantage"))


def test_a_sink_that_trains_crashes_is_found() -> None:
    class Scores(Plain):
        def batch(
            self, groups: Sequence[SinkGroup], counters: RowCounters | None = None
        ) -> list[CreditedRow]:
            super().batch(groups, counters)
            return list(prepare(groups[0].rows, scale=False).rows) if groups[0].rows else []

    with pytest.raises(AssertionError, match=r"are trained, .* count"):
        conformance.check(Reading(Scores, read_plain, score="advantage"))


PAGE = Path(__file__).parents[2] / "docs" / "trainers" / "sinks.md"


def test_the_adapter_of_the_page_conforms_and_prints_what_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = PAGE.read_text("utf-8")
    (program,), (shown,) = (
        re.findall(rf"```{language}\n(.*?)```", said, re.DOTALL) for language in ("python", "text")
    )
    (tmp_path / "program.py").write_text(program)
    mine = runpy.run_path(str(tmp_path / "program.py"))["Mine"]
    assert capsys.readouterr().out == shown

    def read(batch: Any) -> list[Taught]:
        names = ("ids", "mask", "logprobs", "versions", "advantage")
        return [Taught(*(row[name] for name in names)) for row in batch]

    reading = Reading(lambda truncated: mine(truncated=truncated), read, score="advantage", scale=True)
    conformance.check_mutants(reading, places=False)
