"""A pytest plugin: the clients that the tests of an SDK ask for, whose server is a gateway.

The SDKs' own conftest.py have the same fixtures beside some that need packages which these tests do not. On the way a
request becomes one for a gateway (`ours`), as SANDGATE_SUITE says: JSON, made by tests/gateway/test_sdk_suites.py.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from pytest_asyncio import is_async_test

URL, KEY = (os.environ[name] for name in ("TEST_API_BASE_URL", "SANDGATE_KEY"))
SUITE: Any = json.loads(os.environ["SANDGATE_SUITE"])
SDK = importlib.import_module(SUITE["sdk"])
RESPONSE = re.compile(r"/v1/responses/(?!input_tokens|compact)[^/?]+")
MODEL = re.compile(r"/v1/models/[^/?]+")


def ours(request: httpx2.Request) -> httpx2.Request:
    """The same: of the model that is served and a response that is kept, without what only the SDK's own server has."""
    url = MODEL.sub(f"/v1/models/{SUITE['model']}", str(request.url))
    url = RESPONSE.sub(lambda _: f"/v1/responses/{_kept()}", url)
    url = str(httpx2.URL(url).copy_with(params=_without(request, dict(request.url.params))))
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return httpx2.Request(
        request.method, url, headers=headers, content=_body(request), extensions=request.extensions
    )


def _body(request: httpx2.Request) -> bytes | None:
    if not request.content:
        return None
    given = [more for end, more in SUITE["given"].items() if request.url.path.endswith(end)]
    body = _without(request, json.loads(request.content)) | {"model": SUITE["model"]}
    return json.dumps(functools.reduce(dict.__or__, given, body)).encode()


def _without(request: httpx2.Request, fields: dict[str, Any]) -> dict[str, Any]:
    names = {
        name for end, more in SUITE["without"].items() if request.url.path.endswith(end) for name in more
    }
    return {name: value for name, value in fields.items() if name not in names}


def _kept() -> str:
    """Make a response, as each test has an id of OpenAI's."""
    body = {"model": SUITE["model"], "input": "hello"}
    answer = httpx2.post(f"{URL}/responses", json=body, headers={"authorization": f"Bearer {KEY}"})
    return str(answer.json()["id"])


class Whole(httpx2.HTTPTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return super().handle_request(ours(request))


class Asynchronous(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await super().handle_async_request(ours(request))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without those that are left out; all in one event loop, as the SDK's conftest.py has it."""
    for pattern in SUITE["left_out"]:
        chosen = [item for item in items if not re.search(pattern, item.nodeid)]
        if len(chosen) == len(items):
            raise pytest.UsageError(f"nothing to leave out: {pattern}")
        items[:] = chosen
    for item in items:
        if is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    strict: bool = getattr(request, "param", True)
    with getattr(SDK, SUITE["clients"][0])(
        base_url=URL,
        api_key=KEY,
        _strict_response_validation=strict,
        http_client=httpx2.Client(transport=Whole()),
        max_retries=0,
    ) as made:
        yield made


@pytest.fixture(scope="session")
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    param: Any = getattr(request, "param", True)
    async with getattr(SDK, SUITE["clients"][1])(
        base_url=URL,
        api_key=KEY,
        _strict_response_validation=param if isinstance(param, bool) else True,
        http_client=httpx2.AsyncClient(transport=Asynchronous()),
        max_retries=0,
    ) as made:
        yield made
