"""Matching of echoes: whether an assistant message is the echo of a turn: rules N6-N11, strictest first. (pure)"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from sandgate.gateway.conversation.ids import call_mark, mark_of
from sandgate.gateway.conversation.message_equality import Echo, same_arguments
from sandgate.gateway.journal.reply import Reply

_CLOSES = re.compile(r"\s{0,64}[>)\]}:`]{0,3}\s{0,64}")
"""What clients put behind a stop string that they put back (N11). Anything else is new text, however short: an agent of
the ReAct kind writes there what its tool answered."""
_ENDS_TAG = re.compile(r"[\w.:-]{0,64}\s{0,8}/?>\s{0,64}")
"""The same where the stop string is the beginning of a tag (`</func`)."""
TOOLS_SAID = "Calling tools:\n["
"""smolagents' CodeAgent retells the code it ran after the stop string; that tail may be as long as the code."""
TOOLS_SAID_CHARS = 1024
"""Characters that this adds around the code, escapes aside."""


class Level(IntEnum):
    """How freely the echo had to be read. Higher is freer."""

    EXACT = 0
    """Same text, arguments, ids and reasoning."""
    REASONING = 2
    """Reasoning is missing or differs (N6)."""
    ARGUMENTS = 3
    """Arguments are the same JSON value in other words (N7)."""
    WHITESPACE = 5
    """Outer white space of the text differs (N9)."""
    CALL_IDS = 6
    """Call ids were renamed; positions agree (N8)."""
    LOSSY = 7
    """Known call ids with text dropped or arguments repaired (N10), or a stop string put back (N11)."""


@dataclass(frozen=True, slots=True)
class MatchPolicy:
    """How much an echo may differ from what was sampled."""

    lossy_echo: bool = True
    """False: strict; what N10 would recognise becomes a fork."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """`cost` ranks siblings: ids before text before reasoning (N12); 0 is exact."""

    level: Level
    cost: int
    notes: tuple[str, ...] = ()


_LOSSY, _RENAMED, _REWORDED, _UNTHOUGHT = 8, 4, 2, 1
_EXACT = Recognised(Level.EXACT, 0)


def recognise(
    echo: Echo,
    turn: str,
    reply: Reply,
    stop: str | int | None,
    turn_of_call: dict[str, str],
    policy: MatchPolicy,
) -> Recognised | None:
    """How `echo` was recognised as `turn`'s reply; None if it is not. `turn_of_call`: call mark -> turn, for the whole
    session."""
    if not echo.plain or len(echo.calls) != len(reply.tool_calls):
        return None
    if _exact(echo, turn, reply):
        return _EXACT
    ids = _ids(echo, turn, turn_of_call)
    if ids is None or any(c.name != r.name for c, r in zip(echo.calls, reply.tool_calls, strict=True)):
        return None
    text, note = _text(echo.text, reply.text, stop, policy)
    arguments = _arguments(echo, reply)
    notes = [note] if note else []
    if text is None or arguments is None:
        if ids is not Level.EXACT or not echo.calls or not policy.lossy_echo:
            return None
        if text is None:
            if echo.text.strip():
                return None  # other words are an edit, dropped words are a loss
            notes.append("N10: text dropped")
        if arguments is None:
            notes += _repaired(echo, reply)
        text = arguments = Level.LOSSY
    thought = Level.EXACT if echo.reasoning == reply.reasoning else Level.REASONING
    level = max(ids, text, arguments, thought)
    cost = (
        (_LOSSY if level is Level.LOSSY else 0)
        + (_RENAMED if ids else 0)
        + (_REWORDED if text or arguments else 0)
        + (_UNTHOUGHT if thought else 0)
    )
    return Recognised(level, cost, tuple(notes))


def _exact(echo: Echo, turn: str, reply: Reply) -> bool:
    """Whether the echo is exact, which is the common case."""
    if echo.text != reply.text or echo.reasoning != reply.reasoning:
        return False
    for index, sampled in enumerate(reply.tool_calls):
        call = echo.calls[index]
        if (
            call.arguments != sampled.arguments
            or call.name != sampled.name
            or mark_of(call.id) != call_mark(turn, index)
        ):
            return False
    return True


def _ids(echo: Echo, turn: str, turn_of_call: dict[str, str]) -> Level | None:
    """N8: whether call ids are equal, or renamed consistently. With an id of another turn, or one id for two calls,
    they are neither."""
    marks = [mark_of(call.id) for call in echo.calls]
    if all(mark == call_mark(turn, index) for index, mark in enumerate(marks)):
        return Level.EXACT
    if len(set(marks)) != len(marks) or any(mark in turn_of_call for mark in marks):
        return None
    return Level.CALL_IDS


def _text(echoed: str, sampled: str, stop: str | int | None, policy: MatchPolicy) -> tuple[Level | None, str]:
    if echoed == sampled:
        return Level.EXACT, ""
    echoed, sampled = echoed.strip(), sampled.strip()
    if echoed == sampled:
        return Level.WHITESPACE, ""
    if isinstance(stop, str) and stop and echoed.startswith(sampled):
        rest = echoed[len(sampled) :].lstrip()
        if rest.startswith(stop):
            tail = rest[len(stop) :]
            if _CLOSES.fullmatch(tail) or (_in_tag(stop) and _ENDS_TAG.fullmatch(tail)):
                return Level.LOSSY, "N11: stop string put back"
            room = TOOLS_SAID_CHARS + 2 * len(sampled)
            if policy.lossy_echo and tail.lstrip().startswith(TOOLS_SAID) and len(tail) <= room:
                return Level.LOSSY, "N11: stop string put back, tool calls retold"
    return None, ""


def _in_tag(stop: str) -> bool:
    return stop.rfind("<") > stop.rfind(">")


def _arguments(echo: Echo, reply: Reply) -> Level | None:
    level = Level.EXACT
    for call, sampled in zip(echo.calls, reply.tool_calls, strict=True):
        if call.arguments != sampled.arguments:
            if not same_arguments(call.arguments, sampled.arguments):
                return None
            level = Level.ARGUMENTS
    return level


def _repaired(echo: Echo, reply: Reply) -> list[str]:
    return [
        f"N10: arguments of call {index} differ"
        for index, (call, sampled) in enumerate(zip(echo.calls, reply.tool_calls, strict=True))
        if not same_arguments(call.arguments, sampled.arguments)
    ]
