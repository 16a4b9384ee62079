"""Data URLs as clients spell them."""

from __future__ import annotations

import base64

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.media.sources import data_of, image_url

RAW = bytes(range(256))
SPELT = {
    "in one line": base64.b64encode(RAW).decode(),
    "in lines, as Python's encodebytes makes them": base64.encodebytes(RAW).decode(),
    "in lines, as MIME has them": base64.encodebytes(RAW).decode().replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", SPELT.values(), ids=SPELT)
def test_base64_in_lines_is_the_same_data(text: str) -> None:
    assert data_of(image_url(f"data:image/png;base64,{text}", "image_url")) == RAW


def test_other_characters_are_no_base64() -> None:
    with pytest.raises(InvalidBody, match="no base64"):
        data_of("data:image/png;base64,AA\nA*")
