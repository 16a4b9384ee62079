"""One line of what a program wrote: which one it is, and that it can be kept anywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.exits import LINE_CHARS_MAX, last_words, one_line, signal_name
from sandgate.contract.keys import Key, Scope, mint


@pytest.mark.skipif(sys.platform != "linux", reason="numbers are Linux's")
def test_signals_have_the_names_that_this_system_gives_them() -> None:
    assert {number: signal_name(number) for number in signal.Signals if number < signal.SIGRTMIN} == {
        number: number.name for number in signal.Signals if number < signal.SIGRTMIN
    }


@pytest.mark.parametrize(
    ("number", "name"),
    [(34, "SIGRTMIN"), (64, "SIGRTMIN+30"), (32, "signal 32"), (0, "signal 0"), (99, "signal 99")],
)
def test_other_numbers_are_told_as_they_are(number: int, name: str) -> None:
    assert signal_name(number) == name


LINES = {
    "the last line": ("one\ntwo\n", "two"),
    "empty lines at the end are passed over": ("one\n\n  \n", "one"),
    "lines that are all empty have no last words": ("\n\n", ""),
    "the last state of a progress bar": ("1 %\r50 %\r99 %", "99 %"),
    "colours are left out": ("\x1b[1;31mno disk\x1b[0m\n", "no disk"),
    "titles of terminals are left out": ("\x1b]0;pwned\x07no disk\n", "no disk"),
    "what cannot be printed is a blank": ("no\x00\u202edisk", "no  disk"),
    "half a character is a blank": ("no\ud800disk", "no disk"),
    "other languages stay": ("Datei fehlt: \u00e4\u4e2d\U0001f95d", "Datei fehlt: \u00e4\u4e2d\U0001f95d"),
}


@pytest.mark.parametrize(("output", "line"), LINES.values(), ids=LINES)
def test_the_line_that_is_kept(output: str, line: str) -> None:
    assert last_words(output) == (line, False)


def test_no_key_is_kept() -> None:
    key = mint(b"s" * 32, Key(Scope.AGENT, "shop", "shop-a-0-0", 9.0))
    assert last_words(f"401 for {key}, bye").line == "401 for [key], bye"


@given(output=st.text(max_size=40) | st.text("\x1b[]m;\x07 x\n", max_size=40), times=st.integers(1, 900))
@example(output="\x1b]", times=2_000)
@example(output=" ", times=4_096)
@example(output='  File "', times=500)
def test_whatever_it_wrote_is_one_bounded_line_that_can_be_stored(output: str, times: int) -> None:
    line, _ = last_words(output * times)
    assert len(line) <= LINE_CHARS_MAX
    assert line.isprintable()
    assert line.encode().decode() == line
    assert one_line(line) == line


CRASHES = {
    "an exception": ("1 / 0", "ZeroDivisionError: division by zero"),
    "an exception without a text": ("raise KeyError", "KeyError"),
    "an exception whose text has several lines": ("raise ValueError('a\\nb')", "ValueError: a"),
    "an exception raised from another": (
        "try:\n 1 / 0\nexcept Exception as e:\n raise OSError('no disk') from e",
        "OSError: no disk",
    ),
    "deep down": ("def f(n): return f(n - 1) if n else [][0]\nf(300)", "IndexError: list index out of range"),
    "in the grammar": ("eval('1 +')", "SyntaxError: invalid syntax"),
    "of several tasks": (
        "raise ExceptionGroup('four', [OSError(n) for n in range(4)])",
        "ExceptionGroup: four (4 sub-exceptions)",
    ),
    "in colours": (
        "import sys, traceback\ntry: 1 / 0\nexcept Exception: text = traceback.format_exc()\n"
        "sys.exit(text.replace('File', '\\x1b[35mFile\\x1b[0m').strip())",
        "ZeroDivisionError: division by zero",
    ),
    "after output": ("print('hello', flush=True)\n1 / 0", "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize(("code", "line"), CRASHES.values(), ids=CRASHES)
def test_a_program_that_dies_of_an_exception_ends_with_a_traceback(
    tmp_path: Path, code: str, line: str
) -> None:
    """As this Python writes it, not as we remember it."""
    (tmp_path / "agent.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, "-S", tmp_path / "agent.py"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert last_words(ran.stderr) == (line, True)


WRONG = {
    "sys.exit with words": "import sys; sys.exit('wanted 7 kiwi')",
    "an exception that was caught long before": """
import sys, traceback
try:
    1 / 0
except ArithmeticError:
    traceback.print_exc()
for step in range(3):
    print("step", step, file=sys.stderr)
sys.exit("wanted 7 kiwi")
""",
    "a failed unittest": """
import unittest
class T(unittest.TestCase):
    def test(self): self.assertEqual(1, 2)
unittest.main()
""",
}


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG)
def test_a_program_that_says_it_is_wrong_does_not(tmp_path: Path, code: str) -> None:
    (tmp_path / "agent.py").write_text(code)
    ran = subprocess.run([sys.executable, tmp_path / "agent.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert not last_words(ran.stderr).traceback
