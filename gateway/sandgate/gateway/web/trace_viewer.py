"""The trace viewer at /ui: a page that draws a session's tree in a browser, from the control API.

The page holds no data and wants no key; what it shows, it reads with the key that a person types. It runs where
strings of agents and models are shown, so nothing but its own two files may run or load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
FILES = {
    "/ui": ("viewer.html", "text/html"),
    "/ui/viewer.js": ("viewer.js", "text/javascript"),
    "/ui/viewer.css": ("viewer.css", "text/css"),
}
"""Addresses in the page are relative, so that it works behind a path of a proxy."""


def router() -> APIRouter:
    """Its three files, read once."""
    made = APIRouter(include_in_schema=False)
    folder = files("sandgate.gateway.web") / "viewer"
    for path, (name, kind) in FILES.items():
        made.add_api_route(path, _file((folder / name).read_bytes(), kind))
    return made


def _file(body: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(body, headers=HEADERS, media_type=kind)

    return serve
