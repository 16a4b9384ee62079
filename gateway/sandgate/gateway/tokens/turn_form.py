"""The form of a turn that tool_choice, parallel_tool_calls and response_format ask for, as a constraint. (pure)

A turn is an optional thought, then what was asked for: calls, JSON, or text without calls. The thought is part of the
constraint, and so the engine must apply it from the first token on (`reasoning_ended` of its request): left to find the
thought's end itself, an engine with `--reasoning-parser` would wait for a second thought, and one without would let the
answer stand inside the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sandgate.contract.errors import Unsupported
from sandgate.gateway.conversation.messages import ResponseFormat, TurnRequest
from sandgate.gateway.tokens import harmony
from sandgate.gateway.tokens.family_formats import CallFormat, Grammar
from sandgate.gateway.tokens.forced import Format, calls_form

BARE_CALLS = ('{"name"', '{ "name"')
"""How a call begins that is a bare object (Llama 3, xLAM)."""
ONE_A_BLOCK = frozenset({"gemma4", "minicpm5"})
"""Families whose calls have no known form, and one block each."""


def constraint_of(
    grammar: Grammar, request: TurnRequest, reasoning: Callable[[], bool]
) -> dict[str, Any] | None:
    """vLLM's `structured_outputs` for a turn; None if any turn will do.

    `reasoning()`: whether the prompt has opened the reasoning. Raises Unsupported, which names the field, where this
    family's form cannot be held to what is asked for.
    """
    body = _body(grammar, request)
    if body is None:
        return None
    thought = _thought(grammar, reasoning)
    if not thought and body["type"] == "json_schema":
        form = request.response_format
        return {"json_object": True} if form.kind == "json_object" else {"json": form.schema}
    form_of_turn = _sequence(*thought, body) if thought else body
    tag = {"type": "structural_tag", "format": form_of_turn}
    return {"structural_tag": json.dumps(tag, ensure_ascii=False)}


def _body(grammar: Grammar, request: TurnRequest) -> Format | None:
    choice, tools = request.tool_choice, request.callable_tools
    if choice.mode in ("required", "named"):
        chosen = [tool for tool in tools if choice.mode == "required" or tool.name == choice.name]
        one = choice.mode == "named" or not request.parallel_tool_calls
        calls = calls_form(grammar, chosen, one=one) if chosen else None
        if calls is None:
            raise Unsupported(
                f"tool_choice {choice.mode!r} cannot be enforced for this model's tool format",
                field="tool_choice",
            )
        return calls
    if request.response_format.kind != "text":
        answer = _json(grammar, request.response_format)
        return {"type": "or", "elements": [answer, _calls(grammar, request)]} if tools else answer
    if request.tools and choice.mode == "none":
        return _talk(grammar)
    if tools and not request.parallel_tool_calls and not grammar.harmony:  # gpt-oss: a call ends the turn
        call = _calls(grammar, request)
        talk = _talk(grammar)
        if grammar.bare:
            return {"type": "or", "elements": [call, talk]}
        return _sequence(talk, {"type": "optional", "content": call})
    return None


def _calls(grammar: Grammar, request: TurnRequest) -> Format:
    """Calls beside another answer: at most one if the request says so."""
    one = not request.parallel_tool_calls
    made = calls_form(grammar, request.callable_tools, one=one)
    if made is not None:
        return made
    form = grammar.calls
    if form is None or not form.close or (one and form.name not in ONE_A_BLOCK):
        field = "parallel_tool_calls" if one else "response_format"
        raise Unsupported(f"{field} cannot be enforced for this model's tool format", field=field)
    return _block(form, one=one)


def _block(form: CallFormat, *, one: bool) -> Format:
    """A call's block, whatever it says."""
    content = {"type": "any_text", "excludes": [form.open, form.close]}
    block = {"type": "tag", "begin": form.open, "content": content, "end": form.close}
    return block if one else {"type": "plus", "content": block}


def _talk(grammar: Grammar) -> Format:
    """Text without a call, empty text too."""
    if grammar.harmony:
        return _final({"type": "any_text", "excludes": list(harmony.MARKERS)})
    excluded = list(grammar.think or ())
    if grammar.calls is not None:
        excluded.append(grammar.calls.open)
    if grammar.bare:
        excluded += BARE_CALLS
    return {"type": "any_text", "excludes": excluded}


def _json(grammar: Grammar, form: ResponseFormat) -> Format:
    schema = form.schema if form.kind == "json_schema" and form.schema is not None else {"type": "object"}
    answer: Format = {"type": "json_schema", "json_schema": schema}
    return _final(answer) if grammar.harmony else answer


def _final(content: Format) -> Format:
    begin = {"type": "const_string", "value": "<|channel|>final<|message|>"}
    return _sequence(begin, content)


def _thought(grammar: Grammar, reasoning: Callable[[], bool]) -> list[Format]:
    if grammar.harmony:
        said = {"type": "any_text", "excludes": list(harmony.MARKERS)}
        begin, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
        analysis = {"type": "tag", "begin": begin, "content": said, "end": end}
        return [{"type": "optional", "content": analysis}]
    if grammar.think is None:
        return []
    opened = reasoning()
    opens, closes = grammar.think
    text = {"type": "any_text", "excludes": [opens, closes]}
    tag = {"type": "tag", "begin": "" if opened else opens, "content": text, "end": closes}
    thought = _sequence(tag, {"type": "regex", "pattern": r"\n{0,2}"})
    return [thought if opened else {"type": "optional", "content": thought}]


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}
