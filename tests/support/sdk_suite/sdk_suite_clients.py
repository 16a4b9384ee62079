"""A pytest plugin: the clients that the tests of Anthropic's SDK ask for, whose server is a gateway.

Its own conftest.py has the same fixtures beside some that need packages which these tests do not. What a request says
of Anthropic's own products is taken out of it on the way: SANDGATE_WITHOUT names the fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient
from pytest_asyncio import is_async_test

URL, KEY, MODEL = (os.environ[name] for name in ("TEST_API_BASE_URL", "SANDGATE_KEY", "SANDGATE_MODEL"))
WITHOUT = os.environ["SANDGATE_WITHOUT"].split()


def ours(request: httpx2.Request) -> httpx2.Request:
    """The same, of the model that is served, without what no server but Anthropic's has."""
    body = json.loads(request.content)
    kept = {name: value for name, value in body.items() if name not in WITHOUT}
    content = json.dumps(kept | {"model": MODEL}).encode()
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return httpx2.Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


class Whole(httpx2.HTTPTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return super().handle_request(ours(request))


class Asynchronous(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await super().handle_async_request(ours(request))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one event loop, as the SDK's conftest.py has it."""
    for item in items:
        if is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Iterator[Anthropic]:
    strict: bool = getattr(request, "param", True)
    http = DefaultHttpxClient(transport=Whole())
    with Anthropic(
        base_url=URL, api_key=KEY, _strict_response_validation=strict, http_client=http, max_retries=0
    ) as made:
        yield made


@pytest.fixture(scope="session")
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[AsyncAnthropic]:
    param: Any = getattr(request, "param", True)
    http = DefaultAsyncHttpxClient(transport=Asynchronous())
    async with AsyncAnthropic(
        base_url=URL,
        api_key=KEY,
        _strict_response_validation=param if isinstance(param, bool) else True,
        http_client=http,
        max_retries=0,
    ) as made:
        yield made
