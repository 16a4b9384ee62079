"""The adapter of OpenAI's responses: reads requests, writes answers, streams and errors. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandgate.contract.errors import SandgateError
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.protocols import responses_in, responses_out
from sandgate.gateway.protocols.base import NOTHING, Choice, Context, History, Stream, Usage
from sandgate.gateway.protocols.openai_errors import error_json
from sandgate.gateway.protocols.responses_stream import ResponseStream

_FIELDS = {"messages": "input", "reasoning_effort": "reasoning.effort"}
"""Of what is found wrong behind `decode`, in chat's words."""


class OpenAIResponses:
    """OpenAI's responses as an `Adapter`."""

    name = "openai_responses"

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Decodes a request, with what it refers to. Headers have no meaning in this dialect."""
        del headers
        return responses_in.decode(body, history)

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """A `response`."""
        return responses_out.reply(context, choices, usage)

    def stream(self, context: Context) -> Stream:
        """`response.created` to `response.completed`."""
        return ResponseStream(context)

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """OpenAI's error object."""
        del request
        return error_json(error, _FIELDS)
