"""What a data set's columns become as a task's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client.task_values import json_of

CASES: dict[str, tuple[Any, str]] = {
    "a missing number, as pandas says it": (float("nan"), "column level holds nan"),
    "one in a list of numpy's": (np.array([1.0, np.inf]), "column level holds inf"),
    "an object": (object(), "column level holds a object"),
}


@pytest.mark.parametrize(("value", "words"), CASES.values(), ids=CASES)
def test_what_no_task_can_carry_is_refused_with_its_prompt_and_column(value: Any, words: str) -> None:
    with pytest.raises(InvalidBody, match=f"prompt q7: {words}") as caught:
        json_of({"deep": value}, "q7", "level")
    assert caught.value.field == "level"


def test_numpys_numbers_are_pythons() -> None:
    assert json_of(np.array([1, 2]), "q7", "level") == [1, 2]
