"""A listing of a gateway that ran for weeks: all pages come, and an operator keeps little of what is retired."""

from __future__ import annotations

import json

import httpx
import pytest

from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.listing import all_sessions
from sandgate.operator.observed.remotes import METADATA


class Pages(httpx.AsyncBaseTransport):
    """So many, of these rows each."""

    def __init__(self, pages: int, rows: list[dict[str, object]]) -> None:
        self.pages, self.given = pages, 0
        self.body = json.dumps(rows)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.given += 1
        after = json.dumps(None if self.given >= self.pages else f"s-{self.given:010}")
        return httpx.Response(
            200,
            headers={"content-type": "application/json"},
            text=f'{{"sessions": {self.body}, "next": {after}}}',
        )


ROW: dict[str, object] = {"session_id": "s", "job": "shop", "uid": "u", "state": "finalized", "retired": True}
LONG = {
    "more than 256 MiB in all": Pages(300, [ROW | {"failure_detail": "x" * 1_000_000}]),
    "more than 2,000 pages": Pages(2_500, [ROW]),
}


@pytest.mark.parametrize("pages", LONG.values(), ids=LONG)
async def test_a_long_listing_comes_whole(pages: Pages) -> None:
    async with GatewayClient("http://g", "k", transport=pages, deadline_s=0.0) as client:
        found = 0
        async for _ in client.sessions(job="shop"):
            found += 1
    assert found == pages.pages


async def test_of_what_is_retired_an_operator_keeps_what_is_alike_once() -> None:
    rows = [ROW | {"session_id": f"s{n}", "forks": {"new_root": n}, "metadata": {"who": n}} for n in range(3)]
    rows += [ROW | {"session_id": "r", "metadata": {**METADATA, "who": "me"}}]
    rows += [ROW | {"session_id": "t", "retired": False, "metadata": {"who": "you"}}]
    async with GatewayClient("http://g", "k", transport=Pages(1, rows), deadline_s=0.0) as client:
        *retired, remote, kept = await all_sessions(client, "shop")
    assert len({id(one.metadata) for one in retired} | {id(one.forks) for one in retired}) == 1
    assert [one.session_id for one in retired] == ["s0", "s1", "s2"]
    assert (remote.metadata, kept.metadata) == (dict(METADATA), {"who": "you"})
