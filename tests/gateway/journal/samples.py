"""Records to journal."""

from __future__ import annotations

from msgspec import structs

from sandgate.gateway.journal.records import (
    CUT,
    Acked,
    AdapterServed,
    CapacityChanged,
    Completed,
    Delivered,
    EnginesLabelled,
    EnginesSet,
    FetchedImage,
    GroupClosed,
    ImagesFetched,
    Intent,
    ItemsKept,
    Leased,
    LetGo,
    Nacked,
    Opened,
    PicturesKept,
    PolicyVersion,
    Record,
    ResponseForgotten,
    ResponseKept,
    Retired,
    Rewarded,
    Sealed,
    TaskRow,
    TasksForgotten,
    TasksPushed,
    TurnCommitted,
    TurnsHeld,
)
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.journal.top_logprobs import joined, packed
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Span


def turn(name: str, *, tokens: int = 3, parent: str | None = None) -> TurnCommitted:
    """A turn of `tokens` sampled ids; its reply carries its name, so that it is found in the file's bytes."""
    return TurnCommitted(
        at=1.0,
        turn=name,
        parent=parent,
        fork=None,
        digest=b"d" * 32,
        context=b"\1\0\0\0" * 4,
        ids=b"\2\0\0\0" * tokens,
        logprobs=b"\0\0\0\xbf" * tokens,
        versions=((7, 0, tokens),),
        finish="stop",
        reply=Reply(text=f"<{name}>"),
        prompt_key=b"p" * 16,
        head_key=b"h" * 16,
        prompt_tokens=4,
    )


EVERY_KIND: dict[str, Record] = {
    "opened": Opened(
        at=1.5, spec={"job": "shop", "uid": "q1", "group_size": 4, "metadata": {"ключ": [1, None, 2.5]}}
    ),
    "intent": Intent(at=2.0, turn="t1", digest=b"\0\xff" * 16),
    "turn": turn("t1"),
    "a turn with everything": TurnCommitted(
        at=3.0,
        turn="t2",
        parent="t1",
        fork="tools_changed",
        digest=b"e" * 32,
        index=1,
        context=b"\xff\xff\0\0",
        ids=b"\1\0\0\0\2\0\0\0",
        logprobs=b"\0\0\0\xbf\0\0\x80\xbf",
        versions=((3, 0, 1), (4, 1, 2)),
        finish="length",
        stop_reason=151645,
        reply=Reply(
            text="über",
            reasoning="hm",
            tool_calls=(ReplyCall("buy", '{"n": 7}'),),
            malformed=("<tool_call>{",),
        ),
        prompt_key=b"p",
        head_key=b"h",
        blocks=(b"b1", b"b2"),
        sampling={"temperature": 0.7, "stop": ["\n"]},
        engine="http://10.0.0.5:8000",
        build="vllm 0.25.0",
        logprobs_mode="processed_logprobs",
        renderer="renderers/qwen3@0.1.12",
        prompt_tokens=12,
        cached_tokens=8,
        resampled=True,
        resumed=1,
        notes=("call id renamed",),
        top=joined([packed(((1, -0.5), (9, -1.5))), packed(((2, -1.0),))]),
    ),
    "delivered": Delivered(at=4.0, turn="t1"),
    "delivered in part": Delivered(at=4.0, turn="t2", partly=True),
    "rewarded": Rewarded(at=5.0, turn="t1", reward=0.25, info={"why": "half"}),
    "rewarded, by an id": Rewarded(at=5.0, turn="t1", reward=0.25, reward_id="r-1"),
    "completed": Completed(at=6.0, info={"score": 1}),
    "sealed": Sealed(at=7.0, failure_class="policy", failure_reason="TurnLimit", reward=-1.0, discount=0.9),
    "sealed, with the worth of its turns": Sealed(at=7.0, discount=0.9, turns_worth=0.25),
    "sealed, with turns that are in no row": Sealed(at=7.0, turns_worth=None),
    "leased": Leased(at=8.0, lease="l1", sessions=("s1", "s2"), until=308.0),
    "acked": Acked(at=9.0, lease="l1", sessions=("s1",)),
    "acked, but for one's rows": Acked(at=9.0, lease="l1", sessions=("s1", "s2"), left_out=("s2",)),
    "nacked": Nacked(at=10.0, lease="l1"),
    "group closed": GroupClosed(at=11.0, job="shop", uid="q1", sessions=("s1",)),
    "policy version": PolicyVersion(at=12.0, version=5),
    "engines set": EnginesSet(at=13.0, urls=("http://10.0.0.5:8000", "http://10.0.0.6:8000")),
    "tasks pushed": TasksPushed(
        at=14.0,
        tasks=(
            TaskRow(1, "q1", [{"role": "user", "content": "купи"}], {"n": 7}),
            TaskRow(2, "q2", "sell", None),
        ),
        last=True,
    ),
    "tasks forgotten": TasksForgotten(at=15.0, upto=1),
    "capacity changed": CapacityChanged(at=16.0, by=-1),
    "held": TurnsHeld(at=17.0, paused=True),
    "adapter": AdapterServed(at=18.5, version=6, name="sandgate-shop-v6-0123456789ab"),
    "labelled": EnginesLabelled(at=18.0, labelled=True),
    "a cut turn": structs.replace(turn("t3", parent="t1"), schema=6, finish=CUT, spelt=2),
    "let go": LetGo(at=19.0, turn="t4"),
    "parts in another order": structs.replace(
        turn("t5", parent="t1"), reply=Reply(text="ab", order=(("text", 1), ("call", 0), ("text", 1)))
    ),
    "items": ItemsKept(at=20.0, items=((b"d" * 16, b'{"role":"user"}'), (b"e" * 16, b'"auto"'))),
    "response": ResponseKept(
        at=20.0,
        turn="t1",
        model="shop",
        previous="t0",
        items=(b"d" * 16,),
        echo=(("tool_choice", b"e" * 16),),
        sealed=True,
    ),
    "response gone": ResponseForgotten(at=21.0, turn="t1"),
    "a turn with a picture": structs.replace(
        turn("t6", parent="t1"), schema=8, media=(Span(0, 1, b"p" * 16),)
    ),
    "pictures": PicturesKept(
        at=22.0,
        pictures=(Picture(digest=b"p" * 16, width=28, height=28, grid=(1, 2, 2), png=b"\x89PNG"),),
    ),
    "a video": PicturesKept(
        at=24.0,
        schema=10,
        pictures=(
            Picture(
                digest=b"v" * 16,
                width=28,
                height=28,
                grid=(1, 2, 2),
                png=b"",
                frames=(b"\x89PNG",) * 2,
                seconds=2.0,
            ),
        ),
    ),
    "images fetched": ImagesFetched(
        at=23.0,
        images=(FetchedImage("https://images.example.com/a.png", b"k" * 16, b"s" * 32, 784, b"p" * 16),),
    ),
    "retired": Retired(
        at=25.0,
        schema=11,
        job="shop",
        uid="q1",
        sample=1,
        attempt=2,
        size=4,
        opened=1.0,
        acked=True,
        turns=9,
        tokens=4_096,
        reward=0.5,
        failure_class="policy",
        failure_reason="TurnLimit",
        detail="limit reached: turns",
        flags=("remote",),
    ),
}
