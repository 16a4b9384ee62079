"""JSON lines carry every finite trajectory to the bit."""

from __future__ import annotations

import json
import math
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import CorruptRecord, InvalidBody, NewerRecord
from sandgate.contract.trajectory import Trajectory, to_json
from sandgate.trainer.export import jsonl
from tests.trainer.trajectories import exact, trajectories, trajectory


@given(row=trajectories(any_floats=False))
def test_a_line_gives_back_what_went_in(row: Trajectory) -> None:
    line = jsonl.to_line(row)
    assert b"\n" not in line
    assert exact(jsonl.from_line(line)) == exact(row)


@given(row=trajectories(any_floats=False))
def test_a_line_says_what_the_control_api_says(row: Trajectory) -> None:
    found = json.loads(jsonl.to_line(row))
    assert found == json.loads(json.dumps(to_json(row)))


@given(bits=st.integers(0, 2**32 - 1))
@example(bits=0x15AE43FD)
def test_any_finite_float32_survives(bits: int) -> None:
    """Also those whose shortest text names another float32 when read as a double (7.038531e-26 is one)."""
    value = array("f", struct.pack("=I", bits))
    row = trajectory(response_ids=array("i", [1]), response_logprobs=value, loss_mask=array("b", [1]),
                     versions=array("i", [0]), turn_ends=(1, 1))  # fmt: skip
    if math.isfinite(value[0]):
        assert jsonl.from_line(jsonl.to_line(row)).response_logprobs.tobytes() == value.tobytes()
    else:
        with pytest.raises(InvalidBody, match="response_logprobs"):
            jsonl.to_line(row)


def test_a_file_gives_back_its_rows_in_order(tmp_path: Path) -> None:
    rows = [trajectory(number) for number in range(5)]
    assert jsonl.write_jsonl(tmp_path / "t.jsonl", rows) == 5
    assert [exact(row) for row in jsonl.read_jsonl(tmp_path / "t.jsonl")] == [exact(row) for row in rows]


LINES: dict[str, tuple[bytes, type[Exception], str]] = {
    "half a line": (b'{"job":"x"', CorruptRecord, "t.jsonl:2: line is not JSON"),
    "not an object": (b"[]", CorruptRecord, "t.jsonl:2: line is not a JSON object"),
    "a field missing": (b'{"job":"x"}', CorruptRecord, "t.jsonl:2: not a trajectory record"),
    "NaN": (b'{"reward":NaN}', CorruptRecord, "NaN is not JSON"),
    "base64 that is none": (b'{"multimodal":"*"}', CorruptRecord, "multimodal is not base64"),
    "a newer row": (b'{"schema_version":3}', NewerRecord, "schema 3"),
    "deeper than any record": (b"[" * 100_000, CorruptRecord, "t.jsonl:2: line is not JSON"),
    "not UTF-8": (b'{"job":"\xff"}', CorruptRecord, "t.jsonl:2: line is not JSON"),
}


@pytest.mark.parametrize(("line", "error", "text"), LINES.values(), ids=LINES)
def test_a_bad_line_is_refused_by_number(
    tmp_path: Path, line: bytes, error: type[Exception], text: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(jsonl.to_line(trajectory()) + b"\n" + line + b"\n")
    rows = jsonl.read_jsonl(path)
    assert exact(next(rows)) == exact(trajectory())
    with pytest.raises(error, match=text):
        next(rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_logprobs", array("f", [float("nan")] * 5)), ("reward", float("inf")), ("prompt_ids", [1])],
)
def test_what_json_cannot_carry_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidBody) as caught:
        jsonl.write_jsonl(tmp_path / "t.jsonl", [trajectory(**{field: value})])
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []
