"""A client session that a file's tests leave open is an error of that file (a pytest plugin).

aiohttp tells of one when the collector finds it, which may be an hour later, in another file's test. A session that is
open when the last test of a file is torn down, and was made while the file ran, is told there with where it was made.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 6

_made: weakref.WeakKeyDictionary[aiohttp.ClientSession, str] = weakref.WeakKeyDictionary()
_init = aiohttp.ClientSession.__init__


def _places() -> str:
    """Lines of ours that led here, the innermost first."""
    found: list[str] = []
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        path = frame.f_code.co_filename
        if "site-packages" not in path and not path.startswith((sys.base_prefix, "<")):
            found.append(f"{path.removeprefix(f'{ROOT}/')}:{line}")
    return " < ".join(found[:LINES_MAX])


def _noted(session: aiohttp.ClientSession, *args: Any, **options: Any) -> None:
    _init(session, *args, **options)
    _made[session] = _places()


aiohttp.ClientSession.__init__ = _noted  # type: ignore[method-assign,assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Around all fixtures' ends."""
    yield
    if nextitem is None or nextitem.path != item.path:
        left = [where for session, where in _made.items() if not session.closed]
        _made.clear()
        assert not left, "client sessions were made and never closed:\n" + "\n".join(left)
