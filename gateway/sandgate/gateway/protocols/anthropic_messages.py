"""The adapter of Anthropic's messages: reads requests, writes answers, streams and errors. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandgate.contract.errors import SandgateError
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.protocols import anthropic_in, anthropic_out
from sandgate.gateway.protocols.anthropic_errors import error_json
from sandgate.gateway.protocols.base import NOTHING, Choice, Context, History, Stream, Usage


class AnthropicMessages:
    """Anthropic's messages as an `Adapter`."""

    name = "anthropic_messages"

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Decodes a request. `anthropic-version` and `anthropic-beta` are taken whatever they say."""
        del headers, history
        return anthropic_in.decode(body)

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """A `message`."""
        return anthropic_out.reply(context, choices, usage)

    def stream(self, context: Context) -> Stream:
        """`message_start` to `message_stop`."""
        return anthropic_out.MessageStream(context)

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """Anthropic's error object."""
        return error_json(error, request)
