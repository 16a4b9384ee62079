"""The least that owns tokens: chat completions over an engine's token requests, whose ids are those it sampled.

What a turn must cost whoever keeps ids: read the request, find the conversation, encode what is new, ask the engine,
read ids and logprobs, make text and calls of them, have them on disk, answer. One template is known by heart, messages
are taken as they come, nothing is proved, checked, limited or measured. aiohttp, msgspec, tokenizers, SQLite.

    python -m tests.bench.minimal_owner --engine http://127.0.0.1:9000 --model-dir DIR --journal FILE
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import queue
import re
import sqlite3
import threading
from array import array
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from tokenizers import Tokenizer

from tests.bench import listening

CALL = re.compile(r"\n?<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class Asked(msgspec.Struct):
    """A request."""

    messages: list[dict[str, Any]]
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    max_tokens: int = 1024
    temperature: float = 1.0


class Entry(msgspec.Struct, gc=False):
    """Of one token."""

    logprob: float


class Logprobs(msgspec.Struct):
    """Of an answer."""

    content: list[Entry]


class Sampled(msgspec.Struct):
    """A choice of the engine."""

    token_ids: list[int]
    logprobs: Logprobs
    finish_reason: str


class Answer(msgspec.Struct):
    """Of the engine."""

    choices: list[Sampled]


ASKED, ANSWER = msgspec.json.Decoder(Asked), msgspec.json.Decoder(Answer)
ENCODE = msgspec.json.encode


def key_of(before: bytes, messages: list[dict[str, Any]]) -> bytes:
    """Of a conversation, from that of its beginning."""
    for message in messages:
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        said = ENCODE((message["role"], message.get("content"), calls))
        before = hashlib.blake2b(before + said, digest_size=16).digest()
    return before


class Journal:
    """A thread that commits whatever waits, with one fsync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[tuple[tuple[Any, ...], asyncio.Future[None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    async def commit(self, *row: Any) -> None:
        """Returns when the row is on disk."""
        told: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((row, told))
        await told

    def _run(self) -> None:
        database = sqlite3.connect(self._path, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, parent, context, ids, logprobs, reply)")
        while True:
            jobs = [self._jobs.get()]
            while not self._jobs.empty():
                jobs.append(self._jobs.get())
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO turns (parent, context, ids, logprobs, reply) VALUES (?, ?, ?, ?, ?)",
                [row for row, _ in jobs],
            )
            database.execute("COMMIT")
            self._loop.call_soon_threadsafe(_tell, [told for _, told in jobs])


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for told in waiting:
        if not told.done():
            told.set_result(None)


class Owner:
    """Conversations by the key of all that was said in them."""

    def __init__(self, engine: str, model: Path, journal: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.end = self.tokenizer.token_to_id("<|im_end|>")
        self.known: dict[bytes, array[int]] = {}
        self.journal = Journal(journal)
        self.engine = engine + "/inference/v1/generate"
        self.http = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))
        self.count = 0

    async def chat(self, request: web.Request) -> web.Response:
        """One turn."""
        asked = ASKED.decode(await request.read())
        messages, root = asked.messages, hashlib.blake2b(asked.tools, digest_size=16).digest()
        last = max((at for at, said in enumerate(messages) if said["role"] == "assistant"), default=-1)
        parent = key_of(root, messages[: last + 1]) if last >= 0 else b""
        path = self.known.get(parent)
        if path is None:
            parent, path = b"", array("i")
            text = opening(messages, bytes(asked.tools))
            key = key_of(root, messages)
        else:
            text = "\n" + written(messages[last + 1 :])
            key = key_of(parent, messages[last + 1 :])
        fresh = array("i", self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        prompt = path + fresh
        body = ENCODE(
            {
                "token_ids": prompt.tolist(),
                "sampling_params": {
                    "max_tokens": asked.max_tokens,
                    "temperature": asked.temperature,
                    "logprobs": 0,
                    "stop_token_ids": [self.end],
                },
                "stream": False,
            }
        )
        async with self.http.post(
            self.engine, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            sampled = ANSWER.decode(await answer.read()).choices[0]
        ids = array("i", sampled.token_ids)
        logprobs = array("f", [entry.logprob for entry in sampled.logprobs.content])
        self.count += 1
        reply = self.reply(ids)
        row = parent, fresh.tobytes(), ids.tobytes(), logprobs.tobytes(), ENCODE(reply)
        await self.journal.commit(*row)
        self.known[key_of(key, [reply])] = prompt + ids
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt) + len(ids),
        }
        choice = {
            "index": 0,
            "message": reply,
            "finish_reason": "tool_calls" if "tool_calls" in reply else "stop",
        }
        whole = {"id": f"c-{self.count}", "object": "chat.completion", "created": 1, "model": "bench"}
        return web.Response(
            body=ENCODE({**whole, "choices": [choice], "usage": usage}), content_type="application/json"
        )

    def reply(self, ids: array[int]) -> dict[str, Any]:
        """The message of sampled ids."""
        text = self.tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False)
        calls = [msgspec.json.decode(found) for found in CALL.findall(text)]
        reply: dict[str, Any] = {"role": "assistant", "content": CALL.sub("", text)}
        if calls:
            reply["tool_calls"] = [
                {
                    "id": f"call_{self.count}_{at}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": ENCODE(call["arguments"]).decode()},
                }
                for at, call in enumerate(calls)
            ]
        return reply


def opening(messages: list[dict[str, Any]], tools: bytes) -> str:
    """A first prompt, about as long as the template's."""
    return f"<|im_start|>system\n{messages[0]['content']}\n\n{tools.decode()}<|im_end|>\n" + written(
        messages[1:]
    )


def written(messages: list[dict[str, Any]]) -> str:
    """What is new, and the beginning of the answer."""
    out = []
    for message in messages:
        role, said = message["role"], message["content"]
        if role == "tool":
            role, said = "user", f"<tool_response>\n{said}\n</tool_response>"
        out.append(f"<|im_start|>{role}\n{said}<|im_end|>\n")
    return "".join(out) + "<|im_start|>assistant\n"


async def serve(port: int, engine: str, model: Path, journal: Path) -> None:
    await listening.serve(port, Owner(engine, model, journal).chat)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.engine, args.model_dir, args.journal))


if __name__ == "__main__":
    main()
