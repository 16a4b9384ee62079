"""The generic bridge: ids of new messages after a sampled turn, from the checkpoint's template, and proved. (pure)

The tail is rendered after short known conversations. What follows the assistant's last words there is
`gap + closer + rest`: the gap is the end of its own markup (nothing for text, ``"}}\\n</tool_call>`` for a call), the
closer is the first added token that ends a turn, the rest is the tail with its generation prompt. The ids of
`closer + rest` are the tail's ids if

1. the messages before the assistant render as they do without the tail (the template moves nothing: rule *kept*);
2. the gap and the closer are there without the tail as well, or the render without the tail ends exactly where the
   closer begins (so the closer is not text of the tail: rule *own closer*);
3. two different known conversations, at two different times, give the same text (rule *same*: a time that a template
   prints stands in the first prompt, as it was then);
4. the closer is an added token at which text may be cut without changing ids (rule *cut*);
5. decoding the ids gives the text back, up to the tokenizer's own normalisation (rule *decodes*);
6. where a template was found to look back at start-up (`looks_back`: it numbers calls, or a word switches a mode), its
   render of the whole conversation ends with the text, or with the one that 1 and 2 give for that very conversation
   (rule *here*).

If any rule fails, the answer is a fork reason, never a guess.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from msgspec.structs import replace

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import Message, TextPart, Tool
from sandgate.gateway.tokens.api import NO_NAMES
from sandgate.gateway.tokens.client_text import ClientText
from sandgate.gateway.tokens.probe_conversations import (
    FIRST_MARK,
    LAST_MARK,
    ProbeConversation,
    answers_of,
    example_call,
    known_pair,
    marked,
    pasts,
    system,
    user,
)
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.template_values import tools_key
from sandgate.gateway.tokens.vocab import Vocab

BASES_BYTES_MAX, BASE_BYTES_MAX = 32 << 20, 1 << 20
"""Size limits of cached renders without a tail: of all, and of one. There is one for each (tools, shape) in use, of 1
to 50 kB; with the longest lists of tools, of 400."""


ENTRY_BYTES = 4 << 10
"""Bytes that the messages of a probe conversation count, which are a part of its cache key."""


MOMENTS = (
    datetime(2001, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
    datetime(2038, 11, 26, 17, 48, 59, 891011, tzinfo=timezone(timedelta(hours=5))),
)
"""When probe conversations are held: whatever a template prints of its clock, or asks it, differs between the two. What
is compared is of one moment, as a clock that prints seconds would else tell any two renders apart."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A proved tail. `ids[0]` is the closer of the assistant turn before it."""

    ids: Ids
    closer: int
    own: bool
    """The closer belongs to the assistant's turn, and is not what begins the next (GLM's `<|user|>`)."""


@dataclass(frozen=True, slots=True)
class NotProved:
    """Why a tail is not proved, for people: docs/models.md and `sandgate doctor` show it."""

    why: str


DIFFERS = NotProved("the tail renders differently after different conversations")
DROPS_CALLS = NotProved("the template drops what the assistant said")


@dataclass(frozen=True, slots=True)
class _Behind:
    """What follows an assistant's words in a render: `text` begins with the closer."""

    closer: str
    text: str
    own: bool

    def ends(self, whole: str) -> bool:
        """Whether a render ends so, behind the closer: the assistant's turn is as it was sampled, and its end too."""
        return whole.endswith(self.text[len(self.closer) :])


@dataclass(frozen=True, slots=True)
class _Base:
    """The render of a probe conversation without a tail: its head (two forms), and the text behind the mark."""

    heads: tuple[str, str]
    after_mark: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A probe conversation, and its messages as the template sees them."""

    key: object
    """Equal only for the same conversation."""
    probe: ProbeConversation
    given: Sequence[dict[str, Any]]
    template: ChatTemplate
    """The template at one of `MOMENTS`."""

    def under(self, answers: Sequence[str]) -> Sequence[dict[str, Any]]:
        """The messages with the calls of the last under the ids that a tail answers; our own where it names none."""
        *before, last = self.given
        calls = self.probe.messages[-1].tool_calls
        ids = [answer or call.id for answer, call in zip(answers, calls, strict=True)]
        return [*before, self.template.calling(last, ids)]


PROBE_CALLS_MAX = 16
"""Calls of a probe conversation that is kept; a tail that answers more has its own made."""


class TailProver:
    """Proves tails for one template and one tokenizer. Thread-safe."""

    def __init__(
        self, template: ChatTemplate, vocab: Vocab, stop_ids: frozenset[int], words: ClientText
    ) -> None:
        self._template = template
        self._then = tuple(template.at(moment) for moment in MOMENTS)
        self._vocab = vocab
        self._words = words
        self._stops = {vocab.texts[i]: i for i in stop_ids if i in vocab.texts}
        self._with_system = self._takes((system("s"), user("q")))
        self._probes: dict[tuple[int, bool], tuple[_Known, _Known]] = {}
        self._bases: ByteCache[object, _Base | NotProved] = ByteCache(BASES_BYTES_MAX, BASE_BYTES_MAX)

    def prove(
        self,
        tail: Sequence[Message],
        tools: Sequence[Tool],
        names: Mapping[str, str] = NO_NAMES,
        earlier: Sequence[Message] = (),
    ) -> Tail | NotProved:
        """The ids of `tail` behind a closed assistant turn, closer and generation prompt included, or why not. `names`:
        call id -> function, of the calls that the tail answers, for templates that write it into the answer.
        `earlier`: the messages before it, for templates that look back at them (rule *here*)."""
        proof = self._additive(tail, tools, names)
        if earlier and isinstance(proof, _Behind):
            proof = self._here(earlier, tail, tools, proof)
        if isinstance(proof, NotProved):
            return proof
        if not self._vocab.segments.is_cut(proof.closer):
            return NotProved(f"text cannot be cut at {proof.closer!r} with this tokenizer")
        ids = self._words.encode(proof.text)
        if not self._words.decodes_to(ids, proof.text):
            return NotProved("decoding the tail's ids does not give its text")
        return Tail(ids, self._vocab.ids[proof.closer], proof.own)

    def looks_back(self) -> bool:
        """Whether what the template writes for a tail that is additive behind probe conversations depends on what came
        before it all the same: tried with all that templates are known to look at. Then `prove` wants `earlier`."""
        tools = (Tool(example_call().name),)
        proofs: dict[tuple[tuple[Message, ...], bool], _Behind | NotProved] = {}
        for past in pasts(sorted(self._template.asks_for())):
            called = tools if past.tail[0].role == "tool" or _calls(past.earlier) else ()
            key = (past.tail, bool(called))
            if key not in proofs:
                names = dict.fromkeys(answers_of(past.tail), tools[0].name)
                proofs[key] = self._additive(past.tail, called, names)
            proof = proofs[key]
            if isinstance(proof, NotProved):
                continue
            whole = self._whole(past.earlier, past.tail, called)
            if whole is not None and not proof.ends(whole):
                return True
        return False

    def _here(
        self, earlier: Sequence[Message], tail: Sequence[Message], tools: Sequence[Tool], proof: _Behind
    ) -> _Behind | NotProved:
        """What the template writes for the tail behind these very messages: what is proved, or, where it looks back at
        them, what it writes behind the assistant's last turn with our mark in it."""
        whole = self._whole(earlier, tail, tools)
        if whole is None or proof.ends(whole):
            return proof
        last = marked(earlier[-1])
        before = [replace(message, reasoning=None) for message in earlier[:-1]]
        then = self._then[0]
        try:
            given = then.given((*before, *last.messages))
            given_tools = then.given_tools(tools)
            given_tail = then.given(tail, before=len(given))
            told = then.write([*given, *given_tail], given_tools)
        except BadRequest as error:
            return NotProved(str(error))
        found = self._behind(self._render_base(then, given, last.mark, given_tools), told, last.mark)
        if isinstance(found, NotProved):
            return found
        spoilt = any(mark in text for mark in (FIRST_MARK, LAST_MARK) for text in (whole, found.text))
        return DIFFERS if spoilt or not found.ends(whole) else found

    def _whole(
        self, earlier: Sequence[Message], tail: Sequence[Message], tools: Sequence[Tool]
    ) -> str | None:
        """The template's own text for all of it; None if it refuses it, and so says nothing that a bridge could differ
        from: a call that the model spelt wrong, most often."""
        try:
            return self._template.render((*earlier, *tail), tools)
        except BadRequest:
            return None

    def _additive(
        self, tail: Sequence[Message], tools: Sequence[Tool], names: Mapping[str, str]
    ) -> _Behind | NotProved:
        """What the template writes for the tail behind probe conversations."""
        answers = answers_of(tail)
        proof = self._both(tail, tools, answers)
        if proof is DIFFERS and answers and all(call_id in names for call_id in answers):
            proof = self._both(tail, tools, answers, [names[call_id] for call_id in answers])
        if proof is DROPS_CALLS:
            # A template without tools: what it renders after an assistant that only talks.
            proof = self._both(tail, tools, ())
        return proof

    def _both(
        self,
        tail: Sequence[Message],
        tools: Sequence[Tool],
        answers: Sequence[str],
        names: Sequence[str] = (),
    ) -> _Behind | NotProved:
        """What follows the assistant's words, if it is the same in both probe conversations."""
        try:
            given_tools = self._template.given_tools(tools)
            given_tail = self._template.given(tail, before=1)
            pair = self._known(len(answers), tuple(names), shows_images(tail))
        except BadRequest as error:
            return NotProved(str(error))
        texts = []
        for known in pair:
            after = self._tail_text(known, answers, given_tail, tools, given_tools)
            if isinstance(after, NotProved):
                return after
            texts.append(after)
        if texts[0] != texts[1]:
            return DIFFERS
        return texts[0]

    def _known(self, calls: int, names: tuple[str, ...], seen: bool) -> tuple[_Known, _Known]:
        """The probe conversations, under call ids of our own."""
        key = (calls, seen)
        kept = None if names else self._probes.get(key)
        if kept is None:
            pair = known_pair([""] * calls, with_system=self._with_system, names=names, seen=seen)
            first, second = (
                _Known((calls, seen, names, probe.mark), probe, then.given(probe.messages), then)
                for probe, then in zip(pair, self._then, strict=True)
            )
            kept = first, second
            if not names and calls <= PROBE_CALLS_MAX:
                self._probes[key] = kept
        return kept

    def _tail_text(
        self,
        known: _Known,
        answers: Sequence[str],
        tail: Sequence[dict[str, Any]],
        tools: Sequence[Tool],
        given_tools: list[dict[str, Any]] | None,
    ) -> _Behind | NotProved:
        """What follows the assistant's words in one probe conversation.

        Call ids are new at every turn, and few templates print them. So the base of the same conversation under ids of
        our own is cached, and proof enough where it agrees. Where it does not, the base under the tail's ids decides.
        """
        probe = known.probe
        given, then = known.under(answers), known.template
        try:
            whole = then.write([*given, *tail], given_tools)
        except BadRequest as error:
            return NotProved(str(error))
        tail_text = self._behind(self._base(known, tools, given_tools), whole, probe.mark)
        if isinstance(tail_text, NotProved) and any(answers):
            base = self._render_base(then, given, probe.mark, given_tools)
            return self._behind(base, whole, probe.mark)
        return tail_text

    def _behind(self, base: _Base | NotProved, whole: str, mark: str) -> _Behind | NotProved:
        """What follows the mark in the render `whole`, compared with the render of the conversation alone."""
        if isinstance(base, NotProved):
            return base
        head = next((head for head in base.heads if whole.startswith(head)), None)
        if head is None:
            return NotProved("the template renders earlier messages differently once the tail is there")
        start = whole.find(mark, len(head))
        if start < 0:
            return DROPS_CALLS
        after = whole[start + len(mark) :]
        if (replaced := self._replaced(base.after_mark, after)) is not None:
            return _Behind(replaced, after, own=True)
        first_stop = self._closer(after)
        if first_stop is None:
            return NotProved("no stop token ends the assistant's turn")
        where, closer = first_stop
        end = where + len(closer)
        own = base.after_mark[:end] == after[:end]
        next_turn = where == len(base.after_mark) and after.startswith(base.after_mark)
        if not (own or next_turn):
            return NotProved("no stop token of its own ends the assistant's turn")
        return _Behind(closer, after[where:], own)

    def _replaced(self, alone: str, after: str) -> str | None:
        """The token with which the template closes a turn in the middle, where it ends the last turn with another one
        (harmony: `<|end|>` for the sampled `<|return|>`). Another special token comes right behind it: one with text
        behind it begins the next turn."""
        if alone.strip() not in self._stops:
            return None
        closer = self._special_at(after)
        closes = (
            closer is not None
            and closer not in self._stops
            and self._special_at(after[len(closer) :].lstrip())
        )
        return closer if closes else None

    def _special_at(self, text: str) -> str | None:
        """The special token that the text begins with."""
        special = map(self._vocab.texts.get, self._vocab.special_ids)
        return max((token for token in special if token and text.startswith(token)), key=len, default=None)

    def _closer(self, text: str) -> tuple[int, str] | None:
        """The position of the first stop token, and its text."""
        stops = [(text.find(stop), stop) for stop in self._stops]
        return min(((start, stop) for start, stop in stops if start >= 0), default=None)

    def _base(
        self, known: _Known, tools: Sequence[Tool], given_tools: list[dict[str, Any]] | None
    ) -> _Base | NotProved:
        key = (known.key, tools_key(tools))
        base = self._bases.get(key)
        if base is None:
            base = self._render_base(known.template, known.given, known.probe.mark, given_tools)
            self._bases.put(key, base, _cost(key[1], base))
        return base

    def _render_base(
        self,
        template: ChatTemplate,
        given: Sequence[dict[str, Any]],
        mark: str,
        tools: list[dict[str, Any]] | None,
    ) -> _Base | NotProved:
        before = given[:-1]
        try:
            bare = template.write(before, tools, generation_prompt=False)
            asked = template.write(before, tools, generation_prompt=True)
            answered = template.write(given, tools, generation_prompt=False)
        except BadRequest as error:
            return NotProved(str(error))
        start = answered.rfind(mark)
        if start < 0:
            return DROPS_CALLS
        # The longer head is tried first: a template may end a prompt without generation prompt differently.
        return _Base((asked, bare), answered[start + len(mark) :])

    def _takes(self, messages: Sequence[Message]) -> bool:
        try:
            return messages[0].text in self._template.render(messages)
        except BadRequest:
            return False


def _cost(tools: tuple[str, ...], base: _Base | NotProved) -> int:
    texts = [*base.heads, base.after_mark] if isinstance(base, _Base) else [base.why]
    return ENTRY_BYTES + sum(map(len, [*texts, *tools]))


def append(
    prompt: Ids, response: Ids, tail: Tail, stop_ids: Collection[int], *, closed: bool
) -> Ids | ForkReason:
    """The ids to append to `prompt + response`. A sampled closer is not repeated. Another stop token stays where it was
    sampled, in the closer's place (`<|endoftext|>` for `<|im_end|>`); not where the closer is what begins the next
    turn: then the other one began another."""
    if not closed:
        return array("i", tail.ids)
    last = response[-1] if response else prompt[-1] if prompt else -1
    if last != tail.closer and not (tail.own and last in stop_ids):
        return ForkReason.TEMPLATE_NOT_ADDITIVE
    return tail.ids[1:]


def unbridgeable(tail: Sequence[Message]) -> ForkReason | None:
    """The fork reason of a tail that can never be bridged; None for other tails."""
    if not tail:
        return ForkReason.TEMPLATE_NOT_ADDITIVE
    if any(message.role == "assistant" for message in tail):
        return ForkReason.ASSISTANT_EDITED
    return None


def _calls(messages: Sequence[Message]) -> bool:
    return any(message.tool_calls for message in messages)


def shows_images(tail: Sequence[Message]) -> bool:
    """Whether the tail has an image, or a video."""
    return any(not isinstance(part, TextPart) for message in tail for part in message.parts)
