"""An engine that costs next to nothing: fixed answers, precomputed bytes, one hand-written HTTP parser.

It speaks `/inference/v1/generate` (to the gateway) and `/v1/chat/completions` (to the relay and to the load generator
directly), JSON and SSE: 256 tokens with logprobs, streamed in 64 steps. `--delay-ms`: time of one whole generation.

    python -m tests.bench.stub_engine --port 9000 --model-dir DIR --delay-ms 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import orjson
import uvloop

from sandgate.gateway.engine.logprobs import ASKS, BELIEVED

TOKENS = 256
"""Of one answer: what a coding agent's turn has, in the median."""
PER_STEP = 4
"""Tokens of one event: 64 events, and three at the end."""
WINDOW = 262_144

REASONING = (
    "The failing test points at the parser: it reads the header before the length is known, so a short read leaves "
    "the buffer half filled. I will look at the function that fills it, then at its callers, and change the loop so "
    "that it asks for the rest. "
)
CALL = (
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/parser/header.py", "start": 40, "end": 120}}'
    "\n</tool_call>"
)


def reply_ids(folder: Path) -> list[int]:
    """256 ids: text, one tool call, the end of the turn."""
    from sandgate.gateway.tokens.load import read_checkpoint

    checkpoint = read_checkpoint(folder)
    encode = checkpoint.vocab.encode
    end = [*encode("\n" + CALL), checkpoint.eos_ids[0]]
    text = list(encode(REASONING * 8))
    return text[: TOKENS - len(end)] + end


def entries(ids: list[int]) -> list[dict[str, object]]:
    """In vLLM 0.32's shape, top_logprobs too."""
    out: list[dict[str, object]] = []
    for at, token in enumerate(ids):
        logprob = -((token * 31 + at * 17) % 1_000) / 337
        one = {"token_id": token, "logprob": logprob, "rank": 1}
        out.append({**one, "top_logprobs": [one]})
    return out


class Answers:
    """Bytes of every answer."""

    def __init__(self, ids: list[int]) -> None:
        usage = {"prompt_tokens": 5000, "completion_tokens": TOKENS, "total_tokens": 5000 + TOKENS}
        spans = [{"version": "step-3", "start": 0, "end": TOKENS}]
        base = {"index": 0, "routed_experts": None, "sampling_mask": None, "stop_reason": None}
        whole = {**base, "finish_reason": "stop", "token_ids": ids, "weight_versions": spans}
        generate = {"request_id": "generate-tokens-x", "model": "bench", "created": 1, "usage": usage}
        generate |= {"prompt_logprobs": None, "prompt_token_ids": None, "output_mode": "tokens"}
        self.generate = body({**generate, "choices": [{**whole, "logprobs": {"content": entries(ids)}}]})
        message = {"role": "assistant", "content": REASONING * 4, "tool_calls": []}
        chat = {
            "id": "chatcmpl-x",
            "object": "chat.completion",
            "created": 1,
            "model": "bench",
            "usage": usage,
        }
        told = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": ids}
        self.chat = body({**chat, "choices": [{**told, "logprobs": {"content": entries(ids)}}]})
        self.generate_events, self.chat_events = [], []
        for at in range(0, TOKENS, PER_STEP):
            some, last = ids[at : at + PER_STEP], at + PER_STEP >= TOKENS
            ends = {"finish_reason": "stop" if last else None, "weight_versions": spans if last else None}
            step = {**base, **ends, "token_ids": some, "logprobs": {"content": entries(some)}}
            self.generate_events.append(event({"request_id": "x", "usage": None, "choices": [step]}))
            delta = {
                "index": 0,
                "delta": {"content": "some more words "},
                "finish_reason": ends["finish_reason"],
            }
            self.chat_events.append(event({"id": "x", "object": "chat.completion.chunk", "choices": [delta]}))
        for events in (self.generate_events, self.chat_events):
            events += [event({"request_id": "x", "usage": usage, "choices": []}), chunk(b"data: [DONE]\n\n")]


def body(value: object) -> bytes:
    packed = orjson.dumps(value)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(packed)}\r\n\r\n"
    return head.encode() + packed


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: object) -> bytes:
    return chunk(b"data: " + orjson.dumps(value) + b"\n\n")


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SSE_END = b"0\r\n\r\n"
SHORT = {
    "/health": body({}),
    "/version": body({"version": "0.32.0"}),
    "/v1/models": body({"data": [{"id": "bench", "max_model_len": WINDOW}]}),
    "/inference/v1/abort_requests": body({}),
}


UNMEASURED = body({"error": {"message": BELIEVED, "code": 400}}).replace(b"200 OK", b"400 Bad Request", 1)
"""To a gateway that asks in which mode its logprobs are: they are of no distribution."""


class Stub(asyncio.Protocol):
    """One connection. Requests come one at a time, with Content-Length."""

    def __init__(self, answers: Answers, delay_s: float) -> None:
        self._answers, self._delay_s = answers, delay_s
        self._pieces: list[bytes] = []
        self._have, self._need = 0, -1
        self._path, self._stream, self._measured = "", False, False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:

        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._have += len(data)
        if self._need < 0:
            data = b"".join(self._pieces)
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = data[:end].lower()
            self._path = head.split(b" ", 2)[1].decode().partition("?")[0]
            at = head.find(b"content-length:")
            length = int(head[at + 15 : (head + b"\r").find(b"\r", at)]) if at >= 0 else 0
            self._need = end + 4 + length
            self._measured = ASKS.encode() in head
        if self._have >= self._need:
            # `stream` and what follows stand at the end of the gateway's body, anywhere in a client's.
            whole = b"".join(self._pieces)
            self._stream = b'"stream":true' in whole[-400:] or b'"stream":true' in whole[:2_000]
            self._pieces, self._have, self._need = [], 0, -1
            self._answer()

    def _answer(self) -> None:
        if self._measured:
            self._write(UNMEASURED)
            return
        if self._path in SHORT:
            self._write(SHORT[self._path])
            return
        chat = self._path.endswith("/chat/completions")
        if self._stream:
            self._write(SSE_HEAD)
            events = self._answers.chat_events if chat else self._answers.generate_events
            self._play(iter(events), asyncio.get_running_loop().time())
        else:
            whole = self._answers.chat if chat else self._answers.generate
            if self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self._write, whole)
            else:
                self._write(whole)

    def _play(self, events: Iterator[bytes], due: float) -> None:
        """The next event; each is due a step's time after the one before, however late that one was."""
        for data in events:
            self._write(data)
            if self._delay_s:
                due += self._delay_s / (TOKENS / PER_STEP)
                asyncio.get_running_loop().call_at(due, self._play, events, due)
                return
        self._write(SSE_END)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int, folder: Path, delay_s: float) -> None:
    answers = Answers(reply_ids(folder))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(answers, delay_s), "127.0.0.1", port, backlog=1024)
    print(json.dumps({"listening": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.model_dir, args.delay_ms / 1000))


if __name__ == "__main__":
    main()
