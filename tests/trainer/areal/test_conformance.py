"""ArealSink conforms, by AReaL's own padding."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.trainer import conformance
from tests.trainer.areal.env import ROOT, Areal


def test_the_suite_holds_in_areals_environment_and_fails_for_its_mutants(
    areal: Areal, tmp_path: Path
) -> None:
    file = tmp_path / "groups"
    file.write_bytes(pickle.dumps(conformance.groups()))
    rooms = (ROOT / "contract", ROOT / "trainer", ROOT)
    code, out, errors = areal.run(Path(__file__).parent / "check_conformance.py", file, path=rooms)
    assert (code, out.splitlines()[-1:]) == (0, ["conforms"]), errors[-2000:]
