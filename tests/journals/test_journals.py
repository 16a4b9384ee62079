"""Journals that earlier versions wrote are read for ever, and mean what they meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.trajectory import from_json
from sandgate.gateway.journal.records import SCHEMA
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.journal.store import StoreStatus
from tests.journals.told import lines, told

HERE = Path(__file__).parent
JOURNALS = sorted(HERE.glob("v*/*.sqlite"))


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_golden_journal_still_says_the_same(journal: Path, tmp_path: Path) -> None:
    shutil.copy(journal, tmp_path / "j")
    expected = journal.with_suffix(".jsonl").read_text("utf-8")
    async with await SqliteStore.open(tmp_path / "j") as store:
        records = sum(line.startswith('{"seq"') for line in expected.splitlines())
        assert store.status() == StoreStatus(healthy=True, records=records)
        found = [json.loads(line) for line in lines(told(store)).splitlines()]
    wanted = [json.loads(line) for line in expected.splitlines()]
    then = [as_known_then(as_version_1(new, old), old) for new, old in zip(found, wanted, strict=True)]
    assert then == wanted


def as_version_1(said: Any, then: Any) -> Any:
    """Rows as records of version 1 had them, in which journals before v7 were told: with the last turn's sampling."""
    if (row := said.get("trajectory")) and then["trajectory"]["schema_version"] == 1:
        last = from_json(row).settings(-1)
        said = {"trajectory": row | last._asdict() | {"schema_version": 1}}
    return said


def as_known_then(new: Any, old: Any) -> Any:
    """Without fields that were added since: they have defaults, and change nothing that was said."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {name: as_known_then(value, old[name]) for name, value in new.items() if name in old}
    return new


def test_every_schema_has_golden_journals() -> None:
    assert {journal.parent.name for journal in JOURNALS} == {f"v{schema}" for schema in range(1, SCHEMA + 1)}
