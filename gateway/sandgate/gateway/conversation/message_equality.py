"""Equality of messages: which differences do not count (rules N1-N9), as the canonical form and its hash keys. (pure)

A request becomes a chain of keys. The head (system messages, tools) gives the first key. Each *block* (a part of a
user, tool or system message, or a run of assistant messages that were not sampled here) is hashed onto it. The echo of
a committed turn replaces the chain by that turn's own key, so that later rules need not repeat what led to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import (
    Message,
    Part,
    TextPart,
    Tool,
    ToolCall,
    TurnRequest,
    VideoPart,
)

KEY_BYTES = 16
"""Two different conversations of one session meet with probability 2**-64 after 2**32 blocks."""

USER, TOOL, SYSTEM, FOREIGN = b"u", b"t", b"s", b"a"
"""First byte of a block's key: whose words the block has. FOREIGN: words of an assistant that were not sampled here."""

RUN_MAX = 8
"""Limit of consecutive assistant messages that are read as one turn (Responses sends a turn as up to 1 + calls
items)."""

BILLING_HEADER = "x-anthropic-billing-header"
"""Claude Code's first system block, or the first line of it; its `cch=` differs on every request, so it is no part of
what was said (N1)."""

_PACK = msgspec.msgpack.Encoder()
_JSON = msgspec.json.Encoder(order="sorted")
_ANY = msgspec.json.Decoder()
_REPRINTED = re.compile(rb"\d(?:\.\d|[eE])|\d{16}")
"""Finds JSON that may have a number that `as_doubles` changes."""
_DOUBLE_EXACT = 2**53


def _hash(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=KEY_BYTES).digest()


def _block(kind: bytes, value: object) -> bytes:
    return kind + blake2b(_PACK.encode(value), digest_size=KEY_BYTES - 1, person=kind).digest()


def chain(key: bytes, blocks: Sequence[bytes]) -> bytes:
    """The key of the chain after these blocks; `chain(chain(k, a), b) == chain(k, a + b)`."""
    for block in blocks:
        key = blake2b(key + block, digest_size=KEY_BYTES).digest()
    return key


@lru_cache(maxsize=4096)
def turn_key(turn: str) -> bytes:
    """The chain's key after the echo of a committed turn."""
    return blake2b(turn.encode(), digest_size=KEY_BYTES, person=b"turn").digest()


# --- values (N2, N7)


def as_doubles(value: Any) -> Any:
    """A parsed JSON value with every number as JavaScript holds it: a double. Whole ones are printed without a point,
    so that most values need no change."""
    match value:
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) <= _DOUBLE_EXACT else _wide(value)
        case float():
            return int(value) if value.is_integer() and abs(value) <= _DOUBLE_EXACT else value
        case list():
            return [as_doubles(item) for item in value]
        case _:
            return {name: as_doubles(item) for name, item in value.items()}


def _wide(value: int) -> Any:
    try:
        return float(value)
    except OverflowError:
        return {"integer": str(value)}


ARGUMENTS_CACHED_CHARS = 2048
"""Arguments come back with every later turn; long ones (whole files) are not worth the memory."""


def normal_arguments(text: str) -> bytes:
    """N7: the normal form of a call's arguments: parsed JSON, without key order and number format. Text that does not
    parse stays as it is.

    Two texts have the same normal form exactly if they mean the same.
    """
    return _normal_short(text) if len(text) <= ARGUMENTS_CACHED_CHARS else _normal(text)


def _normal(text: str) -> bytes:
    try:
        return b"=" + _JSON.encode(as_doubles(_ANY.decode(text)))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return b"?" + text.encode("utf-8", "surrogatepass")


_normal_short = lru_cache(maxsize=2048)(_normal)


def same_arguments(text: str, other: str) -> bool:
    """Whether two texts are the same arguments by rule N7."""
    return text == other or normal_arguments(text) == normal_arguments(other)


# --- head (N1, N5)


TOOLS_BYTES_MAX, TOOLS_LIST_BYTES_MAX = 2 << 20, 128 << 10
"""Tool lists come from a cache like this one (protocols): the same tuple returns with every turn of an agent."""


_TOOLS_KEYS: ByteCache[int, tuple[tuple[Tool, ...], bytes, int]] = ByteCache(
    TOOLS_BYTES_MAX, TOOLS_LIST_BYTES_MAX
)


def tools_key(tools: tuple[Tool, ...]) -> bytes:
    """The key of names, descriptions and schemas as values; the order of tools counts, that of JSON keys does not."""
    return _tools_seen(tools)[1]


def tools_chars(tools: tuple[Tool, ...]) -> int:
    """About the characters that tools add to a prompt: their length as JSON."""
    return _tools_seen(tools)[2] if tools else 0


def _tools_seen(tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bytes, int]:
    seen = _TOOLS_KEYS.get(id(tools))
    if seen and seen[0] is tools:
        return seen
    # A tool that is not strict is the same whether its client says so or not: OpenAI's SDK must, in Responses. It is
    # shown as it was given.
    raw = _JSON.encode(tuple([replace(tool, strict=tool.strict or None) for tool in tools]))
    size = len(raw)
    if _REPRINTED.search(raw):
        raw = _JSON.encode(as_doubles(_ANY.decode(raw)))
    seen = tools, _hash(raw), size
    _TOOLS_KEYS.put(id(tools), seen, size)
    return seen


NO_TOOLS = tools_key(())


def system_key(messages: Sequence[Message]) -> bytes:
    """The key of the leading system messages."""
    return chain(b"system", [b"", *(block for message in messages for block in block_keys(message, ""))])


NO_SYSTEM = system_key(())


def head_length(messages: Sequence[Message]) -> int:
    """How many leading messages are system or developer ones."""
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            return index
    return len(messages)


@dataclass(frozen=True, slots=True)
class Head:
    """`key` is `system` + `tools` (32 bytes) + `variables` (16, or none), so that a later reader can say which of them
    changed."""

    system: bytes
    tools: bytes
    variables: bytes
    """Of the chat template; empty if the request sets none."""
    length: int
    """Leading messages that the head covers."""

    @property
    def key(self) -> bytes:
        """The key as it is journalled."""
        return self.system + self.tools + self.variables


GIVEN_HEAD = _hash(b"a prompt given as text or ids") * 2
"""The head of prompts that clients make themselves: no system message, no tools that are known."""


def ids_key(ids: Ids) -> bytes:
    """The key of a part of a prompt that was given as ids, as a block of the client's words."""
    return _block(USER, ("ids", ids.tobytes()))


def start_key(head_key: bytes) -> bytes:
    """The chain's key before the first block."""
    return _hash(b"head" + head_key)


# --- blocks (N3, N4, N5, N8)


def block_keys(message: Message, call: str) -> list[bytes]:
    """One key per part of a user, tool or system message; `call` names the tool message's call (see `CallNames`)."""
    kind = USER if message.role == "user" else TOOL if message.role == "tool" else SYSTEM
    name = call if kind == TOOL else message.name
    parts = [_unbilled(part) for part in message.parts] if kind == SYSTEM else message.parts
    keys = [_block(kind, (name, part_form(part))) for part in parts if matters(part)]
    return keys or [_block(kind, (name, None))]


def matters(part: Part) -> bool:
    """Whether a part counts: empty text does not (N3)."""
    return not isinstance(part, TextPart) or part.text != ""


def without_billing(text: str) -> str:
    """A system message's text without Claude Code's billing header, which is its first line (N1)."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _unbilled(part: Part) -> Part:
    return TextPart(without_billing(part.text)) if isinstance(part, TextPart) else part


def part_form(part: Part) -> object:
    """A part as it is hashed: user and tool content stays exact (N13)."""
    if isinstance(part, VideoPart):
        return "video", part.frames
    return part.text if isinstance(part, TextPart) else ("image", part.url, part.detail)


@dataclass(slots=True)
class CallNames:
    """N8: call ids as positions. A call is named by its place in the conversation, whatever id the client gives it."""

    runs: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def learn(self, run: Sequence[Message]) -> None:
        """Takes in an assistant turn (one or more consecutive messages)."""
        self.runs += 1
        calls = [call.id for message in run for call in message.tool_calls]
        for index in range(len(calls) - 1, -1, -1):  # of calls with one id, the first counts
            self.names[calls[index]] = f"{self.runs}.{index}"

    def place(self, call: str | None) -> str:
        """The name of a call: how many assistant turns back it is, and which of that turn's calls. An id that no call
        has stands for itself."""
        name = self.names.get(call or "")
        if name is None:
            return f"?{call or ''}"
        run, _, index = name.partition(".")
        return f"{self.runs - int(run)}.{index}"


# --- assistant turns


@dataclass(frozen=True, slots=True)
class Echo:
    """One or more consecutive assistant messages of a request, read as one turn (N4)."""

    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    plain: bool = True
    """False if it has a part that no turn of ours can have (an image)."""

    @property
    def key(self) -> bytes:
        """The key of these messages as a block that was not sampled here."""
        return foreign_key(self.text, [(call.name, call.arguments) for call in self.calls], self.plain)


def foreign_key(text: str, calls: Sequence[tuple[str, str]], plain: bool = True) -> bytes:
    """The key of an assistant's words that were not sampled here. N6, N7, N8, N9: reasoning, argument format, call ids
    and outer white space do not count."""
    return _block(
        FOREIGN, (text.strip(), [(name, normal_arguments(arguments)) for name, arguments in calls], plain)
    )


def echo_of(run: Sequence[Message]) -> Echo:
    """Consecutive assistant messages as one turn."""
    if len(run) == 1:
        message = run[0]
        parts = message.parts
        if not parts:
            return Echo("", message.tool_calls, message.reasoning or "")
        if len(parts) == 1 and isinstance(parts[0], TextPart):
            return Echo(parts[0].text, message.tool_calls, message.reasoning or "")
        plain = all(isinstance(part, TextPart) for part in parts)
        return Echo(message.text, message.tool_calls, message.reasoning or "", plain)
    echoes = [echo_of([message]) for message in run]
    return Echo(
        text="".join(echo.text for echo in echoes),
        calls=tuple(call for echo in echoes for call in echo.calls),
        reasoning="".join(echo.reasoning for echo in echoes),
        plain=all(echo.plain for echo in echoes),
    )


# --- a whole request


@dataclass(frozen=True, slots=True)
class Outline:
    """A request as keys. Index i of each field is about `messages[i]`."""

    messages: tuple[Message, ...]
    head: Head
    blocks: tuple[tuple[bytes, ...], ...]
    """Per message; empty for head and assistant messages."""
    run_end: tuple[int, ...]
    """Per message: for an assistant message, the end of its run of assistant messages; else 0."""

    def rest(self, index: int) -> list[bytes]:
        """The blocks from message `at` on, each run of assistant messages as one foreign block."""
        out: list[bytes] = []
        while index < len(self.messages):
            if end := self.run_end[index]:
                out.append(echo_of(self.messages[index:end]).key)
                index = end
            else:
                out += self.blocks[index]
                index += 1
        return out


def outline(request: TurnRequest) -> Outline:
    """The outline of a request. Assistant messages get no key yet: whether they are echoes depends on the tree."""
    messages = request.messages
    length = head_length(messages)
    head = Head(
        system_key(messages[:length]),
        tools_key(request.tools) if request.tools else NO_TOOLS,
        _hash(_JSON.encode(request.template_kwargs)) if request.template_kwargs else b"",
        length,
    )
    blocks: list[tuple[bytes, ...]] = [()] * length
    run_end = [0] * len(messages)
    names = CallNames()
    index = length
    while index < len(messages):
        message = messages[index]
        if message.role == "assistant":
            end = index + 1
            while end < len(messages) and messages[end].role == "assistant":
                end += 1
            run_end[index:end] = [end] * (end - index)
            blocks += [()] * (end - index)
            names.learn(messages[index:end])
            index = end
            continue
        call = names.place(message.tool_call_id) if message.role == "tool" else ""
        blocks.append(tuple(block_keys(message, call)))
        index += 1
    return Outline(messages, head, tuple(blocks), tuple(run_end))
