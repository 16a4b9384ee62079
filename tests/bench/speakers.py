"""One conversation in each protocol: the body of each turn, and what a client keeps of the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson

from tests.bench import load
from tests.bench.load import heard

TOOLS: list[dict[str, Any]] = load.TOOLS
MODEL = {"model": "bench", "temperature": 1.0}
MOST = 1024
"""Tokens of an answer, at most; it has 256."""


def events_of(raw: bytes) -> list[Any]:
    """The JSON of each event."""
    return [orjson.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]


class Speaker(ABC):
    """A client that sends its whole history, unless it says otherwise."""

    path = ""
    forks = False
    """Each turn is a root of its own."""

    def __init__(self, system: str, prompt: str, *, stream: bool) -> None:
        self.system, self.stream = system, stream
        self.history: list[Any] = [{"role": "user", "content": prompt}]

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Of the next turn's request."""

    @abstractmethod
    def take(self, raw: bytes, result: str) -> None:
        """The answer, and what its tool said."""

    def request(self) -> bytes:
        """The body as bytes."""
        return orjson.dumps({**MODEL, **self.body(), **({"stream": True} if self.stream else {})})


class Chat(Speaker):
    """Chat completions."""

    path = "/v1/chat/completions"

    def body(self) -> dict[str, Any]:
        said = [{"role": "system", "content": self.system}, *self.history]
        more = {"stream_options": {"include_usage": True}} if self.stream else {}
        return {"messages": said, "tools": TOOLS, "max_tokens": MOST, **more}

    def take(self, raw: bytes, result: str) -> None:
        said, _ = heard(raw, stream=self.stream)
        self.history.append(said)
        self.history += [
            {"role": "tool", "tool_call_id": call["id"], "content": result} for call in said["tool_calls"]
        ]


class Responses(Speaker):
    """Responses, as Codex speaks them: all items each time, and nothing to be kept."""

    path = "/v1/responses"
    more: dict[str, Any] = {"store": False}  # noqa: RUF012 - never changed

    def body(self) -> dict[str, Any]:
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        head = {"instructions": self.system, "tools": tools, "max_output_tokens": MOST}
        return {**head, "input": self.history, **self.more}

    def answer(self, raw: bytes) -> Any:
        return events_of(raw)[-1]["response"] if self.stream else orjson.loads(raw)

    def results(self, answer: Any, result: str) -> list[Any]:
        called = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": call, "output": result} for call in called]

    def take(self, raw: bytes, result: str) -> None:
        answer = self.answer(raw)
        self.history += [*answer["output"], *self.results(answer, result)]


class KeptResponses(Responses):
    """Responses that go on from the one before: only what is new is sent, and all is kept."""

    def take(self, raw: bytes, result: str) -> None:
        answer = self.answer(raw)
        self.history = self.results(answer, result)
        self.more = {"previous_response_id": answer["id"]}

    def __init__(self, system: str, prompt: str, *, stream: bool) -> None:
        super().__init__(system, prompt, stream=stream)
        self.more = {}


class Messages(Speaker):
    """Anthropic's Messages."""

    path = "/v1/messages"

    def body(self) -> dict[str, Any]:
        tools = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "input_schema": tool["function"]["parameters"],
            }
            for tool in TOOLS
        ]
        return {"system": self.system, "messages": self.history, "tools": tools, "max_tokens": MOST}

    def take(self, raw: bytes, result: str) -> None:
        blocks = _blocks(events_of(raw)) if self.stream else orjson.loads(raw)["content"]
        self.history.append({"role": "assistant", "content": blocks})
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": name, "content": result} for name in called]
        self.history.append({"role": "user", "content": results})


def _blocks(events: list[Any]) -> list[Any]:
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                blocks[-1]["input"] = orjson.loads(delta["partial_json"])
    return blocks


class Completions(Speaker):
    """Completions of a text that the client writes itself, without the token that ends a turn."""

    path = "/v1/completions"
    forks = True

    def __init__(self, system: str, prompt: str, *, stream: bool) -> None:
        super().__init__(system, prompt, stream=stream)
        self.text = f"{system}\n\nUser: {prompt}\nAssistant:"

    def body(self) -> dict[str, Any]:
        return {"prompt": self.text, "max_tokens": MOST}

    def take(self, raw: bytes, result: str) -> None:
        told = events_of(raw) if self.stream else [orjson.loads(raw)]
        said = "".join(choice["text"] for one in told for choice in one["choices"])
        self.text += f"{said}\nUser: {result}\nAssistant:"


class Generate(Speaker):
    """vLLM's token requests: ids in, ids out."""

    path = "/inference/v1/generate"

    def __init__(self, system: str, prompt: str, *, stream: bool) -> None:
        super().__init__(system, prompt, stream=stream)
        text = (system + prompt).encode()
        self.ids = [500 + (byte * 131 + at) % 20_000 for at, byte in enumerate(text[: len(text) // 3])]

    def body(self) -> dict[str, Any]:
        return {"token_ids": self.ids, "sampling_params": {"max_tokens": MOST, "logprobs": 1}}

    def take(self, raw: bytes, result: str) -> None:
        told = events_of(raw) if self.stream else [orjson.loads(raw)]
        said = [token for one in told for choice in one["choices"] for token in choice["token_ids"]]
        self.ids += [*said, *[500 + byte for byte in result.encode()[:70]]]


SPEAKERS: dict[str, type[Speaker]] = {
    "chat": Chat,
    "responses": Responses,
    "responses, kept": KeptResponses,
    "messages": Messages,
    "completions": Completions,
    "generate": Generate,
}
