"""The Jinja sandbox in which chat templates are compiled and run, with Hugging Face's filters and functions. (pure)"""

from __future__ import annotations

import functools
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from sandgate.gateway.tokens.marks import Marked, printed

TEMPLATES_KEPT = 16
"""Compiled, in one process."""


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
        return value.json() if type(value) is ToolDict else _PLAIN_JSON(value)
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


class ToolDict(dict[str, Any]):
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
        if type(obj) in (dict, ToolDict) and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) in (LoopContext, Namespace) and not attribute.startswith("_"):
            value = getattr(obj, attribute, _MISSING)
            return value if value is not _MISSING else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


_MISSING = object()
_DICT_ATTRIBUTES = frozenset(dir(ToolDict))
"""Left to the sandbox: methods come before keys, and some are unsafe."""


def _raise(message: str) -> NoReturn:
    raise TemplateRefused(message)


@functools.cache
def environment() -> _Environment:
    """One for all templates: it has no state."""
    env = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.filters["replace"] = _replace
    env.globals["raise_exception"] = _raise
    return env


@functools.lru_cache(TEMPLATES_KEPT)
def compiled(source: str) -> jinja2.Template:
    """Compiling takes 25 ms, and 140 for the longest; a compiled one has no state. Raises jinja2.TemplateError."""
    return environment().from_string(source)


_ASKING = (jinja2.nodes.Compare, jinja2.nodes.Call, jinja2.nodes.Assign, jinja2.nodes.Test)
"""Nodes in which a template asks what a text says: `in`, `startswith`, a word that is set first."""
_FIELDS = frozenset(
    "system developer user assistant tool function tools role content name type text image image_url video "
    "tool_calls tool_call_id id arguments parameters properties required description string object array "
    "reasoning reasoning_content thinking number integer boolean null none enum items".split()
)
"""Roles, and fields of messages and schemas: what templates ask of a message's form, and no mode."""


def words_of(source: str) -> frozenset[str]:
    """All texts that a template's code holds, beside what it writes as it stands."""
    consts = (const.value for const in environment().parse(source).find_all(jinja2.nodes.Const))
    return frozenset(word for word in consts if isinstance(word, str))


@functools.lru_cache(TEMPLATES_KEPT)
def asked_for(source: str) -> frozenset[str]:
    nodes = environment().parse(source).find_all(_ASKING)
    consts = (const.value for node in nodes for const in node.find_all(jinja2.nodes.Const))
    return frozenset(word for word in consts if isinstance(word, str) and word.strip()) - _FIELDS
