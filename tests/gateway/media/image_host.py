"""A host of images on loopback that a test says what to answer; it notes who asked for what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.gateway.media.seeing import encoded, picture

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ImageHost:
    """`answers`: path -> bytes, or what answers itself; every other path is a 404."""

    origin: str = ""
    answers: dict[str, bytes | Answer] = field(default_factory=dict)
    asked: list[web.Request] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    @property
    def paths(self) -> list[str]:
        return [request.raw_path for request in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        answer = self.answers.get(request.path)
        if answer is None:
            return web.Response(status=404)
        if isinstance(answer, bytes):
            return web.Response(
                body=answer, content_type="text/html"
            )  # what it says of itself does not count
        return await answer(request)


@asynccontextmanager
async def image_host() -> AsyncIterator[ImageHost]:
    made = ImageHost(
        answers={f"/{color}.png": encoded(picture(color)) for color in ("red", "green", "white")}
    )
    server = web.Application()
    server.router.add_route("*", "/{any:.*}", made.handle)
    runner = web.AppRunner(server, shutdown_timeout=0.0, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.origin = site.name if ":0" not in site.name else f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
