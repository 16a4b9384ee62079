"""Journal records, one class per kind, and their encoding (msgpack, schema version). (pure)

Records are the truth about sessions; memory is a cache of their fold. They are encoded as msgpack maps with a type tag
and a schema number. Old versions stay readable; newer ones are refused.
Token arrays are packed little-endian: int32 ids, float32 logprobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Union

import msgspec

from sandgate.contract.errors import CorruptRecord, NewerRecord
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.top_logprobs import NONE
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Span

SCHEMA = 12
"""The newest schema. A record carries the first schema that knew its kind, so that a journal without new kinds stays
readable for older gateways."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: int = 1
    """1 if the bytes have none."""
    at: float
    """Unix seconds."""

    def __post_init__(self) -> None:
        if self.schema > SCHEMA:
            raise NewerRecord(seen=self.schema, known=SCHEMA)


class Opened(_Record, frozen=True, kw_only=True, tag="opened"):
    """A session was created. `spec` is the body of POST /v1/sessions after defaults."""

    spec: dict[str, Any]


class Intent(_Record, frozen=True, kw_only=True, tag="intent"):
    """The engine is about to be asked for a generation. Not fsynced: nothing was sent to the client yet."""

    turn: str
    digest: bytes


class TurnCommitted(_Record, frozen=True, kw_only=True, tag="turn"):
    """One sampled turn, exactly as the engine made it.

    The turn's prompt ids are its parent's prompt + response ids (recursively) followed by `context`.
    """

    turn: str
    parent: str | None
    """None for a root: `context` is then the whole prompt."""
    fork: str | None
    """ForkReason, if this turn starts a later root or leaves its branch."""
    digest: bytes
    """Digest of the request (see TurnRequest.digest)."""
    index: int = 0
    """Which of the request's n choices."""
    context: bytes
    """int32 LE: ids that this turn adds before sampling."""
    ids: bytes
    """int32 LE: sampled ids."""
    logprobs: bytes
    """float32 LE: one per sampled id."""
    versions: tuple[tuple[int, int, int], ...]
    """(version, start, end) spans covering the sampled ids."""
    finish: str
    """stop | length | abort; CUT since schema 6."""
    stop_reason: str | int | None = None
    reply: Reply
    prompt_key: bytes
    """Chain key of the whole request as it was resolved against the tree."""
    head_key: bytes
    """Key of system messages + tools."""
    blocks: tuple[bytes, ...] = ()
    """Keys of the request's blocks after the head that the parent's path does not have (for naming forks)."""
    sampling: dict[str, Any] = {}
    """As sent to the engine."""
    engine: str = ""
    """URL of the replica."""
    build: str = ""
    """Name and version of the replica's software; empty in older records, like the next two."""
    logprobs_mode: str = ""
    renderer: str = ""
    prompt_tokens: int
    cached_tokens: int = 0
    resampled: bool = False
    """A kill had cut an earlier generation of the same request short; this one is new."""
    resumed: int = 0
    notes: tuple[str, ...] = ()
    """How an echo was recognised where it was lossy (rule N10)."""
    top: msgspec.Raw = NONE
    """Top logprobs of each token, if the client asked for them (see journal.top_logprobs)."""
    pieces: bytes = b""
    """int32 LE: how many tokens came at once, if it was streamed; a replay is cut the same way."""
    spelt: int = 0
    """Control tokens that the client's text spells, in what this turn adds (`model.specialTokensInText`)."""
    created: int = 0
    """Unix seconds: `created` in the answer, so that a replay has the same."""
    role: str = ""
    """TurnRole; empty in older records."""
    role_why: str = ""
    """What told it (see conversation.turn_roles)."""
    thread: str = ""
    """What the client's headers call its conversation, and the one that started that."""
    parent_thread: str = ""
    media: tuple[Span, ...] = ()
    """Where `context` has placeholders of pictures (offsets in it), and of which. Since schema 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        end = 0
        for span in self.media:
            if span.start < end or span.length < 1 or 4 * (span.start + span.length) > len(self.context):
                raise CorruptRecord(f"turn {self.turn}: its context has no picture at {span.start}")
            end = span.start + span.length
        if len(self.ids) % 4 or len(self.context) % 4 or len(self.logprobs) != len(self.ids):
            raise CorruptRecord(
                f"turn {self.turn}: {len(self.ids)} bytes of ids, {len(self.logprobs)} of logprobs, "
                f"{len(self.context)} of context"
            )
        covered = 0
        for _, start, end in self.versions:
            if start != covered or end < start:
                raise CorruptRecord(f"turn {self.turn}: version spans leave a gap at {covered}")
            covered = end
        if covered != len(self.ids) // 4:
            raise CorruptRecord(f"turn {self.turn}: versions cover {covered} of {len(self.ids) // 4} ids")


CUT = "cut"
"""`finish` of a turn whose client let go of the stream, or whose session ended, before its end. Its ids are those that
had been sampled; the client may have seen them. It answers no request: a retry is sampled anew. Its versions are those
set when it was asked for: an engine's own report comes with the end of an answer."""


class Delivered(_Record, frozen=True, kw_only=True, tag="delivered"):
    """The answer was written to the client's connection in full."""

    turn: str
    partly: bool = False
    """Not in full: the client let go of the stream when it had been sent some of it, and the turn was committed all the
    same."""
    unsure: bool = False
    """It may have been: a kill lost the record of it, if there was one. Written by the next life of the process, so
    that later ones know it, too; a retry still gets the same answer."""


class Rewarded(_Record, frozen=True, kw_only=True, tag="rewarded"):
    """A reward for one turn, or for the whole session (`turn` None): its score."""

    turn: str | None
    reward: float
    info: dict[str, Any] = {}
    reward_id: str = ""
    """The caller's own: asked again with it, the same turn has it. Empty if it gave none, and in older journals; older
    gateways pass over it."""


class Completed(_Record, frozen=True, kw_only=True, tag="completed"):
    """The agent called /complete."""

    info: dict[str, Any] = {}


class Sealed(_Record, frozen=True, kw_only=True, tag="sealed"):
    """The session ended; its tree is final. `aborted`: none of it is ever trained on."""

    aborted: bool = False
    failure_class: str | None = None
    failure_reason: str | None = None
    detail: str = ""
    reward: float | None = None
    info: dict[str, Any] = {}
    discount: float = 1.0
    complete: bool = True
    shared_nodes: str = "once"
    turns_worth: float | msgspec.UnsetType | None = msgspec.UNSET
    """The reward of the main row where only turns were rewarded, for those who list sessions; rows are made of the
    rewards themselves. Unset where the session has a reward of its own or none at all, and in older journals."""


class Leased(_Record, frozen=True, kw_only=True, tag="leased"):
    """Groups handed to a trainer until `until` (unix seconds). Session field of the row is the empty string."""

    lease: str
    sessions: tuple[str, ...]
    until: float
    kept: int = 0
    """Starts of the gateway since a trainer made or renewed it, at each of which it was given the time that it had."""


class Acked(_Record, frozen=True, kw_only=True, tag="acked"):
    """A trainer acknowledged these sessions of a lease: it keeps them for good."""

    lease: str
    sessions: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Those of them of which it was given no rows, as none could be made."""


class Nacked(_Record, frozen=True, kw_only=True, tag="nacked"):
    """A trainer gave a lease back."""

    lease: str


class GroupClosed(_Record, frozen=True, kw_only=True, tag="closed"):
    """Only these sessions count for this task (quorum reached, retries used up). Session field of the row is the empty
    string."""

    job: str
    uid: str
    sessions: tuple[str, ...]


class PolicyVersion(_Record, frozen=True, kw_only=True, tag="version"):
    """The trainer's weights advanced."""

    version: int


class _Second(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 2 added; their bytes say so."""

    schema: int = 2


class EnginesSet(_Second, frozen=True, kw_only=True, tag="engines"):
    """The engine's replicas from now on, instead of the configured ones. Session field of the row is the empty
    string."""

    urls: tuple[str, ...]


class TaskRow(msgspec.Struct, frozen=True, array_like=True):
    """One pushed task."""

    number: int
    """Numbers start at 1, in the order of pushing; none is given twice."""
    uid: str
    prompt: Any
    data: Any


class TasksPushed(_Second, frozen=True, kw_only=True, tag="pushed"):
    """Tasks that the trainer pushed. Session field of the row is TASKS."""

    tasks: tuple[TaskRow, ...]
    last: bool = False
    """No more tasks will come."""


class TasksForgotten(_Second, frozen=True, kw_only=True, tag="forgotten"):
    """Tasks up to this number are finished. Session field of the row is TASKS."""

    upto: int
    known: bytes = b""
    """In a compacted log: digests of those that are remembered, 16 bytes each (`service.task_queue`)."""


class _Third(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 3 added; their bytes say so."""

    schema: int = 3


class CapacityChanged(_Third, frozen=True, kw_only=True, tag="capacity"):
    """AReaL's trainer granted so many more sessions, or (negative) one took its place. Session field of the row is the
    empty string."""

    by: int


class _Fourth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 4 added; their bytes say so."""

    schema: int = 4


class TurnsHeld(_Fourth, frozen=True, kw_only=True, tag="held"):
    """A weight update holds new turns, or lets them go on: a gateway that is killed in the middle of one must not
    sample under the old version. Session field of the row is the empty string."""

    paused: bool
    update: str = ""
    """The weight update that began by this, if it was named: what an older one says is refused by later lives of the
    process, too. Empty in older journals; older gateways pass over it."""


class _Fifth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 5 added; their bytes say so."""

    schema: int = 5


class EnginesLabelled(_Fifth, frozen=True, kw_only=True, tag="labelled"):
    """Whether the labels of the engines' weights carry versions. A later life of the gateway must know it: engines may
    have restarted, too. Session field of the row is the empty string."""

    labelled: bool


class _Sixth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 6 added; their bytes say so."""

    schema: int = 6


class LetGo(_Sixth, frozen=True, kw_only=True, tag="let_go"):
    """The client let go of a generation before any of its tokens was sent. How much of it was sampled is unknown; it
    counts as a turn where turns are limited."""

    turn: str


class _Seventh(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 7 added; their bytes say so."""

    schema: int = 7


class ItemsKept(_Seventh, frozen=True, kw_only=True, tag="items"):
    """What clients sent that later requests may refer to, each content once."""

    items: tuple[tuple[bytes, bytes], ...]
    """(digest, JSON)."""


class ResponseKept(_Seventh, frozen=True, kw_only=True, tag="response"):
    """A response (Responses with `store`), in the commit of its turn: what can be asked for again, and gone on from."""

    turn: str
    model: str
    """As the client called it."""
    previous: str | None = None
    """The turn that it goes on from."""
    items: tuple[bytes, ...] = ()
    """Digests of its own input items."""
    echo: tuple[tuple[str, bytes], ...] = ()
    """Fields of the request that the response says again -> digest of their JSON."""
    sealed: bool = False


class ResponseForgotten(_Seventh, frozen=True, kw_only=True, tag="response_gone"):
    """The client deleted a response. Its turn stays."""

    turn: str


class _Eighth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 8 added; their bytes say so."""

    schema: int = 8


class PicturesKept(_Eighth, frozen=True, kw_only=True, tag="pictures"):
    """Pictures that turns of the session show, each once, in the commit of the first of them. Make it with `kept`."""

    pictures: tuple[Picture, ...]

    @staticmethod
    def kept(pictures: Iterable[Picture], *, at: float) -> PicturesKept:
        """Of schema 10 with a video among them, and 9 with a picture of another kind than Qwen-VL's grids: an older
        gateway would read these as such."""
        found = tuple(pictures)
        grids = all(picture.kind == "grid" for picture in found)
        schema = 10 if any(picture.frames for picture in found) else 8 if grids else 9
        return PicturesKept(at=at, pictures=found, schema=schema)


class _Ninth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 9 added; their bytes say so."""

    schema: int = 9


class FetchedImage(msgspec.Struct, frozen=True, array_like=True):
    """What an address gave."""

    address: str
    key: bytes
    """Of the address, however it is spelt (media.allowed_hosts)."""
    sha256: bytes
    """Of the bytes that came."""
    pixels: int
    """Of the image as it came."""
    digest: bytes
    """Of the picture that the model is shown of it."""


class ImagesFetched(_Ninth, frozen=True, kw_only=True, tag="fetched"):
    """Addresses of images that were fetched for the session, in one commit with the pictures, before a turn that shows
    them: the session never asks there again."""

    images: tuple[FetchedImage, ...]


RETIRED_DETAIL_CHARS = 64
"""Of a failure's text: whoever counts causes tells them apart by it."""


class Retired(_Record, frozen=True, kw_only=True, tag="retired"):
    """All that is kept of a session whose group was acknowledged long enough ago: how it ended, for a driver that
    comes late. Session field of the row is RETIRED and the session's id. `at`: of its last change. Some 200 bytes with
    the row, however long it was. Make it with `service.retired.line_of`: its bytes leave out what is as usual, so the
    schema, 11, is given each time."""

    job: str = ""
    uid: str = ""
    sample: int = 0
    attempt: int = 0
    size: int = 1
    """Of its group."""
    opened: float
    aborted: bool = False
    acked: bool = False
    """It counted for its group, and a trainer has it for good."""
    turns: int = 0
    tokens: int = 0
    reward: float | None = None
    failure_class: str | None = None
    failure_reason: str | None = None
    detail: str = ""
    """Its failure's, cut to RETIRED_DETAIL_CHARS."""
    flags: tuple[str, ...] = ()
    """Names in the metadata it was created with whose value was true."""


class _Twelfth(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Kinds that schema 12 added; their bytes say so."""

    schema: int = 12


class AdapterServed(_Twelfth, frozen=True, kw_only=True, tag="adapter"):
    """The trainer's weights advanced, and engines serve them as an adapter of this name beside the weights that they
    were started with. A PolicyVersion ends that. Session field of the row is the empty string."""

    version: int
    name: str


RETIRED = "~retired/"
"""How the session fields of Retired begin; no session can have such an id."""
TASKS = "~tasks"
"""Session field of the task queue's log, which is compacted by itself; no session can have this id."""


Record = Union[  # noqa: UP007 - msgspec wants the union as a value
    Opened,
    Intent,
    TurnCommitted,
    Delivered,
    Rewarded,
    Completed,
    Sealed,
    Leased,
    Acked,
    Nacked,
    GroupClosed,
    PolicyVersion,
    EnginesSet,
    TasksPushed,
    TasksForgotten,
    CapacityChanged,
    TurnsHeld,
    EnginesLabelled,
    LetGo,
    ItemsKept,
    ResponseKept,
    ResponseForgotten,
    PicturesKept,
    ImagesFetched,
    Retired,
    AdapterServed,
]

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class _Version(msgspec.Struct):
    schema: int = 1


_VERSION: msgspec.msgpack.Decoder[_Version] = msgspec.msgpack.Decoder(_Version)


def encode(record: Record) -> bytes:
    """The record as bytes of the journal."""
    return _ENCODER.encode(record)


def size(record: Record) -> int:
    """Bytes that the record takes in the journal."""
    return len(encode(record))


def decode(raw: bytes) -> Record:
    """Inverse of `encode`. Raises NewerRecord or CorruptRecord."""
    try:
        seen = _VERSION.decode(raw).schema
        if seen > SCHEMA:
            raise NewerRecord(seen=seen, known=SCHEMA)
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"not a journal record: {error}") from error
