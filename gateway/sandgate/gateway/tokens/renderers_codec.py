"""The codec of a model family that the `renderers` package knows: its hand-written render, bridge and parse. (pure)

`renderers` is imported on first use only: it costs a second, and many checkpoints never need it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall, TurnRequest
from sandgate.gateway.tokens.api import NO_NAMES, Parser
from sandgate.gateway.tokens.bridge import shows_images, unbridgeable
from sandgate.gateway.tokens.buffered_parser import HeldParser
from sandgate.gateway.tokens.client_text import ClientText, SpecialText
from sandgate.gateway.tokens.family_formats import Grammar, detect
from sandgate.gateway.tokens.family_seam import (
    Seam,
    Shape,
    common,
    known,
    shape_of,
    with_names,
    with_own_names,
)
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.marks import unmark
from sandgate.gateway.tokens.parse import TurnParser, opens_reasoning
from sandgate.gateway.tokens.plain_text import PlainText
from sandgate.gateway.tokens.probe_conversations import assistant, example_call, user
from sandgate.gateway.tokens.roles import Roles, find_roles
from sandgate.gateway.tokens.template_values import PLAIN, message_dict, tools_json
from sandgate.gateway.tokens.tool_support import probe_tools
from sandgate.gateway.tokens.turn_form import constraint_of
from sandgate.gateway.tokens.variants import Varied
from sandgate.gateway.tokens.vocab import Vocab

SUFFIX_IDS = 256
"""Ids of a prompt that a family's bridge is shown: it looks for the generation prompt, never further back.
`suffix_suffices` proves that per codec; a family that fails it gets whole prompts."""


SEAMS_KEPT, SEAM_MESSAGES = 512, 64
"""Seams that a codec keeps, and the longest tail whose seam is kept."""


class FamilyError(ValueError):
    """This family cannot serve this checkpoint; the text says why."""


class TokenizerShim:
    """What `renderers` asks of a tokenizer, over a `Vocab` and its segment cache."""

    def __init__(self, vocab: Vocab, words: ClientText, name: str, eos_id: int | None) -> None:
        self._vocab = vocab
        self._words = words
        self.name_or_path = name
        self.unk_token_id: int | None = None
        self.eos_token_id = eos_id

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return self._words.encode(text).tolist()

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._vocab.decode(ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._vocab.id_of(tokens)
        return [self._vocab.id_of(token) for token in tokens]


def family_of(names: Sequence[str]) -> str | None:
    """The family that `renderers` maps one of these hub names to."""
    if not any(name.count("/") == 1 and not name.startswith(("/", ".")) for name in names):
        return None
    families: dict[str, str] = import_module("renderers.base").MODEL_RENDERER_MAP
    return next((families[name] for name in names if name in families), None)


class FamilyCodec(PlainText, Varied):
    """Codec (see `api.Codec`) of one family. Raises FamilyError where the checkpoint's tokens are not the family's."""

    vision = None
    looks_back = False
    no_images = "its codec renders text only"

    def __init__(
        self,
        family: str,
        vocab: Vocab,
        *,
        eos_ids: Sequence[int] = (),
        history: History = "sampled",
        variables: Mapping[str, Any] | None = None,
        model_name: str = "",
        template: str = "",
        special_text: SpecialText = "text",
        joint: str = PLAIN.joint,
    ) -> None:
        """`template`: the checkpoint's own, which tells what its control tokens are; `joint`: of its dialect."""
        self._dialect = replace(PLAIN, joint=joint)
        self.family = family
        self.vocab = vocab
        self.history = history
        self.words = ClientText(vocab, template, eos_ids, special_text)
        shim = TokenizerShim(vocab, self.words, model_name, eos_ids[0] if eos_ids else None)
        self._renderer: Any = _create(family, shim, history, dict(variables or {}))
        stops = [int(token_id) for token_id in self._renderer.get_stop_token_ids()]
        self._stop_ids = tuple(dict.fromkeys((*stops, *eos_ids)))
        self._roles, self._asks_names, self._drops_texts = Roles(), False, False
        self._drops_texts = not self._writes_texts()
        self._asks_names = self._finds_no_names()
        self._roles = find_roles(lambda messages: vocab.decode(self.render(messages, ())))
        self.grammar: Grammar | None = self._find_grammar()
        self._suffix = SUFFIX_IDS
        self._seams: dict[Shape, Seam | None] = {}
        self.tool_support = probe_tools(self, self._conversation)
        if not self._suffix_suffices():
            self._suffix = 0

    @property
    def name(self) -> str:
        return f"renderers/{self.family}@{version('renderers')}"

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
        return self._render(messages, tools, generation_prompt=True)

    def _conversation(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        return self._render(messages, tools, generation_prompt=False)

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation_prompt: bool) -> Ids:
        told = with_own_names(messages) if self._asks_names else messages
        if self._drops_texts:  # before some are joined: it is named as the client counts
            self._refuse_texts([message_dict(message, self._dialect) for message in told])
        dicts = [message_dict(message, self._dialect) for message in self._roles.adapt(told)]
        try:
            ids = self._renderer.render_ids(
                [self.words.message(one) for one in dicts],
                tools=self.words.tools(tools, tools_json(tools)),
                add_generation_prompt=generation_prompt,
            )
        except Exception as error:
            raise BadRequest(
                f"renderer {self.family} refuses these messages: {unmark(str(error))}", field="messages"
            ) from error
        return array("i", ids)

    def _refuse_texts(self, dicts: Sequence[dict[str, Any]]) -> None:
        """Raises BadRequest for calls whose arguments are no object: a call without them is another call."""
        for at, given in enumerate(dicts):
            for n, call in enumerate(given.get("tool_calls") or ()):
                if isinstance(call["function"]["arguments"], str):
                    where = f"messages[{at}].tool_calls[{n}].function.arguments"
                    raise BadRequest(
                        f"{where} is no JSON object, and renderer {self.family} would leave it out; "
                        "send the arguments as an object, or what the model wrote as `content`",
                        field=where,
                    )

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
        if shows_images(tail):
            return ForkReason.MULTIMODAL_NOT_BRIDGEABLE
        try:
            ids = self._bridge(self._tail_of(prompt), response, tail, tools, closed=closed, names=names)
        except BadRequest:
            ids = None
        if ids is None:
            kept = self.history == "sampled"
            return ForkReason.TEMPLATE_NOT_ADDITIVE if kept else ForkReason.HISTORY_REWRITTEN_BY_TEMPLATE
        return ids

    def parser(self, prompt: Ids, tools: Sequence[Tool], stop: Sequence[str] = ()) -> Parser:
        if self.grammar is None:
            return HeldParser(self._renderer, self._tail_of(prompt).tolist(), tools, stop)
        reasoning = opens_reasoning(self.vocab, self.grammar, prompt)
        return TurnParser(self.vocab, self.grammar, tools, stop, reasoning=reasoning)

    def constraint(self, prompt: Ids, request: TurnRequest) -> dict[str, Any] | None:
        grammar = self.grammar or Grammar()
        return constraint_of(grammar, request, lambda: opens_reasoning(self.vocab, grammar, prompt))

    def decode(self, ids: Ids) -> str:
        return self.vocab.decode(ids)

    def spelt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        return self.words.count(messages, tools)

    def _bridge(
        self,
        prompt: Ids,
        response: Ids,
        tail: Sequence[Message],
        tools: Sequence[Tool],
        *,
        closed: bool,
        names: Mapping[str, str] = NO_NAMES,
    ) -> Ids | None:
        """What to add to `prompt + response`, if the family's bridge is known to be right for such a tail."""
        if closed and (not response or response[-1] not in self._stop_ids):
            return None
        seam = self._seam(shape_of(tail, names))
        if seam is None:
            return None
        made = self._made(prompt, response, with_names(tail, names) if seam.named else tail, tools)
        return None if made is None else seam.behind(response, made, self._stop_ids, closed=closed)

    def _made(self, prompt: Ids, response: Ids, tail: Sequence[Message], tools: Sequence[Tool]) -> Ids | None:
        """What the family's own bridge adds to `prompt + response`, if it leaves those as they are."""
        dicts = [message_dict(message, self._dialect) for message in self._roles.adapt(tail, before=1)]
        try:
            made = self._renderer.bridge_to_next_turn(
                prompt.tolist(),
                response.tolist(),
                [self.words.message(one) for one in dicts],
                tools=self.words.tools(tools, tools_json(tools)),
            )
        except Exception:  # noqa: BLE001  (as in render: not proved is not bridged)
            return None
        if made is None:
            return None
        ids = array("i", made.token_ids)
        path = prompt + response
        return ids[len(path) :] if ids[: len(path)] == path and len(ids) > len(path) else None

    def _seam(self, shape: Shape) -> Seam | None:
        """The seam of tails of this shape; None if the family's render refuses them, or its bridge gives another."""
        if shape in self._seams:
            return self._seams[shape]
        try:
            seam = self._find_seam(shape)
        except BadRequest:
            seam = None
        if len(shape.messages) <= SEAM_MESSAGES:
            if len(self._seams) >= SEAMS_KEPT:
                self._seams.clear()
            self._seams[shape] = seam
        return seam

    def _find_seam(self, shape: Shape) -> Seam | None:
        """Raises BadRequest where the family refuses such messages."""
        short = known(shape)
        asked, alone = self.render(short.head[:1], ()), self._conversation(short.head, ())
        whole = self.render((*short.head, *short.tail), ())
        start, at = self._stop_behind(asked, whole)
        _, own = self._stop_behind(asked, alone)
        if at is None:  # harmony closes a turn in the middle with a token that is no stop
            return None if own is None else Seam(closer=None, own=True, named=False)
        end = at + 1
        for named, tail in ((True, with_names(short.tail, short.names)), (False, short.tail)):
            if self._made(whole[:start], whole[start:end], tail, ()) == whole[end:]:
                return Seam(whole[at], own=own is not None and alone[own] == whole[at], named=named)
        return None

    def _stop_behind(self, asked: Ids, whole: Ids) -> tuple[int, int | None]:
        """Where `whole` goes on behind the prompt `asked`, and where its first stop token is from there on."""
        start = common(asked, whole)
        return start, next((at for at in range(start, len(whole)) if whole[at] in self._stop_ids), None)

    def _tail_of(self, prompt: Ids) -> Ids:
        """The end of a prompt, from a special token on; all of it where the family needs that."""
        if not self._suffix or len(prompt) <= self._suffix:
            return prompt
        start = len(prompt) - self._suffix
        for index in range(start, len(prompt)):
            if prompt[index] in self.vocab.special_ids:
                return prompt[index:]
        return prompt

    def _suffix_suffices(self) -> bool:
        """On probe turns behind long prompts, the end of the prompt gives the same bridge as all of it."""
        long = user("word " * SUFFIX_IDS)
        tails = ((user("next"),), (Message(role="tool", tool_call_id=example_call().id),))
        heads = ((long,), (user("a"), assistant("b"), long, assistant("c"), long))
        try:
            prompts = [self.render(head, ()) for head in heads]
        except BadRequest:
            return False
        for prompt in prompts:
            for said in ("fine", "<think>\nhm\n</think>\n\nfine", "<think>\nhm"):
                response = self.vocab.encode(said)
                for tail in tails:
                    for ids in (response + array("i", self._stop_ids[:1]), response):
                        short = self._made(self._tail_of(prompt), ids, tail, ())
                        if short != self._made(prompt, ids, tail, ()):
                            return False
        return True

    def _writes_texts(self) -> bool:
        """Whether the render writes arguments that are no JSON object (Qwen3), and does not leave them out."""
        word = "zkarguments"
        for text in (word, f'["{word}"]'):
            call = ToolCall(example_call().id, example_call().name, text)
            try:
                if word not in self.vocab.decode(self.render((user("q"), assistant("", (call,))), ())):
                    return False
            except BadRequest:
                return False
        return True

    def _finds_no_names(self) -> bool:
        """Whether the render writes `unknown` for an answer without a name, whatever the calls are (gpt-oss)."""
        call = example_call()
        answers = [
            Message("tool", (TextPart("r"),), tool_call_id=call.id, name=name) for name in (None, call.name)
        ]
        try:
            without, named = (
                self.vocab.decode(self.render((user("q"), assistant("", (call,)), answer), ()))
                for answer in answers
            )
        except BadRequest:
            return False
        return without.count("unknown") > named.count("unknown")

    def _find_grammar(self) -> Grammar | None:
        """From what the family renders for a call; None (its own parser, at the end of the turn) if it is not known."""
        messages = (user("q"), assistant("", (example_call(),), reasoning="thought"))
        try:
            text = self.vocab.decode(self.render(messages, (Tool(name=example_call().name),)))
        except BadRequest:
            return None
        grammar = detect(text, self.vocab.ids)
        return grammar if grammar.calls is not None else None


def _create(family: str, shim: TokenizerShim, history: History, variables: dict[str, Any]) -> Any:
    try:
        config = import_module("renderers.configs").config_from_name(family)
        if config is None:
            raise FamilyError("auto is no family")
        if history == "sampled":
            config = type(config)(thinking_retention="all")
        return import_module("renderers.base").create_renderer(
            shim, config, chat_template_kwargs=variables or None
        )
    except Exception as error:
        raise FamilyError(f"{type(error).__name__}: {error}") from error
