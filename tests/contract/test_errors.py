"""The exception tree."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from sandgate.contract import errors
from sandgate.contract.errors import (
    InvalidBody,
    LimitReached,
    NewerRecord,
    Overloaded,
    PromptTooLong,
    SandgateError,
)

SPECIAL: dict[type[SandgateError], SandgateError] = {
    InvalidBody: InvalidBody("no", field="messages[0]"),
    LimitReached: LimitReached("turns", used=3, limit=2),
    NewerRecord: NewerRecord(seen=9, known=8),
    Overloaded: Overloaded("later", retry_after=2.0),
    PromptTooLong: PromptTooLong(tokens=9, limit=8),
}


def kinds(kind: type[SandgateError] = SandgateError) -> Iterator[type[SandgateError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from kinds(below)


@pytest.mark.parametrize("kind", dict.fromkeys(kinds()), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[SandgateError]) -> None:
    error = SPECIAL[kind] if kind in SPECIAL else kind("no")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.__dict__) == (kind, str(error), error.__dict__)
        assert again.retry_after == error.retry_after
