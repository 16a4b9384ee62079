"""Describes a program's end (exit code, signal, last line of a traceback) for records, statuses and people. (pure)

What a program wrote goes into records, journals and terminals: only one line of it does, bounded, printable, keyless.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sandgate.contract.keys import PREFIX

LINE_CHARS_MAX: Final = 512
"""Of the line that is kept."""
OUTPUT_BYTES_MAX: Final = 4096
"""Of a program's output that is looked at, from its end: what Kubernetes keeps of a termination message. A traceback's
head may lie before it; its last frame and its exception do not."""
MESSAGE_LINES: Final = 2
"""Further lines of an exception's message that are not indented (httpx's links, pydantic's field names). More of them
is what the program went on to say: it had caught the exception."""
RT_FIRST, RT_LAST = 34, 64
"""Real-time signals, as glibc numbers them."""

_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG"
    " XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
).split()
"""Linux's signals from 1, on x86 and ARM alike. (`signal` would tell those of the machine that looks.)"""
_FRAME = re.compile(r'\s+File ".*", line \d+')
_GROUP = re.compile(r"^\s*[|+] ")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
"""Colours, cursor movements and titles, as terminals take them."""
_KEY = re.compile(re.escape(PREFIX) + r"[\w.~-]+")


class LastWords(NamedTuple):
    """What a program said last."""

    line: str = ""
    """Its last line; of a traceback the exception."""
    traceback: bool = False
    """It ended with a Python traceback."""


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; a number that Linux has no name for as `signal 99`."""
    if 1 <= number <= len(_NAMES):
        return f"SIG{_NAMES[number - 1]}"
    if RT_FIRST <= number <= RT_LAST:
        return "SIGRTMIN" + (f"+{number - RT_FIRST}" if number > RT_FIRST else "")
    return f"signal {number}"


def last_words(output: str) -> LastWords:
    """Of the end of what a program wrote."""
    text = _ESCAPES.sub("", output[-OUTPUT_BYTES_MAX:])
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        return LastWords()
    raised = _raised(lines)
    return LastWords(one_line(lines[-1])) if raised is None else LastWords(one_line(raised), traceback=True)


def _raised(lines: list[str]) -> str | None:
    """The exception's line of the traceback that they end with."""
    if group := any("Exception Group Traceback" in line for line in lines):
        lines = [_GROUP.sub("", line) for line in lines if not line.strip().startswith("+-")]
    frame = next((at for at in reversed(range(len(lines))) if _FRAME.match(lines[at])), None)
    if frame is None:
        return None
    flush = [line for line in lines[frame:] if not line[0].isspace()]
    return flush[0] if flush and (group or len(flush) <= 1 + MESSAGE_LINES) else None


def one_line(text: str, most: int = LINE_CHARS_MAX) -> str:
    """`text` fit to be kept: no terminal's escapes, no key of a session, nothing that cannot be printed or encoded, at
    most `most` characters."""
    text = _KEY.sub("[key]", _ESCAPES.sub("", text))
    text = "".join(char if char.isprintable() else " " for char in text).strip()
    return text if len(text) <= most else f"{text[: most - 1]}…"
