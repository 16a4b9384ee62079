"""The adapter of OpenAI's chat completions: reads requests, writes answers, streams and errors. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandgate.contract.errors import SandgateError
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.protocols import openai_chat_in, openai_chat_out
from sandgate.gateway.protocols.base import NOTHING, Choice, Context, History, Stream, Usage
from sandgate.gateway.protocols.openai_errors import error_json


class OpenAIChat:
    """OpenAI's chat completions as an `Adapter`."""

    name = "openai_chat"

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Decodes a request. Headers have no meaning in this dialect."""
        del headers, history
        return openai_chat_in.decode(body)

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """A `chat.completion`."""
        return openai_chat_out.reply(context, choices, usage)

    def stream(self, context: Context) -> Stream:
        """`chat.completion.chunk` events."""
        return openai_chat_out.ChatStream(context)

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """OpenAI's error object."""
        del request
        return error_json(error)
