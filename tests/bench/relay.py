"""The floor: an aiohttp server that passes bytes to the engine and back, and looks at nothing.

python -m tests.bench.relay --engine http://127.0.0.1:9000
"""

from __future__ import annotations

import argparse

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from tests.bench import listening


async def serve(port: int, engine: str) -> None:
    session = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with session.post(engine + listening.PATH, data=body, headers=headers) as answer:
            kind = answer.headers["Content-Type"]
            if "event-stream" not in kind:
                return web.Response(body=await answer.read(), content_type="application/json")
            out = web.StreamResponse(headers={"Content-Type": kind})
            await out.prepare(request)
            async for data in answer.content.iter_any():
                await out.write(data)
            await out.write_eof()
            return out

    await listening.serve(port, relay)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine", required=True)
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.engine))


if __name__ == "__main__":
    main()
