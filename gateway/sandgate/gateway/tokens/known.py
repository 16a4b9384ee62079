"""Short known conversations, on which the bridge proves that a tail renders on its own. (pure)

The proof compares renders of *different* conversations before the same tail, so what differs between them is what the
tail must not depend on: texts, call names, number of turns, presence of a system message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandgate.gateway.conversation.messages import Message, TextPart, ToolCall

TAIL_SHAPES: dict[str, tuple[Message, ...]] = {
    "user": (Message(role="user", parts=(TextPart("And now?"),)),),
    "tool": (Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_00001"),),
    "tool, tool": (
        Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_00001"),
        Message(role="tool", parts=(TextPart("43"),), tool_call_id="call_00002"),
    ),
    "tool, user": (
        Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_00001"),
        Message(role="user", parts=(TextPart("And now?"),)),
    ),
    "user, user": (
        Message(role="user", parts=(TextPart("Wait."),)),
        Message(role="user", parts=(TextPart("And now?"),)),
    ),
    "system, user": (
        Message(role="system", parts=(TextPart("Be brief."),)),
        Message(role="user", parts=(TextPart("And now?"),)),
    ),
}
"""What agents append, by name: each is tried at start-up and listed in docs/models.md."""


@dataclass(frozen=True, slots=True)
class Known:
    """A conversation that ends with an assistant message, and the text that is the last thing it says."""

    messages: tuple[Message, ...]
    mark: str


def user(text: str) -> Message:
    return Message(role="user", parts=(TextPart(text),))


def system(text: str) -> Message:
    return Message(role="system", parts=(TextPart(text),))


def assistant(text: str, calls: Sequence[ToolCall] = (), reasoning: str | None = None) -> Message:
    return Message(
        role="assistant",
        parts=(TextPart(text),) if text else (),
        tool_calls=tuple(calls),
        reasoning=reasoning,
    )


def known_pair(tail: Sequence[Message], *, with_system: bool, with_rounds: bool) -> tuple[Known, Known]:
    """Two conversations for this tail, as different as the template lets them be.

    The assistant calls as many tools as the tail answers at its head, under the ids that the tail names.
    `with_system`, `with_rounds`: whether the second may have a system message and an earlier round.
    """
    answers = []
    for message in tail:
        if message.role != "tool":
            break
        answers.append(message.tool_call_id or "")
    first = Known((user("qone"), _closing("zkaone", "fnone", answers)), _mark("zkaone", answers))
    head: list[Message] = [system("sysq two")] if with_system else []
    if with_rounds:
        head += [user("q0 of two"), assistant("a0 of two")]
    second = Known((*head, user("q2 of two"), _closing("zkbtwo", "fntwo", answers)), _mark("zkbtwo", answers))
    return first, second


def _closing(mark: str, name: str, answers: Sequence[str]) -> Message:
    if not answers:
        return assistant(mark)
    calls = [
        ToolCall(id=call_id or f"call_0000{n}", name=f"{name}{n}", arguments=f'{{"k": "{mark}{n}"}}')
        for n, call_id in enumerate(answers)
    ]
    return assistant("", calls)


def _mark(mark: str, answers: Sequence[str]) -> str:
    return f"{mark}{len(answers) - 1}" if answers else mark
