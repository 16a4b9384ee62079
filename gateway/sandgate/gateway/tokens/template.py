"""ChatTemplate: a checkpoint's own Jinja chat template, rendered as Hugging Face does. (pure)"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.defaults
import jinja2.ext
import jinja2.filters
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from sandgate.contract.errors import BadRequest, InvalidBody, Unsupported
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall, VideoPart
from sandgate.gateway.tokens.client_text import ClientText
from sandgate.gateway.tokens.jsonslice import sayable
from sandgate.gateway.tokens.marks import Marked, printed, unmark
from sandgate.gateway.tokens.roles import Roles, find_roles

TEMPLATE_CHARS_MAX = 1_000_000
"""Characters of a chat template; the largest in use has 20 thousand."""
TEMPLATES_KEPT = 16
"""Compiled, in one process."""


PROBE_TOOLS = (Tool(name="probe"),)
PROBE_CALL_ID = "call_0123456789abcdef01234567"
"""A call id in the form the gateway gives them."""


class TemplateRefused(jinja2.TemplateError):
    """The template called raise_exception: it does not take these messages."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant says, for training masks; here it is only text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's filter: plain json.dumps, no HTML escapes."""
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return value.json() if type(value) is _ToolDict else _PLAIN_JSON(value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return printed(text) if ensure_ascii else text


@jinja2.pass_eval_context
def _replace(
    context: jinja2.nodes.EvalContext, text: str, old: str, new: str, count: int | None = None
) -> str:
    """Jinja's own, but for marked text, which knows better."""
    if isinstance(text, Marked):
        return text.replace(str(old), str(new), -1 if count is None else count)
    return jinja2.filters.do_replace(context, text, old, new, count)


_PLAIN_JSON = json.JSONEncoder(ensure_ascii=False).encode
"""json.dumps makes a new encoder for every call that is not all defaults."""


class _ToolDict(dict[str, Any]):
    """A tool as templates see it. Every turn of every session prints the same ones, so its JSON is kept."""

    __slots__ = ("_text",)
    _text: str

    def json(self) -> str:
        try:
            return self._text
        except AttributeError:
            self._text = _PLAIN_JSON(self)
            return self._text


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, without its detour for what templates do most: reading a dict's key as an attribute."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox's own: a dict has no such attribute, so the key is looked up, else undefined."""
        if type(obj) in (dict, _ToolDict) and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) in (LoopContext, Namespace) and not attribute.startswith("_"):
            value = getattr(obj, attribute, _MISSING)
            return value if value is not _MISSING else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


_MISSING = object()
_DICT_ATTRIBUTES = frozenset(dir(_ToolDict))
"""Left to the sandbox: methods come before keys, and some are unsafe."""


def _raise(message: str) -> NoReturn:
    raise TemplateRefused(message)


@functools.cache
def _environment() -> _Environment:
    env = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.filters["replace"] = _replace
    env.globals["raise_exception"] = _raise
    return env


@functools.lru_cache(TEMPLATES_KEPT)
def _compiled(source: str) -> jinja2.Template:
    """Compiling takes 25 ms, and 140 for the longest; a compiled one has no state. Raises jinja2.TemplateError."""
    return _environment().from_string(source)


_ASKING = (jinja2.nodes.Compare, jinja2.nodes.Call, jinja2.nodes.Assign, jinja2.nodes.Test)
"""Nodes in which a template asks what a text says: `in`, `startswith`, a word that is set first."""
_FIELDS = frozenset(
    "system developer user assistant tool function tools role content name type text image image_url video "
    "tool_calls tool_call_id id arguments parameters properties required description string object array "
    "reasoning reasoning_content thinking number integer boolean null none enum items".split()
)
"""Roles, and fields of messages and schemas: what templates ask of a message's form, and no mode."""


@functools.lru_cache(TEMPLATES_KEPT)
def _asked_for(source: str) -> frozenset[str]:
    nodes = _environment().parse(source).find_all(_ASKING)
    consts = (const.value for node in nodes for const in node.find_all(jinja2.nodes.Const))
    return frozenset(word for word in consts if isinstance(word, str) and word.strip()) - _FIELDS


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this template wants an assistant's calls: found out once per template by `ChatTemplate`."""

    arguments_as_text: bool = False
    """False: `arguments` is a mapping (what Hugging Face gives); True: its JSON text."""
    null_content: bool = False
    """True: a message that only calls tools has `content` null instead of ""."""
    parts: bool = False
    """True: content is a list of parts even where it is only text (vision templates)."""
    short_ids: bool = False
    """True: call ids are nine letters or digits (Mistral); the last nine of ours are."""
    described: bool = False
    """True: a tool without a description gets an empty one; the template fails without (gpt-oss)."""
    thinking: bool = False
    """True: reasoning is given as `thinking` as well (gpt-oss)."""
    images: bool = False
    """True: content with images is a list of parts in order, each image `{"type": "image"}`."""
    videos: bool = False
    """The same for videos."""
    joint: str = "\n"
    """What stands between two texts of a user or a tool: what the template writes there, if it takes a list of parts,
    else a new line, as vLLM joins them."""


PLAIN = Dialect()
"""What Hugging Face gives."""


RESERVED = (
    frozenset(
        ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "strftime_now")
    )
    | frozenset(jinja2.defaults.DEFAULT_NAMESPACE)
    | {"raise_exception"}
)
"""Names that templates read and no request sets."""


FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    RecursionError,
)
"""What a template raises on messages that it was not written for."""


def _failed(error: Exception) -> BadRequest:
    if isinstance(error, TemplateRefused):
        return BadRequest(f"the chat template refuses these messages: {unmark(str(error))}", field="messages")
    return BadRequest(
        f"the chat template fails on these messages: {type(error).__name__}: {unmark(str(error))}",
        field="messages",
    )


class ChatTemplate:
    """One compiled template with its special tokens and extra variables.

    `now` gives `strftime_now` its time, so a render is a function of its arguments and this clock.
    """

    def __init__(
        self,
        source: str,
        *,
        tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
        placeholder: str = "",
        wrapped: str = "",
        video: str = "",
    ) -> None:
        """`placeholder`: what the model's templates write for an image; empty for a model of text. `wrapped`: what the
        processor makes of it in the text, if it is more."""
        if len(source) > TEMPLATE_CHARS_MAX:
            raise InvalidBody(
                f"chat template has {len(source)} characters; limit {TEMPLATE_CHARS_MAX}",
                field="chat_template",
            )
        self.source = source
        self.variables = {**(tokens or {}), **(variables or {})}
        self.dated = "strftime_now" in source
        self._now = now
        self._image = (placeholder, wrapped) if placeholder and wrapped else None
        try:
            self._template = _compiled(source)
        except jinja2.TemplateError as error:
            raise InvalidBody(f"chat template does not compile: {error}", field="chat_template") from error
        about = json.dumps(self.variables, sort_keys=True, default=str)
        self.digest = hashlib.sha256(f"{source}\0{about}".encode()).hexdigest()[:12]
        self.words: ClientText | None = None
        self.roles = Roles()
        self.dialect = self._find_dialect()
        self.roles = find_roles(self.render)
        self._show_images(placeholder)
        self._show_videos(video)

    def takes(self) -> frozenset[str]:
        """Variables that the template reads and nobody else sets: what a request may set."""
        read = jinja2.meta.find_undeclared_variables(_environment().parse(self.source))
        return frozenset(name for name in read - RESERVED if not name.endswith("_token"))

    def asks_for(self) -> frozenset[str]:
        """Words that the template compares something with: a mode that a message switches is one of them."""
        return _asked_for(self.source)

    def marking(self, words: ClientText) -> ChatTemplate:
        """The same template, whose renders have the marks of `words` in what a client says."""
        made = copy.copy(self)
        made.words = words
        return made

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation_prompt: bool = True
    ) -> str:
        """The prompt text. Raises BadRequest where the template refuses or fails, Unsupported for images."""
        return self.write(self.given(messages), self.given_tools(tools), generation_prompt=generation_prompt)

    def given(self, messages: Sequence[Message], *, before: int = 0) -> list[dict[str, Any]]:
        """The messages as the template sees them, behind `before` others; nobody changes them, so that several renders
        may have the same. Raises as `render`."""
        dicts = [message_dict(message, self.dialect) for message in self.roles.adapt(messages, before=before)]
        if self.words is None:
            return dicts
        try:
            return [self.words.message(one) for one in dicts]
        except FAILURES as error:
            raise _failed(error) from error

    def given_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Tools as the template sees them."""
        if self.dialect.described:
            tools = [_described(tool) for tool in tools]
        given = tools_json(tools)
        if self.words is None:
            return given
        try:
            return self.words.tools(tools, given)
        except FAILURES as error:
            raise _failed(error) from error

    def calling(self, given: dict[str, Any], call_ids: Sequence[str]) -> dict[str, Any]:
        """A message that `given` made, its calls under these ids."""
        if not call_ids:
            return given
        ids = (_call_id(call_id, self.dialect) for call_id in call_ids)
        calls = [
            {**call, "id": call_id if self.words is None else self.words.text(call_id)}
            for call, call_id in zip(given["tool_calls"], ids, strict=True)
        ]
        return {**given, "tool_calls": calls}

    def write(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        generation_prompt: bool = True,
    ) -> str:
        """The text of messages and tools that `given` and `given_tools` made. Raises as `render`."""
        try:
            return self._render(messages, tools, generation_prompt)
        except FAILURES as error:
            raise _failed(error) from error

    def today(self) -> str:
        """Key under which renders made now may be kept: changes when a dated template may say something else."""
        return self._now().strftime("%Y-%m-%d %H") if self.dated else ""

    def _render(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None, generation_prompt: bool
    ) -> str:
        text = self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=generation_prompt,
            strftime_now=lambda form: self._now().strftime(form),
            **self.variables,
        )
        return text.replace(*self._image) if self._image else text

    def _find_dialect(self) -> Dialect:
        """The first form in which the template renders plain text, then calls as JSON (no Python repr, no drop)."""
        asked = Message(role="user", parts=(TextPart("zkprobe"),))
        thinking = "thinking" in self.source
        plain = Dialect(thinking=thinking)
        for parts in (False, True):
            if "zkprobe" in self._try(Dialect(parts=parts, thinking=thinking), (asked,)):
                plain = Dialect(parts=parts, thinking=thinking)
                break
        if not self._try(plain, (asked,), PROBE_TOOLS):
            described = replace(plain, described=True)
            plain = described if self._try(described, (asked,), PROBE_TOOLS) else plain
        plain = replace(plain, joint=self._joint())
        call = ToolCall(PROBE_CALL_ID, "probe", '{"probe_key": "probe_value"}')
        messages = (
            asked,
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", parts=(TextPart("42"),), tool_call_id=call.id),
        )
        for short, as_text in itertools.product((False, True), repeat=2):
            texts = {}
            for null in (False, True):
                dialect = replace(plain, arguments_as_text=as_text, null_content=null, short_ids=short)
                text = self._try(dialect, messages, PROBE_TOOLS)
                if "probe_value" in text and "{'probe_key'" not in text and '\\"probe_key' not in text:
                    texts[dialect] = text
            if texts:
                # Some write a second, empty turn for words that are "", and some the word None for none.
                return min(texts, key=lambda dialect: len(texts[dialect]))
        return plain

    def _joint(self) -> str:
        """See `Dialect.joint`."""
        parts = [{"type": "text", "text": text} for text in ("zkleft", "zkright")]
        try:
            told = self.write([{"role": "user", "content": parts}], None)
        except BadRequest:
            return PLAIN.joint
        between = told.partition("zkleft")[2].partition("zkright")
        return between[0] if between[1] and not between[0].strip() else PLAIN.joint

    def _show_images(self, placeholder: str) -> None:
        """Gives the template images if it writes each once. Some (LLaVA's) write those of a message before its words,
        as they were trained."""
        shown = Message(
            role="user", parts=(TextPart("zkleft"), ImagePart("data:"), TextPart("zkmid"), ImagePart("data:"))
        )
        plain, found = self.dialect, ""
        if placeholder:
            found = self._try(replace(plain, images=True), (shown,))
        if not (found.count(placeholder) == 2 and "zkleft" in found and "zkmid" in found):
            self.dialect = plain

    def _show_videos(self, placeholder: str) -> None:
        """Gives the template videos if it shows images, and writes each video once, in its place among them."""
        shown = (TextPart("zkleft"), VideoPart(("data:",)), TextPart("zkmid"), ImagePart("data:"))
        plain, found = self.dialect, ""
        if placeholder and plain.images:
            found = self._try(replace(plain, videos=True), (Message(role="user", parts=shown),))
        at = found.find(placeholder) if placeholder else -1
        if not (found.count(placeholder) == 1 and found.find("zkleft") < at < found.find("zkmid")):
            self.dialect = plain

    def _try(self, dialect: Dialect, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The render in a dialect, "" if there is none."""
        self.dialect = dialect
        try:
            return self.render(messages, tools)
        except BadRequest:
            return ""


def message_dict(message: Message, dialect: Dialect = PLAIN) -> dict[str, Any]:
    """A message as templates see it. Raises Unsupported for images, unless the template shows them."""
    text = shown_text(message, dialect)
    out: dict[str, Any] = {"role": message.role, "content": text}
    if any(isinstance(part, ImagePart | VideoPart) for part in message.parts):
        out["content"] = _parts(message, dialect)
    elif dialect.parts:
        out["content"] = [{"type": "text", "text": text}]
    if message.role == "assistant":
        if message.reasoning is not None:
            out["reasoning_content"] = out["reasoning"] = message.reasoning
            if dialect.thinking:
                out["thinking"] = message.reasoning
        if message.tool_calls:
            out["tool_calls"] = [_call(call, dialect) for call in message.tool_calls]
            if dialect.null_content and not text:
                out["content"] = None
    if message.tool_call_id is not None:
        out["tool_call_id"] = _call_id(message.tool_call_id, dialect)
    if message.name is not None:
        out["name"] = message.name
    return out


def shown_text(message: Message, dialect: Dialect) -> str:
    """The text of a message, as a template that takes no parts is given it."""
    if len(message.parts) < 2 or message.role not in ("user", "tool"):
        return message.text
    return dialect.joint.join(part.text for part in message.parts if isinstance(part, TextPart))


def _parts(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    if not dialect.images:
        raise Unsupported(
            "messages: this model's codec renders text only; images cannot be given", field="messages"
        )
    if not dialect.videos and any(isinstance(part, VideoPart) for part in message.parts):
        raise Unsupported(
            "messages: this model takes no videos here: its processor or its template has none; send frames as images",
            field="messages",
        )
    if message.role == "assistant":
        raise Unsupported(
            "an assistant message has an image, which no model here can have said", field="messages"
        )
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
        for part in message.parts
    ]


def _call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    arguments = call.arguments if dialect.arguments_as_text else _mapping(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call.id, dialect), "type": "function", "function": function}


def _call_id(call_id: str, dialect: Dialect) -> str:
    if not dialect.short_ids:
        return call_id
    return "".join(filter(str.isalnum, call_id))[-9:].rjust(9, "0")


def _mapping(arguments: str) -> Any:
    """The JSON object of `arguments`, or the text itself if it is none, or none that can be said again."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and sayable(value) else arguments


def tools_json(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Tools as templates want them; None for no tools (what `{% if tools %}` and `is not none` both understand).

    The dicts of the same `Tool` objects are kept (requests share them), so nobody may change them.
    """
    return [_kept(tool)[1] for tool in tools] or None


KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX = 2 << 20, 128 << 10
"""Of tools in use, as text, and of one: the longest lists of 25 jobs. As Python's objects they may be twenty times
that. What is longer is made anew each time."""
_KEPT: ByteCache[int, tuple[Tool, dict[str, Any], str]] = ByteCache(KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX)


def _kept(tool: Tool) -> tuple[Tool, dict[str, Any], str]:
    """By identity: the entry holds the tool, so its id cannot become another's while it is kept."""
    kept = _KEPT.get(id(tool))
    if kept is None:
        key = repr((tool.name, tool.description, tool.schema, tool.strict))
        kept = (tool, tool_json(tool), key)
        _KEPT.put(id(tool), kept, len(key))
    return kept


_DESCRIBED: ByteCache[int, tuple[Tool, Tool]] = ByteCache(KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX)


def _described(tool: Tool) -> Tool:
    """The tool with a description, if only an empty one; the same object for the same tool while it is cached."""
    if tool.description is not None:
        return tool
    cached = _DESCRIBED.get(id(tool))
    if cached is None:
        cached = (tool, Tool(tool.name, "", tool.schema, tool.strict))
        _DESCRIBED.put(id(tool), cached, len(_kept(tool)[2]))
    return cached[1]


def tools_key(tools: Sequence[Tool]) -> tuple[str, ...]:
    """Equal if the tools render the same: key order is part of it."""
    return tuple(_kept(tool)[2] for tool in tools)


def tool_json(tool: Tool) -> dict[str, Any]:
    """OpenAI's function form: name, description if any, parameters (an empty object schema if none was given), and
    `strict` if the client said it, as vLLM and Hugging Face show it to templates."""
    function = _ToolDict(name=tool.name)
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.schema if tool.schema is not None else {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return _ToolDict(type="function", function=function)
