"""docs/trainers/arrow.md and ray.md do what they show: their programs, in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "trainers"
PROGRAM = re.compile(r"```python\n(?P<code>.*?)```\n+```text\n(?P<shown>.*?)```", re.DOTALL)
PROGRAM_S = 140.0
"""A few seconds each; many where others are at work on the machine."""


@pytest.mark.parametrize("page", ["arrow", "ray"])
def test_the_programs_print_what_the_page_shows(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = (PAGES / f"{page}.md").read_text("utf-8")
    programs = list(PROGRAM.finditer(text))
    assert len(programs) == text.count("```python") == 2
    env = dict(os.environ)
    if page == "ray":  # `ray.init()` finds the cluster that the tests have
        request.getfixturevalue("ray_cluster")
        import ray  # type: ignore[import-not-found]

        env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    for number, program in enumerate(programs):
        (tmp_path / f"program{number}.py").write_text(program["code"])
        said = subprocess.run(
            [sys.executable, f"program{number}.py"],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr[-3000:]
        assert said.stdout.endswith(program["shown"]), said.stdout
        assert program["shown"]
