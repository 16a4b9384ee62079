"""Serves an aiohttp handler of chat completions here, and says where: what the small servers of the bench share."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web
from aiohttp.typedefs import Handler

PATH = "/v1/chat/completions"


async def serve(port: int, chat: Handler) -> None:
    """For ever. Port 0: any; it is printed as {"listening": origin}."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.post(PATH, chat), web.get("/healthz", healthz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    print(json.dumps({"listening": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.Event().wait()
