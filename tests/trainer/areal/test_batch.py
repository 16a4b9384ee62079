"""`sandgate export --format areal` makes what AReaL itself makes of the rows' own dicts."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.areal.env import ROOT, Areal


def test_an_exported_batch_is_padded_as_areal_pads(areal: Areal, tmp_path: Path) -> None:
    rooms = (ROOT / "contract", ROOT / "trainer", ROOT)
    code, out, errors = areal.run(Path(__file__).parent / "check_batch.py", tmp_path / "rows.pt", path=rooms)
    assert (code, out.splitlines()[-1:]) == (0, ["equal"]), errors[-2000:]
