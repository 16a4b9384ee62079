"""Output is kept without secrets, however it is cut into pieces, and within its bound."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.sandbox.logs import HIDDEN, TAIL_BYTES, Log, Redactor

KEY = "sk-sg-abcabcabd"


def through(redactor: Redactor, text: bytes, cuts: list[int]) -> bytes:
    """Fed piece by piece."""
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    out, at = b"", 0
    for end in ends:
        out += redactor.feed(text[at:end])
        at = end
    return out + redactor.end()


@given(
    parts=st.lists(st.sampled_from([KEY, KEY[:7], "abc", "x", "sk-", "\n", KEY[3:]]), max_size=12),
    cuts=st.lists(st.integers(0, 100), max_size=12),
)
@example(parts=[KEY, KEY], cuts=[1, 16])
def test_a_key_is_hidden_wherever_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert through(Redactor([KEY, ""]), text.encode(), cuts) == text.encode().replace(KEY.encode(), HIDDEN)


def test_text_that_cannot_become_a_key_is_not_held_back() -> None:
    redactor = Redactor([KEY])
    assert redactor.feed(b"hello") == b"hello"
    assert redactor.feed(b"hello sk-sg") == b"hello "
    assert redactor.feed(b"!") == b"sk-sg!"


async def logged(path: Path, *chunks: bytes, limit: int = 1000) -> Log:
    log = Log(path, [KEY], limit)
    read, write = os.pipe()
    log.follow(read)
    for chunk in chunks:
        os.write(write, chunk)
        await asyncio.sleep(0)
    os.close(write)
    await log.drain(5.0)
    return log


async def test_a_log_is_bounded_and_says_so(tmp_path: Path) -> None:
    log = await logged(tmp_path / "a" / "x.log", b"a" * 900, b"b" * 900, b"the end", limit=1000)
    text = (tmp_path / "a" / "x.log").read_bytes()
    assert text == b"a" * 900 + b"b" * 100 + b"\n[log cut at 1000 bytes]\n"
    assert log.tail.endswith("the end")
    assert len(log.tail) <= TAIL_BYTES


async def test_a_second_run_writes_after_the_first(tmp_path: Path) -> None:
    await logged(tmp_path / "x.log", b"one\n")
    log = await logged(tmp_path / "x.log", f"two {KEY}\n".encode())
    assert (tmp_path / "x.log").read_bytes() == b"one\ntwo [key]\n"
    assert log.tail == "two [key]"


async def test_a_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = await logged(tmp_path / "x.log", b"x" * 700 + b"\nTraceback\nValueError: no\n")
    assert log.tail == "Traceback\nValueError: no"


async def test_a_writer_that_stays_is_not_waited_for(tmp_path: Path) -> None:
    log = Log(tmp_path / "x.log", [], 1000)
    read, write = os.pipe()
    log.follow(read)
    try:
        os.write(write, b"still here")
        await log.drain(0.05)
    finally:
        os.close(write)
    assert (tmp_path / "x.log").read_bytes() == b"still here"


async def test_on_a_full_disk_the_log_ends_and_its_reader_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(Path("/dev/full"), [KEY], 10_000)
    read, write = os.pipe()
    log.follow(read)
    for _ in range(3):
        os.write(write, b"word " * 1_000)
        await asyncio.sleep(0)
    os.write(write, b"\nthe last line\n")
    os.close(write)
    await log.drain(10.0)
    assert log.tail == "the last line"
    assert caplog.messages == ["/dev/full ends here: No space left on device"]
