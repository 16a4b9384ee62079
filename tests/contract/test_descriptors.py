"""The limit of file descriptors: what a process was given stays known, whoever raises it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SET = "resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, 900))"
CASES = {
    "as it is": ([], 200),
    "raised here": (["descriptors.raise_to(400)"], 200),
    "raised here again": (["descriptors.raise_to(400)", "descriptors.raise_to(600)"], 200),
    "raised by another library": ([SET.format(soft=700)], 200),
    "raised by another library after here": (["descriptors.raise_to(400)", SET.format(soft=700)], 200),
    "raised by another library before here": ([SET.format(soft=700), "descriptors.raise_to(800)"], 200),
    "lowered by another library and raised here": ([SET.format(soft=100), "descriptors.raise_to(500)"], 200),
}


@pytest.mark.parametrize(("steps", "given"), CASES.values(), ids=CASES)
def test_the_limit_that_a_process_was_given_is_known_whoever_raised_it(steps: list[str], given: int) -> None:
    code = ["import resource", SET.format(soft=200), "from sandgate.contract import descriptors", *steps]
    code.append("print(descriptors.given())")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True, timeout=30
    )
    assert int(done.stdout) == given
