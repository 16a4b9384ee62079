"""ChatTemplate: a checkpoint's own Jinja chat template, rendered as Hugging Face does. (pure)"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.defaults
import jinja2.meta

from sandgate.contract.errors import BadRequest, InvalidBody
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall, VideoPart
from sandgate.gateway.tokens.client_text import ClientText
from sandgate.gateway.tokens.efforts import EFFORTS
from sandgate.gateway.tokens.marks import unmark
from sandgate.gateway.tokens.roles import Roles, find_roles
from sandgate.gateway.tokens.template_environment import (
    TemplateRefused,
    asked_for,
    compiled,
    environment,
    words_of,
)
from sandgate.gateway.tokens.template_values import (
    PLAIN,
    Dialect,
    message_dict,
    shown_call_id,
    tools_json,
    with_description,
)

TEMPLATE_CHARS_MAX = 1_000_000
"""Characters of a chat template; the largest in use has 20 thousand."""

PROBE_TOOLS = (Tool(name="probe"),)
PROBE_CALL_ID = "call_0123456789abcdef01234567"
"""A call id in the form the gateway gives them."""


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
        self._now = now
        self._image = (placeholder, wrapped) if placeholder and wrapped else None
        try:
            self._template = compiled(source)
        except jinja2.TemplateError as error:
            raise InvalidBody(f"chat template does not compile: {error}", field="chat_template") from error
        about = json.dumps(self.variables, sort_keys=True, default=str)
        self.digest = hashlib.sha256(f"{source}\0{about}".encode()).hexdigest()[:12]
        self.words: ClientText | None = None
        self.roles = Roles()
        self.dialect = self._find_dialect()
        self.roles = find_roles(partial(self.render, tools=self._least_tools()))
        self._show_images(placeholder)
        self._show_videos(video)

    def takes(self) -> frozenset[str]:
        """Variables that the template reads and nobody else sets: what a request may set."""
        read = jinja2.meta.find_undeclared_variables(environment().parse(self.source))
        return frozenset(name for name in read - RESERVED if not name.endswith("_token"))

    def efforts(self) -> frozenset[str]:
        """Of the efforts that clients may ask for, those that its code has a word for."""
        return words_of(self.source).intersection(EFFORTS)

    def asks_for(self) -> frozenset[str]:
        """Words that the template compares something with: a mode that a message switches is one of them."""
        return asked_for(self.source)

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
            tools = [with_description(tool) for tool in tools]
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
        ids = (shown_call_id(call_id, self.dialect) for call_id in call_ids)
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

    def at(self, moment: datetime) -> ChatTemplate:
        """The same template, whose clock stands at this moment."""
        made = copy.copy(self)
        made._now = lambda: moment
        return made

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

    def _least_tools(self) -> Sequence[Tool]:
        """None, but for a template that is for requests with tools, and fails on any without."""
        return () if self._try(self.dialect, (Message(role="user", parts=(TextPart("q"),)),)) else PROBE_TOOLS

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
