"""Probe conversations: short known ones, on which the bridge proves that a tail renders on its own. (pure)

The proof compares renders of *different* conversations before the same tail, so what differs between them is what the
tail must not depend on: texts, call names, number of turns, presence of a system message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, ToolCall

TAIL_SHAPES: dict[str, tuple[Message, ...]] = {
    "user": (Message(role="user", parts=(TextPart("And now?"),)),),
    "tool": (Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_000000000000000000000001"),),
    "tool, tool": (
        Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_000000000000000000000001"),
        Message(role="tool", parts=(TextPart("43"),), tool_call_id="call_000000000000000000000002"),
    ),
    "tool, user": (
        Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_000000000000000000000001"),
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
class ProbeConversation:
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


def answers_of(tail: Sequence[Message]) -> tuple[str, ...]:
    """Ids of the calls that the tail answers at its head."""
    answers = []
    for message in tail:
        if message.role != "tool":
            break
        answers.append(message.tool_call_id or "")
    return tuple(answers)


def known_pair(
    answers: Sequence[str], *, with_system: bool, names: Sequence[str] = (), seen: bool = False
) -> tuple[ProbeConversation, ProbeConversation]:
    """Two conversations for a tail, as different as the template lets them be.

    The assistant calls as many tools as the tail answers at its head (`answers_of`), under the ids that the tail names;
    for no answers it only talks. `with_system`: whether the second may have a system message. `names`: of the functions
    called, the same in both; without, they differ. `seen`: the second shows an image, so that a tail whose images are
    numbered from the conversation's first differs.
    """
    one, two = (names or [f"{base}{n}" for n in range(len(answers))] for base in ("fnone", "fntwo"))
    first = ProbeConversation((user("qone"), _closing("zkaone", one, answers)), _mark("zkaone", answers))
    head = [system("sysq two")] if with_system else []
    first_asked = (
        Message(role="user", parts=(TextPart("q0 of two"), ImagePart("data:"))) if seen else user("q0 of two")
    )
    head += [first_asked, assistant("a0 of two"), user("q2 of two")]
    second = ProbeConversation((*head, _closing("zkbtwo", two, answers)), _mark("zkbtwo", answers))
    return first, second


def _closing(mark: str, names: Sequence[str], answers: Sequence[str]) -> Message:
    if not answers:
        return assistant(mark)
    calls = [
        ToolCall(id=call_id or f"call_{n:024}", name=name, arguments=f'{{"k": "{mark}{n}"}}')
        for n, (call_id, name) in enumerate(zip(answers, names, strict=True))
    ]
    return assistant("", calls)


def _mark(mark: str, answers: Sequence[str]) -> str:
    return f"{mark}{len(answers) - 1}" if answers else mark


@dataclass(frozen=True, slots=True)
class Past:
    """A conversation up to what the assistant said last, and a tail behind it."""

    earlier: tuple[Message, ...]
    tail: tuple[Message, ...]


def pasts(words: Iterable[str]) -> Iterator[Past]:
    """Conversations with all that a template may look back at: calls that it numbers on, answers in another order than
    the calls or not to all of them, text beside a call, a second system message, a long history, a user's name, and
    `words` that switch a mode, whoever says them, a tool and the name of a call among them."""
    yield from _pasts_with_calls()
    next_user, answer = (user("next"),), (_answer(9),)
    yield Past(
        (system("s0"), user("q0"), assistant("a0"), system("s1"), user("q1"), assistant("a1")), next_user
    )
    long = (user("q " * LONG_WORDS), assistant("a0"), *(user("q"), assistant("a")) * LONG_EXCHANGES)
    yield Past(long, next_user)
    yield Past((*long, user("q1"), _calls(9)), answer)
    named = (replace(user("q0"), name="zkname"), assistant("a0"))
    yield Past(named, next_user)
    for word in words:
        everywhere = (system(word), user(word), assistant(word))
        yield Past(everywhere, next_user)
        yield Past((*everywhere, user("q1"), _calls(9)), answer)
        yield Past((user(word), assistant("a0")), next_user)
        yield Past((replace(user("q0"), name=word), assistant("a0")), next_user)
        call = ToolCall(f"call_{1:024}", word, '{"k": "v1"}')
        used = (user("q0"), assistant("", [call]), replace(_answer(1), parts=(TextPart(word),)))
        yield Past((*used, assistant("a0")), next_user)
        yield Past((*used, _calls(9)), answer)


LONG_WORDS, LONG_EXCHANGES = 300, 12
"""Of the long history: more than templates are known to count."""


def _pasts_with_calls() -> Iterator[Past]:
    """Behind no earlier calls, behind two in one turn (and a system message), and behind one that led to an answer."""
    asked, next_user = (user("q0"),), (user("next"),)
    one, two = (*asked, _calls(1), _answer(1)), (*asked, _calls(1, 2), _answer(1), _answer(2))
    for before in (asked, two, (system("s0"), *two), (*one, assistant("a1"), user("q1"))):
        yield Past((*before, assistant("done")), next_user)
        yield Past((*before, assistant("done", reasoning="hm")), next_user)
        yield Past((*before, _calls(8)), (_answer(8),))
        yield Past((*before, _calls(8)), (_answer(8), *next_user))
        yield Past((*before, _calls(8, 9)), (_answer(8), _answer(9)))
        yield Past((*before, _calls(8, 9)), (_answer(9), _answer(8)))
        yield Past((*before, _calls(8, 9)), (_answer(8),))
        yield Past((*before, _calls(8, 9)), (_answer(9),))
        yield Past((*before, _calls(8)), next_user)
        yield Past((*before, _calls(8, text="I look.")), (_answer(8),))
        yield Past((*before, _calls(8, reasoning="hm")), (_answer(8),))


def _calls(*numbers: int, text: str = "", reasoning: str | None = None) -> Message:
    name = example_call().name
    calls = [ToolCall(f"call_{n:024}", name, f'{{"k": "v{n}"}}') for n in numbers]
    return assistant(text, calls, reasoning)


def _answer(number: int) -> Message:
    return Message(role="tool", parts=(TextPart(f"r{number}"),), tool_call_id=f"call_{number:024}")


def marked(last: Message) -> ProbeConversation:
    """What an assistant said, the last thing of it by a mark of ours, and with no thought. Calls keep ids and names."""
    if not last.tool_calls:
        return ProbeConversation((assistant(LAST_MARK),), LAST_MARK)
    calls = [replace(call, arguments=f'{{"k": "{LAST_MARK}{n}"}}') for n, call in enumerate(last.tool_calls)]
    said = assistant(FIRST_MARK if last.text else "", calls)
    return ProbeConversation((said,), f"{LAST_MARK}{len(calls) - 1}")


FIRST_MARK, LAST_MARK = "zkbtwo", "zkaone"


def example_call() -> ToolCall:
    """A call for probes, with an id in the gateway's form."""
    return ToolCall(f"call_{0:024}", "probe", '{"probe_key": "probe_value"}')
