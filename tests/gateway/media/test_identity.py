"""Two conversations that differ in a picture alone never join, whatever else they have in common."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.gateway.conversation.echo_matching import MatchPolicy
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, TurnRequest
from sandgate.gateway.conversation.shown import Pictures, media_of
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.journal.records import TurnCommitted, decode, encode
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.media.spans import within
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.fair_pool import FairPool
from sandgate.gateway.service.prompts import Prepared, Prompts
from tests.gateway.media.seeing import RULE, codec, ids, placeholder, url

URLS = [url(color) for color in ("red", "green", "white")]
"""Of one size, so that their placeholders are alike."""
PICTURES = Pictures(RULE).of([Message("user", tuple(map(ImagePart, URLS)))])
DIGEST_OF = {one: picture.digest for one, picture in zip(URLS, PICTURES, strict=True)}
ANSWERS = ["a cat", "a dog"]
Said = list[tuple[tuple[TextPart | ImagePart, ...], str]]
"""A conversation: what is asked, and the answer, turn by turn."""

parts = st.lists(
    st.sampled_from(["a", "b"]).map(TextPart) | st.sampled_from(URLS).map(ImagePart), min_size=1, max_size=3
)
asked = st.lists(st.tuples(parts.map(tuple), st.sampled_from(ANSWERS)), min_size=1, max_size=3)


def commit(tree: Tree, prepared: Prepared, answer: str) -> None:
    sampled = array("i", ids(answer + "<|im_end|>"))
    record = TurnCommitted(
        at=0.0, turn=f"t{len(tree)}", parent=prepared.parent, fork=prepared.fork, digest=b"",
        context=prepared.ids[prepared.known :].tobytes(), ids=sampled.tobytes(), logprobs=bytes(4 * len(sampled)),
        versions=((0, 0, len(sampled)),), finish="stop", reply=Reply(text=answer),
        prompt_key=prepared.match.prompt_key, head_key=prepared.match.head_key, blocks=prepared.match.blocks,
        prompt_tokens=len(prepared.ids), media=prepared.own_media, schema=8,
    )  # fmt: skip
    again = decode(encode(record))
    assert isinstance(again, TurnCommitted)
    tree.apply(again)


async def speak(said: Sequence[Said]) -> None:
    pool = FairPool()
    prompts, tree = Prompts(codec(), MatchPolicy(), GatewayMetrics(), pool), Tree()
    try:
        for conversation in said:
            messages: list[Message] = []
            for shown, answer in conversation:
                messages.append(Message("user", shown))
                request = TurnRequest(model="m", messages=tuple(messages))
                prepared = await prompts.prepare(tree, request, 4096)
                digests = [DIGEST_OF[part.url] for part in media_of(messages) if isinstance(part, ImagePart)]
                assert [span.digest for span in prepared.media] == digests
                assert prepared.ids.count(placeholder()) == 4 * len(digests)
                if prepared.parent is not None:
                    path = tree.path_ids(prepared.parent)
                    assert prepared.ids[: prepared.known] == path
                    assert within(prepared.media, 0, prepared.known) == tree.path_media(prepared.parent)
                commit(tree, prepared, answer)
                assert [span.digest for span in tree.path_media(tree.turns[-1].id)] == digests
                messages.append(Message("assistant", (TextPart(answer),)))
    finally:
        pool.shutdown()


@settings(max_examples=60, deadline=None)
@given(st.lists(asked, min_size=2, max_size=3))
def test_a_turns_path_shows_the_pictures_of_its_request_and_no_others(said: list[Said]) -> None:
    asyncio.run(speak(said))


@given(asked, st.integers(0, 10), st.sampled_from(URLS))
@settings(max_examples=40, deadline=None)
def test_a_conversation_with_one_other_picture_is_another(said: Said, at: int, other: str) -> None:
    where = [
        (turn, place)
        for turn, (shown, _) in enumerate(said)
        for place, part in enumerate(shown)
        if isinstance(part, ImagePart)
    ]
    changed = list(said)
    if where:
        turn, place = where[at % len(where)]
        shown, answer = said[turn]
        changed[turn] = ((*shown[:place], ImagePart(other), *shown[place + 1 :]), answer)
    asyncio.run(speak([said, changed, said]))
