"""Content blocks of Anthropic's messages as canonical messages. (pure)

A user message may hold tool results beside text: each result becomes a message of role tool, in order.
"""

from __future__ import annotations

from itertools import groupby

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.message_equality import without_billing
from sandgate.gateway.conversation.messages import ImagePart, Message, Part, TextPart, ToolCall
from sandgate.gateway.protocols.image_parts import image_part
from sandgate.gateway.protocols.sealed_reasoning import unseal
from sandgate.gateway.protocols.wire import ANYTHING, brief, read

_Raw = msgspec.Raw
_NONE = _Raw(b"")
FAILED = "The tool failed, and said nothing."
"""What the model is shown of a result with `is_error` and without content: else it could not tell it from success."""
UNPARSED = "_unparsed"
"""Name under which an answer has arguments that are no object; then there is no other."""
UNPARSED_MARK = UNPARSED.encode()
_HELD: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(dict[str, str])


class BlockSource(msgspec.Struct):
    """Where the data of an image or a document are."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct):
    """A content block, of any type. What a type means by `content` is read when it is known."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: _Raw = _NONE
    tool_use_id: str | None = None
    content: _Raw = _NONE
    is_error: bool | None = None
    source: BlockSource | str | None = None
    title: str | None = None
    tool_name: str | None = None
    context: str | None = None
    citations: _Raw = _NONE


_CONTENT: msgspec.json.Decoder[str | list[Block] | None] = msgspec.json.Decoder(str | list[Block] | None)


def text_parts(content: str | list[Block], field: str) -> tuple[Part, ...]:
    """The parts of a system prompt, without Claude Code's billing header."""
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    texts = [without_billing(_text(block, f"{field}[{index}]")) for index, block in enumerate(content)]
    return tuple([TextPart(text) for text in texts if text])


def _text(block: Block, field: str) -> str:
    if block.type != "text":
        raise Unsupported(f"{field}.type is {brief(block.type)}; text is understood", field=f"{field}.type")
    if block.text is None:
        raise InvalidBody(f"{field}.text is missing", field=f"{field}.text")
    return block.text


def user_messages(content: str | list[Block], field: str) -> list[Message]:
    """The user's words and the results of tools, in order."""
    if isinstance(content, str):
        return [Message("user", (TextPart(content),) if content else ())]
    out: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(content):
        where = f"{field}[{index}]"
        if block.type != "tool_result":
            parts += _parts(block, where)
            continue
        if parts:
            out.append(Message("user", tuple(parts)))
            parts = []
        out.append(Message("tool", _result(block, where), None, (), block.tool_use_id))
    if parts or not out:
        out.append(Message("user", tuple(parts)))
    return out


def _result(block: Block, field: str) -> tuple[Part, ...]:
    if block.tool_use_id is None:
        raise InvalidBody(f"{field}.tool_use_id is missing", field=f"{field}.tool_use_id")
    parts = _inner(block.content, f"{field}.content")
    return (TextPart(FAILED),) if block.is_error and not parts else parts


def _inner(raw: _Raw, field: str) -> tuple[Part, ...]:
    content = read(_CONTENT, raw, field) if bytes(memoryview(raw)[:1]) else None
    if not content:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    parts: list[Part] = []
    for references, blocks in groupby(enumerate(content), lambda one: one[1].type == "tool_reference"):
        if references:  # one text: a template may show several without anything between them
            parts.append(TextPart("\n".join(_found(block, f"{field}[{index}]") for index, block in blocks)))
        else:
            parts += [part for index, block in blocks for part in _parts(block, f"{field}[{index}]")]
    return tuple(parts)


def _parts(block: Block, field: str) -> tuple[Part, ...]:
    match block.type:
        case "text":
            text = _text(block, field)
            return (TextPart(text),) if text else ()
        case "image":
            return (_image(_source(block, field), f"{field}.source"),)
        case "document":
            return _document(block, field)
    raise Unsupported(
        f"{field}.type is {brief(block.type)}; text, image, document (of text) and tool_result are understood",
        field=f"{field}.type",
    )


def _found(block: Block, field: str) -> str:
    """A tool that a search of tools found. The model has it among its tools, deferred or not, so its name will do."""
    if not block.tool_name:
        raise InvalidBody(f"{field}.tool_name is missing", field=f"{field}.tool_name")
    return f"Tool available: {block.tool_name}"


def _source(block: Block, field: str) -> BlockSource | None:
    if isinstance(block.source, str):
        raise InvalidBody(f"{field}.source must be an object", field=f"{field}.source")
    return block.source


def _image(source: BlockSource | None, field: str) -> ImagePart:
    match source:
        case None:
            raise InvalidBody(f"{field} is missing", field=field)
        case BlockSource(type="base64", media_type=str() as kind, data=str() as data):
            return image_part(f"data:{kind};base64,{data}", field)
        case BlockSource(type="base64"):
            missing = f"{field}.{'data' if source.media_type else 'media_type'}"
            raise InvalidBody(f"{missing} is missing", field=missing)
        case BlockSource(type="url", url=str() as url):
            return image_part(url, f"{field}.url")
        case BlockSource(type="url"):
            raise InvalidBody(f"{field}.url is missing", field=f"{field}.url")
    raise Unsupported(
        f"{field}.type is {brief(source.type)}; base64 and url are understood", field=f"{field}.type"
    )


class _Citations(msgspec.Struct):
    enabled: bool | None = None


_CITATIONS: msgspec.json.Decoder[_Citations | None] = msgspec.json.Decoder(_Citations | None)


def _document(block: Block, where: str) -> tuple[Part, ...]:
    """A document's text behind its title and context, a line each."""
    field = f"{where}.source"
    cited = read(_CITATIONS, block.citations, f"{where}.citations") if bytes(block.citations) else None
    if cited and cited.enabled:
        field = f"{where}.citations.enabled"
        raise Unsupported(f"{field}: answers have no citations here", field=field)
    source = _source(block, where)
    match source:
        case None:
            raise InvalidBody(f"{field} is missing", field=field)
        case BlockSource(type="text", data=str() as data):
            text = "\n".join(line for line in (block.title, block.context, data) if line)
            return (TextPart(text),) if text else ()
        case BlockSource(type="text"):
            raise InvalidBody(f"{field}.data is missing", field=f"{field}.data")
    raise Unsupported(f"{field}.type is {brief(source.type)}; text is understood", field=f"{field}.type")


def assistant_message(content: str | list[Block], field: str) -> Message:
    """An assistant's blocks as one message."""
    if isinstance(content, str):
        return Message("assistant", (TextPart(content),) if content else ())
    parts: list[Part] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for index, block in enumerate(content):
        where = f"{field}[{index}]"
        match block.type:
            case "text":
                parts += _parts(block, where)
            case "thinking":
                thoughts.append(block.thinking or unseal(block.signature or ""))
            case "redacted_thinking":
                thoughts.append(unseal(block.data or ""))
            case "tool_use":
                calls.append(_call(block, where))
            case _:
                raise Unsupported(
                    f"{where}.type is {brief(block.type)}; text, thinking and tool_use are understood",
                    field=f"{where}.type",
                )
    return Message("assistant", tuple(parts), "".join(thoughts) or None, tuple(calls))


def _call(block: Block, field: str) -> ToolCall:
    if not block.name:
        raise InvalidBody(f"{field}.name is missing", field=f"{field}.name")
    raw = bytes(block.input).lstrip()
    if raw and not raw.startswith(b"{"):
        raise InvalidBody(f"{field}.input must be an object", field=f"{field}.input")
    return ToolCall(block.id or "", block.name, _arguments(raw, f"{field}.input"))


def _arguments(raw: bytes, field: str) -> str:
    """An input as text: compact, so that how a client spells it is no part of the request; as it stands if it holds
    what cannot be said again. An answer's arguments that were no object are their text again."""
    if UNPARSED_MARK in raw and (text := _unparsed(raw)) is not None:
        return text
    try:
        return (msgspec.json.encode(ANYTHING.decode(raw)) if raw else b"{}").decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return raw.decode()
    except (
        UnicodeDecodeError
    ) as error:  # the body's reader skips an input, and so does not see what is no text
        raise InvalidBody(f"{field}: {error}", field=field) from None


def _unparsed(raw: bytes) -> str | None:
    try:
        held = _HELD.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return held[UNPARSED] if len(held) == 1 and UNPARSED in held else None
