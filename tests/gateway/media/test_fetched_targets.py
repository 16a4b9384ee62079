"""What is asked of a host of images is the address as it was checked, letter for letter."""

from __future__ import annotations

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.media.allowed_hosts import address_of, allowed_hosts
from sandgate.gateway.media.fetch import Fetcher
from tests.gateway.media.image_host import image_host

TARGETS = {
    "a signed query": "/a%2Fb.png?X=AK%2F20%2Baws&sig=a%3Db%2Bc%20d&e=%7E1",
    "letters that need no escape": "/x%41y.png",
    "brackets and bars": "/a?x=[1]|2&y='z'",
    "bytes that are no UTF-8": "/%E4.png?k=%ff",
    "plus signs": "/a+b.png?q=1+2",
    "dots": "/a/../b.png",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
async def test_it_is_sent_as_it_was_given(target: str) -> None:
    async with image_host() as host:
        fetcher = Fetcher(allowed_hosts([host.origin]))
        try:
            with pytest.raises(InvalidBody, match="answers 404"):  # there is no such picture
                await fetcher(address_of(f"{host.origin}{target}", "url"), "url")
        finally:
            await fetcher.aclose()
        assert host.paths == [target]
