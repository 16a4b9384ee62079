"""The codec over a checkpoint's own chat template: renders, the verified bridge, its grammar's parser. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sandgate.contract.errors import BadRequest, ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Tool, ToolChoice
from sandgate.gateway.tokens.api import Parser
from sandgate.gateway.tokens.bridge import NotProved, Tail, TailProver, append, unbridgeable
from sandgate.gateway.tokens.forced import structured_outputs
from sandgate.gateway.tokens.grammar import Grammar, detect
from sandgate.gateway.tokens.known import TAIL_SHAPES, assistant, user
from sandgate.gateway.tokens.parse import TurnParser
from sandgate.gateway.tokens.rewrites import rewritten
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.vocab import Vocab

History = Literal["sampled", "template"]

HEADER_IDS_MAX = 64
"""Ids at the end of a prompt in which a generation prompt may have opened the reasoning."""


class TemplateCodec:
    """Codec (see `api.Codec`) of any checkpoint with a chat template."""

    def __init__(
        self,
        template: ChatTemplate,
        vocab: Vocab,
        *,
        eos_ids: Sequence[int] = (),
        history: History = "sampled",
    ) -> None:
        self.template = template
        self.vocab = vocab
        self.history = history
        self.grammar: Grammar = detect(template.source, vocab.ids)
        closers = template_closers(template, vocab)
        self._stop_ids = tuple(dict.fromkeys((*eos_ids, *closers)))
        self.prover = TailProver(template, vocab, frozenset(self._stop_ids))

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
    def vocab_size(self) -> int:
        return self.vocab.size

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        return self.vocab.encode(self.template.render(messages, tools))

    def bridge(
        self, prompt: Ids, response: Ids, tail: Sequence[Message], tools: Sequence[Tool], *, closed: bool
    ) -> Ids | ForkReason:
        if reason := unbridgeable(tail):
            return reason
        proved = self.prover.prove(tail, tools)
        if isinstance(proved, NotProved):
            return ForkReason.TEMPLATE_NOT_ADDITIVE
        if self.history == "template" and rewritten(
            self, prompt, response, tail, tools, proved, closed=closed
        ):
            return ForkReason.HISTORY_REWRITTEN_BY_TEMPLATE
        return append(prompt, response, proved, closed=closed)

    def parser(self, prompt: Ids, tools: Sequence[Tool], stop: Sequence[str] = ()) -> Parser:
        return TurnParser(self.vocab, self.grammar, tools, stop, reasoning=self.opens_reasoning(prompt))

    def constraint(self, tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any] | None:
        return structured_outputs(self.grammar, tools, choice)

    def decode(self, ids: Ids) -> str:
        return self.vocab.decode(ids)

    def opens_reasoning(self, prompt: Ids) -> bool:
        """True if the generation prompt at the end of `prompt` opened the reasoning and did not close it."""
        if self.grammar.think is None:
            return False
        opens, closes = self.grammar.think
        tail = prompt[-HEADER_IDS_MAX:]
        start = 0
        for at in range(len(tail) - 1, -1, -1):
            text = self.vocab.texts.get(tail[at])
            if text in {opens, closes}:
                return text == opens
            if tail[at] in self.vocab.special_ids:
                start = at + 1
                break
        text = self.vocab.decode(tail[start:])
        return text.rfind(opens) > text.rfind(closes)

    def shapes(self, tools: Sequence[Tool] = ()) -> dict[str, Tail | NotProved]:
        """For each tail shape, whether it is additive with this template, or why not."""
        return {name: self.prover.prove(tail, tools) for name, tail in TAIL_SHAPES.items()}


def template_closers(template: ChatTemplate, vocab: Vocab) -> list[int]:
    """Ids of added tokens that the template puts right behind what an assistant says, before a user or at the end."""
    found = []
    said = assistant("zkqa")
    for tail in ((), (user("next"),)):
        try:
            text = template.render((user("q"), said, *tail), generation_prompt=False)
        except BadRequest:
            continue
        _, mark, after = text.rpartition("zkqa")
        first = min(((after.find(t), t) for t in vocab.ids if mark and t in after), default=None)
        if first is not None and not after[: first[0]].strip():
            found.append(vocab.ids[first[1]])
    return list(dict.fromkeys(found))
