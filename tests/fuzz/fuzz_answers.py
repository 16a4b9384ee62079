"""Law: whatever ids an engine samples, every codec reads them, the same in any pieces; what was read can be told as
JSON, shown to the model again, and is then read as what it was shown as.

`python -m tests.fuzz` looks longer than the tests do.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.tokens.api import CallDelta, Codec, ParseDelta, ReasoningDelta, TextDelta
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.jsonslice import sayable
from sandgate.gateway.tokens.probe_conversations import user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec, FamilyError
from sandgate.gateway.tokens.tool_support import PROBE_TOOL
from tests.gateway.tokens.zoo import FAMILY, zoo

TOOLS = (
    PROBE_TOOL,
    Tool(
        "buy", schema={"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}}
    ),
)
WORDS = (
    "Hm.", "\n", "\n\n", " ", '{"name": "buy", "arguments": {"item": "kiwi", "n": 7}}', '{"name": "buy"',
    "functions.buy:0",
    '"arguments": ', "{", "}", "[", "]", '"', "\\", "\\ud800", '"\\udc00"', "NaN", "-Infinity", "1e999", "9" * 400,
    "[" * 300, '{"a":' * 80, "call:buy{item:", "buy(item=", ")", "kiwi", "\0", "\u2028", "é", "😀", "</", "<", ">",
    "<function=buy>", "<parameter=item>", "</parameter>", "</function>", '<invoke name="buy">', "</invoke>",
    "```json\n", "```", "assistant", "to=functions.buy", " to=", "analysis", "final", "commentary", "json",
)  # fmt: skip
OFFLINE = {"gpt-oss"}


@dataclass(frozen=True)
class Subject:
    """A codec and what its answers are made of."""

    name: str
    codec: Codec
    prompt: Ids
    specials: tuple[int, ...]
    words: tuple[Ids, ...]
    answers: tuple[Ids, ...]
    """As its own template writes them."""


@functools.cache
def subjects() -> tuple[Subject, ...]:
    """Every template, and every family that the `renderers` package serves."""
    made: list[Subject] = []
    for name, specimen in zoo().items():
        codecs: list[TemplateCodec | FamilyCodec] = [specimen.codec()]
        family = FAMILY.get(name)
        if family is not None and family not in OFFLINE:
            with contextlib.suppress(FamilyError):
                codecs.append(FamilyCodec(family, specimen.vocab, eos_ids=specimen.eos_ids))
        for codec in codecs:
            try:
                prompt = codec.render((user("q"),), TOOLS)
            except BadRequest:
                continue  # nothing can be asked of it
            vocab = codec.vocab
            words = tuple(vocab.encode(word) for word in WORDS)
            answers = tuple(filter(None, (written(codec, reply) for reply in REPLIES)))
            made.append(Subject(name, codec, prompt, tuple(vocab.ids.values()), words, answers))
    return tuple(made)


def message(reply: Reply) -> Message:
    """The reply as a client sends it back."""
    calls = tuple(
        ToolCall(f"call_{number:024d}", call.name, call.arguments)
        for number, call in enumerate(reply.tool_calls)
    )
    text = (TextPart(reply.text),) if reply.text else ()
    return Message("assistant", text, reasoning=reply.reasoning or None, tool_calls=calls)


CALL = ToolCall("call_0", "buy", '{"item": "kiwi", "n": 7}')
REPLIES = (
    Message("assistant", (TextPart("two words"),)),
    Message("assistant", (TextPart("so"),), reasoning="Hm."),
    Message("assistant", (), tool_calls=(CALL,)),
    Message("assistant", (TextPart("so"),), reasoning="Hm.", tool_calls=(CALL, CALL)),
)


def written(codec: TemplateCodec | FamilyCodec, said: Message) -> Ids:
    """The ids with which the template writes an assistant's message, up to the end of the turn; empty if it does
    not write it behind its own generation prompt."""
    try:
        prompt = codec.render((user("q"),), TOOLS)
        whole = codec._conversation((user("q"), said), TOOLS)
    except BadRequest:
        return array("i")
    if whole[: len(prompt)] != prompt:
        return array("i")
    answer = whole[len(prompt) :]
    end = next((place for place, token in enumerate(answer) if token in codec.stop_ids), len(answer))
    return answer[: end + 1]


def sampled(chance: random.Random, subject: Subject) -> Ids:
    """An answer: noise, pieces of markup, or what the template writes, changed here and there."""
    ids: list[int] = []
    if subject.answers and chance.random() < 0.6:
        ids += chance.choice(subject.answers)
        for _ in range(chance.randint(0, 4)):
            at = chance.randint(0, len(ids))
            match chance.randrange(5):
                case 0:
                    del ids[at : at + chance.randint(1, 6)]
                case 1:
                    ids[at:at] = [chance.choice(subject.specials)]
                case 2:
                    ids[at:at] = chance.choice(subject.words)
                case 3:
                    ids[at:at] = ids[at : at + chance.randint(1, 12)]
                case _:
                    ids[at:at] = [chance.randrange(subject.codec.vocab_size)]
        return array("i", ids[: chance.choice([len(ids), len(ids), chance.randint(0, len(ids))])])
    for _ in range(chance.randint(0, 12)):
        match chance.randrange(4):
            case 0:
                ids += [chance.randrange(subject.codec.vocab_size) for _ in range(chance.randint(1, 8))]
            case 1:
                ids.append(chance.choice(subject.specials))
            case _:
                ids += chance.choice(subject.words)
    return array("i", ids)


def read(codec: Codec, prompt: Ids, ids: Ids, pieces: Sequence[int]) -> tuple[list[ParseDelta], Reply]:
    parser = codec.parser(prompt, TOOLS)
    deltas: list[ParseDelta] = []
    start = 0
    for size in pieces:
        deltas += parser.feed(ids[start : start + size])
        start += size
    deltas += parser.feed(ids[start:])
    more, reply = parser.finish()
    return deltas + more, reply


def told(deltas: Sequence[ParseDelta]) -> tuple[str, str, dict[int, list[str]]]:
    """What a client that streams has at the end."""
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            call = calls.setdefault(delta.index, ["", ""])
            call[0] += delta.name or ""
            call[1] += delta.arguments
    return text, reasoning, calls


UNREAD = {
    "llama.cpp/Kimi-K3",
    "llama.cpp/meetkai-functionary-medium-v3.2",
    "llama.cpp/muse-glimmer",
    "trl/muse_glimmer",
    "vllm/tool_chat_template_hunyuan_a13b",
    "vllm/tool_chat_template_muse_glimmer",
}
"""Their turns begin with a header, or with a label in letters, that no grammar here knows: it is read as words."""
MARKS = (
    "</", "<|", "|>", "<tool", "<think", "<｜", "[TOOL", "[THINK", "[/THINK", "<seed", "<minimax", "<function",
    "<channel", '{"name"',
)  # fmt: skip
"""What may be a marker in an answer's words: templates look for some of them in what an assistant is told to have said
(Qwen's cuts it at `</think>`), so that it is another message afterwards."""


def stable(subject: Subject, reply: Reply) -> bool:
    """Whether the model is shown the reply in such words that it is read as the same again. Blanks aside: templates
    trim and add them. False if the template does not write it behind its own generation prompt."""
    codec = subject.codec
    assert isinstance(codec, TemplateCodec | FamilyCodec)
    words = reply.text + reply.reasoning
    unsayable = any(
        not sayable(json.loads(call.arguments)) for call in reply.tool_calls
    )  # 1e999, half a character
    if subject.name in UNREAD or unsayable or any(mark in words for mark in MARKS):
        return False
    shown = written(codec, message(reply))
    if not shown:
        return False
    _, again = read(codec, subject.prompt, shown, ())
    twice = written(codec, message(again))
    if not twice:  # trimmed, or read as a thought: the template writes that elsewhere
        return False
    first, second = ("".join(codec.decode(ids).split()) for ids in (shown, twice))
    assert first == second, f"shown as {first!r}, read as {again}, shown then as {second!r}"
    return True


def run(seed: int, inputs: int) -> Counter[str]:
    """How many answers were read, how many of them again."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(inputs):
        subject = chance.choice(subjects())
        codec, prompt = subject.codec, subject.prompt
        ids = sampled(chance, subject)
        try:
            _, reply = read(codec, prompt, ids, ())
            pieces = [chance.randint(1, 5) for _ in range(chance.randint(0, 12))]
            deltas, again = read(codec, prompt, ids, pieces)
            assert again == reply, f"in pieces {pieces} it is {again}, whole {reply}"
            whole = [[call.name, call.arguments] for call in reply.tool_calls]
            assert told(deltas) == (reply.text, reply.reasoning, dict(enumerate(whole))), "streamed otherwise"
            orjson.dumps((reply.text, reply.reasoning, whole))
            for call in reply.tool_calls:
                json.loads(call.arguments)
            if chance.random() < 0.1:  # far dearer than all the rest
                seen["shown again"] += stable(subject, reply)
            seen["calls" if reply.tool_calls else "text"] += 1
        except Exception as error:
            raise AssertionError(f"{subject.name} {codec.name}, ids {ids.tolist()}: {error!r}") from error
    return seen
