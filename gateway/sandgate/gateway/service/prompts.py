"""Prompt ids of a request: the parent's path and the bridged tail, or a full render. Long work goes to threads."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sandgate.contract.errors import InvalidBody, PromptTooLong, ToolsNotSupported, Unsupported
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.echo_matching import MatchPolicy
from sandgate.gateway.conversation.message_equality import outline, tools_chars
from sandgate.gateway.conversation.messages import Message, TextPart, TurnRequest
from sandgate.gateway.conversation.retold_text import retold
from sandgate.gateway.conversation.sampled_words import as_sampled
from sandgate.gateway.conversation.shown import NONE_FETCHED, Pictures, Seen, media_of, urls_of
from sandgate.gateway.conversation.tree import Match, Tree
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.placing import expand, stray
from sandgate.gateway.media.spans import Spans, within
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.fair_pool import Lane, lane
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.bridge import shows_images
from sandgate.gateway.tokens.history_check import unchanged

OFF_LOOP_CHARS = 6_000
"""Longer text is rendered in a thread: encoding runs at ~0.6 ms per 1,000 tokens and must not stall the event loop."""

MESSAGE_CHARS = 300
"""A message that is rendered and not encoded counts so many characters, and its own: a slow template takes 0.1 ms for
each, and one that is asked what it writes here is rendered five times."""

TOKEN_CHARS_MAX = 256
"""Characters of the longest token of any vocabulary; those of 128 are runs of spaces and dashes. A request with more
text than a window of such tokens is refused before it is rendered."""

OFF_LOOP_KEYS = 100_000
"""A request with more characters has its blocks keyed in a thread: that takes 0.3 ms for so many characters."""

VARIANT_S = 0.06
"""Seconds of a core that a session is charged for template variables that nobody sent before: probing the template with
them is the model's work, however slow the machine is, and the next session finds it done. An agent that makes up ever
new ones waits after five."""

TEXTS_BYTES_MAX, TEXT_BYTES_MAX = 8 << 20, 256 << 10
"""Decoded parts of branches, which are compared with each later text."""

T = TypeVar("T")
Rendered = tuple[Ids, int, Spans]
"""Ids, how many control tokens the text spells, and where the ids have placeholders of pictures."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt, and its place in the tree."""

    match: Match
    parent: str | None
    fork: str | None
    ids: Ids
    known: int
    """So many of `ids` are the parent's path; the rest is this turn's context."""
    tree_size: int
    """Turns in the tree when it was searched."""
    spelt: int = 0
    """Control tokens that the rendered text spells."""
    media: Spans = ()
    """Where `ids` have placeholders of pictures."""
    pictures: tuple[Picture, ...] = ()
    """The pictures, in the same order."""
    told: Ids | None = None
    """With pictures: `ids` as an engine is sent them that puts the placeholders in itself."""

    @property
    def own_media(self) -> Spans:
        """The spans in this turn's context, with offsets in it."""
        return within(self.media, self.known, len(self.ids))


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes prompts from requests and trees; it changes neither."""

    codec: Codec
    policy: MatchPolicy
    metrics: GatewayMetrics
    pool: Executor
    texts: ByteCache[bytes, str] = field(default_factory=lambda: ByteCache(TEXTS_BYTES_MAX, TEXT_BYTES_MAX))
    pictures: Pictures | None = field(init=False)
    """Reads pictures, if the model takes any."""

    def __post_init__(self) -> None:
        vision = self.codec.vision
        object.__setattr__(
            self, "pictures", Pictures(vision.rule, vision.video) if vision is not None else None
        )

    async def prepare(
        self,
        tree: Tree,
        request: TurnRequest,
        window: int,
        session: str = "",
        fetched: Mapping[str, Seen] = NONE_FETCHED,
    ) -> Prepared:
        """The request's prompt; `fetched`: the images of addresses. Hashes of messages find the parent; token ids
        decide whether it is one. Raises BadRequest where the template refuses the messages, PromptTooLong
        where no tokenizer could make them fit."""
        made, vision = await self._prepare(tree, request, window, session, fetched), self.codec.vision
        if vision is None or not made.media:
            return made
        return replace(made, told=vision.told(made.ids, made.media))

    async def _prepare(
        self, tree: Tree, request: TurnRequest, window: int, session: str, fetched: Mapping[str, Seen]
    ) -> Prepared:
        if request.prompt is not None:
            return await self._given(tree, request, request.prompt, window, lane(self.pool, session))
        length, given = sum(map(chars, request.messages)), tools_chars(request.tools)
        if length > window * TOKEN_CHARS_MAX:
            _refuse_hopeless(request.messages, window)
        pool = lane(self.pool, session)
        codec = self.codec
        if request.template_kwargs:
            codec = await off_loop(pool, codec.variant, request.template_kwargs, most_s=VARIANT_S)
        shown = await self._shown(pool, request.messages, fetched) if shows_images(request.messages) else ()
        seen = await _sized(pool, length, lambda: outline(request), most=OFF_LOOP_KEYS)
        match, size = tree.find(request, self.policy, seen), len(tree)
        with self.metrics.render_s.time():
            added: Rendered | ForkReason | None = match.fork
            if match.parent is not None:
                parent = tree[match.parent]
                added = await self._bridge(codec, tree, parent, request, match.tail, given, pool, shown)
                if added is ForkReason.ASSISTANT_EDITED and match.fork is not None:
                    added = match.fork  # the bridge only sees that an answer stands in the tail
            bridged = _bridged(tree, match, added, size, shown) if isinstance(added, tuple) else None
            if bridged is not None and codec.history == "sampled":
                return bridged
            messages = self._history(codec, tree, match, request)

            def work() -> Rendered:
                conversation = _with_sampled_ids(tree, match, request, messages), request.tools
                ids, media = _expanded(codec, codec.render(*conversation), shown)
                return ids, codec.spelt(*conversation), media

            made = await _sized(pool, length + given, work)
            why = None if isinstance(added, tuple) else added
            if bridged is not None:
                told = bridged.ids
                if await _sized(pool, length + given, lambda: unchanged(codec, told, made[0])):
                    return bridged
                why = ForkReason.HISTORY_REWRITTEN_BY_TEMPLATE
        return self._confirmed(tree, match, why, made, size, shown)

    async def _shown(
        self, pool: Executor, messages: Sequence[Message], fetched: Mapping[str, Seen]
    ) -> tuple[Picture, ...]:
        """The pictures of these messages. Raises Unsupported where the model takes none."""
        if self.pictures is None:
            raise Unsupported(
                f"messages: this model is given text only; images cannot be given: {self.codec.no_images}",
                field="messages",
            )
        return tuple(await off_loop(pool, self.pictures.of, messages, fetched))

    async def _given(
        self, tree: Tree, request: TurnRequest, prompt: str | Ids, window: int, pool: Executor
    ) -> Prepared:
        """A prompt that the client made itself. Of a text, what turns of the session said keeps the ids that were
        sampled; the rest is encoded on its own."""
        size, left_out, spelt = len(tree), False, 0
        if isinstance(prompt, str):
            if len(prompt) > window * TOKEN_CHARS_MAX:
                raise PromptTooLong(tokens=len(prompt) // TOKEN_CHARS_MAX, limit=window)
            turns, codec, text = tree.turns, self.codec, prompt

            def work() -> tuple[Ids, bool, int]:
                known = retold(text, turns, self._text, lead=codec.lead(), stop_ids=codec.stop_ids)
                rest = text[known.chars :]
                if not known.ids:
                    return codec.encode_text(text), False, codec.spelt_in(text)
                added = codec.encode_text(rest, behind=True) if rest else array("i")
                return known.ids + added, known.unclosed, codec.spelt_in(rest)

            with self.metrics.render_s.time():
                ids, left_out, spelt = await _sized(pool, len(prompt) + 4 * len(turns), work)
        else:
            if len(prompt) > window:
                raise PromptTooLong(tokens=len(prompt), limit=window)
            ids = prompt
            if (most := max(ids)) >= self.codec.vocab_size:
                raise InvalidBody(
                    f"{request.prompt_field} has the id {most}; this model's vocabulary has "
                    f"{self.codec.vocab_size}",
                    field=request.prompt_field,
                )
        if self.codec.vision is not None and stray(ids, self.codec.vision, ()):
            raise Unsupported(
                f"{request.prompt_field} has placeholders of images; images are taken in messages only",
                field=request.prompt_field,
            )
        match = tree.place(ids)
        known_ids = len(tree.path_ids(match.parent)) if match.parent else 0
        fork = ForkReason.TOKENS_DIFFER if left_out and match.fork else match.fork
        return Prepared(match, match.parent, _value(fork), ids, known_ids, size, spelt)

    def _text(self, ids: Ids) -> str:
        key = ids.tobytes()
        text = self.texts.get(key)
        if text is None:
            text = self.codec.decode(ids)
            self.texts.put(key, text, len(key) + 4 * len(text))
        return text

    def place_again(self, tree: Tree, request: TurnRequest, prepared: Prepared) -> Match:
        """Where a prepared request belongs now: other turns may have been committed since."""
        return tree.find(request, self.policy) if request.prompt is None else tree.place(prepared.ids)

    @staticmethod
    def _history(codec: Codec, tree: Tree, match: Match, request: TurnRequest) -> Sequence[Message]:
        """The messages that are rendered, if all are."""
        if codec.history == "sampled" or match.parent is None:
            return request.messages
        return as_sampled(request.messages, tree.turns, tree.read_as(match.parent), match.tail)

    def _confirmed(
        self,
        tree: Tree,
        match: Match,
        why: ForkReason | None,
        made: Rendered,
        size: int,
        shown: tuple[Picture, ...],
    ) -> Prepared:
        ids, spelt, media = made
        parent = tree.find_ids(ids, media)
        if parent is None:
            return Prepared(match, None, _value(why), ids, 0, size, spelt, media, shown)
        if parent.id == match.parent:
            why = match.fork
        elif not tree.children(parent.id):
            why = None  # other messages, but the very ids: no branch is left
        known = len(tree.path_ids(parent.id))
        return Prepared(match, parent.id, _value(why), ids, known, size, spelt, media, shown)

    async def _bridge(
        self,
        codec: Codec,
        tree: Tree,
        parent: Turn,
        request: TurnRequest,
        start: int,
        given: int,
        pool: Executor,
        shown: tuple[Picture, ...],
    ) -> Rendered | ForkReason:
        """The bridge from the parent to the messages from `start` on. Tools are rendered once and then remembered, so
        only very long ones count as work; `given` is their length in characters."""
        path, tools = tree.path_ids(parent.id), request.tools
        renamed, echo = tree.renamed(parent, request.messages[:start])
        tail = tree.with_sampled_ids(request.messages[start:], renamed)
        cut = len(path) - len(parent.ids)
        closed = len(parent.ids) > 0 and parent.ids[-1] in codec.stop_ids  # also of a turn that was cut

        said = tree.with_sampled_ids(request.messages[start - 1 : start], renamed)
        names = {call.id: call.name for message in said for call in message.tool_calls}
        past: Sequence[Message] = ()
        if codec.looks_back:
            past = tree.with_sampled_ids(request.messages[:start], renamed, since=start - echo)
        before, earlier = tree.path_media(parent.id), len(media_of(request.messages[:start]))

        def work() -> Rendered | ForkReason:
            if _differs(codec, path, before, shown[:earlier]):
                return ForkReason.MULTIMODAL_NOT_BRIDGEABLE
            ids = codec.bridge(path[:cut], parent.ids, tail, tools, closed=closed, names=names, earlier=past)
            if isinstance(ids, ForkReason):
                return ids
            ids, media = _expanded(codec, ids, shown[earlier:])
            return ids, codec.spelt(tail, ()), media

        size = sum(map(chars, tail)) + (given if given > OFF_LOOP_KEYS else 0)
        size += sum(chars(message) + MESSAGE_CHARS for message in past)
        return await _sized(pool, size, work)


def _with_sampled_ids(
    tree: Tree, match: Match, request: TurnRequest, messages: Sequence[Message]
) -> Sequence[Message]:
    """All messages that are rendered, which may be fewer or more than the request's before its tail."""
    if match.parent is None:
        return tree.with_sampled_ids(messages)
    renamed, echo = tree.renamed(tree[match.parent], request.messages[: match.tail])
    tail = len(request.messages) - match.tail
    return tree.with_sampled_ids(messages, renamed, since=len(messages) - tail - echo)


def _bridged(tree: Tree, match: Match, added: Rendered, size: int, shown: tuple[Picture, ...]) -> Prepared:
    """The parent's path, and the ids that the bridge added."""
    assert match.parent is not None
    path, (ids, spelt, own) = tree.path_ids(match.parent), added
    media = tree.path_media(match.parent) + tuple(span.moved(len(path)) for span in own)
    return Prepared(match, match.parent, _value(match.fork), path + ids, len(path), size, spelt, media, shown)


def _expanded(codec: Codec, ids: Ids, shown: Sequence[Picture]) -> tuple[Ids, Spans]:
    """A render's ids with a placeholder for each patch of its pictures."""
    vision = codec.vision
    return expand(ids, vision, shown) if vision is not None else (ids, ())


def _differs(codec: Codec, path: Ids, media: Spans, shown: Sequence[Picture]) -> bool:
    """Whether a path shows other pictures than these, or has a placeholder of none: the model sampled one."""
    if [span.digest for span in media] != [picture.digest for picture in shown]:
        return True
    return codec.vision is not None and stray(path, codec.vision, media)


async def _sized(pool: Executor, size: int, work: Callable[[], T], most: int = OFF_LOOP_CHARS) -> T:
    return await off_loop(pool, work) if size > most else work()


def chars(message: Message) -> int:
    """Characters of a message that a template may show, and of its images."""
    size = len(message.reasoning or "") + len(message.name or "") + len(message.tool_call_id or "")
    for call in message.tool_calls:
        size += len(call.id) + len(call.name) + len(call.arguments)
    for part in message.parts:
        size += len(part.text) if isinstance(part, TextPart) else sum(map(len, urls_of(part)))
    return size


def _refuse_hopeless(messages: Sequence[Message], window: int) -> None:
    """Raises PromptTooLong where the text alone is too long. What a template may drop, such as the reasoning of earlier
    turns, does not count."""
    least = sum(len(message.text) for message in messages) // TOKEN_CHARS_MAX
    if least > window:
        raise PromptTooLong(tokens=least, limit=window)


async def off_loop(pool: Executor, work: Callable[..., T], *args: Any, most_s: float = math.inf) -> T:
    """Does work that may take more than a few ms in a thread. A session is charged for it, but not for more than
    `most_s` seconds."""
    if isinstance(pool, Lane):
        return await pool.charged_at_most(most_s, work, *args)
    return await asyncio.get_running_loop().run_in_executor(pool, work, *args)


def _value(fork: ForkReason | None) -> str | None:
    return fork.value if fork else None


def refuse_tools(codec: Codec, request: TurnRequest) -> None:
    """Raises ToolsNotSupported for tools that this model would never see, or never be read to have called."""
    if request.tools and codec.no_tools:
        raise ToolsNotSupported(
            f"tools: this model cannot be given tools: {codec.no_tools}; `sandgate doctor --model` says more",
            field="tools",
        )
