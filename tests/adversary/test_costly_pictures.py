"""A picture takes the time of its pixels and bytes, whatever its file is made of; others are not kept waiting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.engine.scripted.engine import ScriptedEngine
from sandgate.gateway.media.pictures import PIXELS_MAX, SCANS_MAX, read
from sandgate.gateway.media.sources import BYTES_MAX
from tests.gateway.media import seeing
from tests.gateway.media.seeing import RULE, data_url, shown, url
from tests.gateway.media.test_pictures import of_scans, with_chunks, with_segments
from tests.support.gateway import gateway

SIDE = int(PIXELS_MAX**0.5)
MOST_S = 10.0
"""Of one core, for one picture; the first took 248."""

COSTLY: dict[str, Callable[[], bytes]] = {
    "a JPEG of 8 MiB and 33 megapixels that is all scans": lambda: of_scans(BYTES_MAX // 60, SIDE),
    "one of a scan too many": lambda: of_scans(SCANS_MAX, SIDE),
    "one of as many as are taken": lambda: of_scans(SCANS_MAX - 12, SIDE),
    "a PNG of 8 MiB that is all chunks": lambda: with_chunks(BYTES_MAX // 12 - 100),
    "a JPEG of 8 MiB that is all segments": lambda: with_segments(b"\xff\xed\0\2", BYTES_MAX // 4 - 1_000),
    "a JPEG of 8 MiB that is all fill": lambda: with_segments(b"\xff", BYTES_MAX - 10_000),
}


@pytest.mark.parametrize("case", COSTLY)
def test_no_file_takes_a_thread_for_long(case: str) -> None:
    raw = COSTLY[case]()
    assert len(raw) <= BYTES_MAX
    began = time.thread_time()
    with contextlib.suppress(InvalidBody):
        read(raw, RULE)
    assert time.thread_time() - began < MOST_S


async def test_two_costly_pictures_are_named_and_a_third_session_is_answered() -> None:
    codec = seeing.codec()
    engine = ScriptedEngine(
        ["a cat"], encode=seeing.ids, decode=codec.vocab.decode, eos_ids=codec.stop_ids, max_model_len=4_096,
        vocab_size=codec.vocab_size,
    )  # fmt: skip
    async with gateway(engine, model=codec) as g:
        for number in range(2):
            agent = await g.session()
            bomb = data_url(of_scans(10_000 + number, SIDE), "image/jpeg")
            refused = await agent.post(shown("look", url(), bomb))
            assert refused.status_code == 400
            assert "image 2 of the request: it has 100" in refused.json()["error"]["message"]
        assert (await (await g.session()).post(shown("look", url()))).status_code == 200
