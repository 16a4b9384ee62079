"""The codec of a checkpoint's own chat template: render, proved bridge, parser of its grammar. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Tool, TurnRequest
from sandgate.gateway.media.vision import Vision
from sandgate.gateway.tokens.api import NO_NAMES, Parser
from sandgate.gateway.tokens.bridge import NotProved, Tail, TailProver, append, shows_images, unbridgeable
from sandgate.gateway.tokens.client_text import ClientText, SpecialText
from sandgate.gateway.tokens.family_formats import Grammar, detect
from sandgate.gateway.tokens.harmony import HarmonyParser
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.parse import TurnParser, opens_reasoning
from sandgate.gateway.tokens.plain_text import PlainText
from sandgate.gateway.tokens.probe_conversations import (
    TAIL_SHAPES,
    ProbeConversation,
    answers_of,
    example_call,
    known_pair,
)
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.tool_support import probe_tools
from sandgate.gateway.tokens.turn_form import constraint_of
from sandgate.gateway.tokens.variants import Varied
from sandgate.gateway.tokens.vocab import Vocab


class TemplateCodec(PlainText, Varied):
    """Codec (see `api.Codec`) of any checkpoint with a chat template."""

    def __init__(
        self,
        template: ChatTemplate,
        vocab: Vocab,
        *,
        eos_ids: Sequence[int] = (),
        history: History = "sampled",
        special_text: SpecialText = "text",
        vision: Vision | None = None,
    ) -> None:
        self.template = template
        self.vocab = vocab
        self.history = history
        self.vision = vision if template.dialect.images else None
        if self.vision is not None and not template.dialect.videos:
            self.vision = replace(self.vision, video=None)
        self.no_images = "" if self.vision else "its chat template does not show each image once"
        self.grammar: Grammar = detect(template.source, vocab.ids)
        closers = template_closers(template, vocab, next_turn=not eos_ids)
        self._stop_ids = tuple(dict.fromkeys((*eos_ids, *closers)))
        self.words = ClientText(vocab, template.source, self._stop_ids, special_text)
        self._marking = template.marking(self.words)
        self.tool_support = probe_tools(self, self._conversation)
        self.prover = TailProver(self._marking, vocab, frozenset(self._stop_ids), self.words)
        # Under `template` each bridge is compared with the whole render anyway.
        self.looks_back = history == "sampled" and self.prover.looks_back()

    @property
    def name(self) -> str:
        return f"bridge/{self.template.digest}"

    @property
    def tokenizer_digest(self) -> str:
        return self.vocab.digest

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def no_tools(self) -> str:
        return self.tool_support.why_not

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        self._refuse_spelt(messages)
        return self.words.encode(self._marking.render(messages, tools))

    def _conversation(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        return self.words.encode(self._marking.render(messages, tools, generation_prompt=False))

    def bridge(
        self,
        prompt: Ids,
        response: Ids,
        tail: Sequence[Message],
        tools: Sequence[Tool],
        *,
        closed: bool,
        names: Mapping[str, str] = NO_NAMES,
        earlier: Sequence[Message] = (),
    ) -> Ids | ForkReason:
        if reason := unbridgeable(tail):
            return reason
        self._refuse_spelt(tail)
        seen = shows_images(tail)
        if seen and self.vision is None:
            return ForkReason.MULTIMODAL_NOT_BRIDGEABLE
        proved = self.prover.prove(tail, tools, names, earlier if self.looks_back else ())
        if isinstance(proved, NotProved):
            return ForkReason.MULTIMODAL_NOT_BRIDGEABLE if seen else ForkReason.TEMPLATE_NOT_ADDITIVE
        return append(prompt, response, proved, self._stop_ids, closed=closed)

    def _refuse_spelt(self, messages: Sequence[Message]) -> None:
        """Raises BadRequest for words that would be taken for an image, where clients may spell control tokens."""
        if self.vision is None or self.words.are_text:
            return
        words = [self.vocab.texts[token] for token in sorted(self.vision.reserved)]
        for message in messages:
            if spelt := next((word for word in words if word in message.text), None):
                raise BadRequest(
                    f"a text spells {spelt}, which stands for an image of the request", field="messages"
                )

    def parser(self, prompt: Ids, tools: Sequence[Tool], stop: Sequence[str] = ()) -> Parser:
        if self.grammar.harmony:
            return HarmonyParser(self.vocab, tools, stop)
        reasoning = opens_reasoning(self.vocab, self.grammar, prompt)
        return TurnParser(self.vocab, self.grammar, tools, stop, reasoning=reasoning)

    def constraint(self, prompt: Ids, request: TurnRequest) -> dict[str, Any] | None:
        return constraint_of(self.grammar, request, lambda: opens_reasoning(self.vocab, self.grammar, prompt))

    def decode(self, ids: Ids) -> str:
        return self.vocab.decode(ids)

    def spelt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        return self.words.count(messages, tools)

    def shapes(self, tools: Sequence[Tool] = ()) -> dict[str, Tail | NotProved]:
        """For each tail shape, whether it is additive with this template, or why not."""
        called = example_call().name
        return {
            name: self.prover.prove(tail, tools, dict.fromkeys(answers_of(tail), called))
            for name, tail in TAIL_SHAPES.items()
        }


def template_closers(template: ChatTemplate, vocab: Vocab, *, next_turn: bool) -> list[int]:
    """Ids of added tokens with which the template itself ends an assistant's turn.

    It is the first added token right behind the assistant's text, if no text of the same turn comes behind it (Kimi K3
    closes a part of its turn there, and writes on). Where the template puts none there, it is the special
    token that begins the next turn (GLM's ``<|user|>``, ``<|observation|>``: the model samples it to stop). Such tokens
    count only with `next_turn`, for checkpoints that name no end of their own.
    """
    closers: list[int] = []
    for probe, tail in _endings():
        try:
            answered = template.render(probe.messages, generation_prompt=False).rpartition(probe.mark)[2]
            whole = template.render((*probe.messages, *tail))
        except BadRequest:
            continue
        after = whole.partition(probe.mark)[2]
        own = min(((answered.find(text), text) for text in vocab.ids if text in answered), default=None)
        if own is not None and not answered[: own[0]].strip() and not probe.messages[-1].tool_calls:
            if _only_tokens(answered[own[0] :], vocab):
                closers.append(vocab.ids[own[1]])
        elif (
            next_turn
            and after.startswith(answered)
            and not any(vocab.ids[text] in closers for text in vocab.ids if text in answered)
        ):
            begins = [text for text in vocab.ids if after.startswith(text, len(answered))]
            closers += [
                vocab.ids[text]
                for text in sorted(begins, key=len)[-1:]
                if vocab.ids[text] in vocab.special_ids
            ]
    return list(dict.fromkeys(closers))


def _only_tokens(text: str, vocab: Vocab) -> bool:
    """Whether it is added tokens and white space."""
    for token in sorted((token for token in vocab.ids if token in text), key=len, reverse=True):
        text = text.replace(token, " ")
    return not text.strip()


def _endings() -> list[tuple[ProbeConversation, Sequence[Message]]]:
    """Probe conversations with a tail, one for each way in which a turn may end."""
    shapes = [TAIL_SHAPES["user"], TAIL_SHAPES["tool"]]
    return [(known_pair(answers_of(tail), with_system=False)[0], tail) for tail in shapes]
