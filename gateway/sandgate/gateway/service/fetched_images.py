"""Images that a request names by address: fetched once in a session, and recorded before anything is told.

The same address within a session is the same image, whatever the host says later: a retry, a fork and a replay after a
restart are shown what the first turn was shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from weakref import WeakValueDictionary

from sandgate.contract.errors import CorruptRecord, InvalidBody, MediaUnavailable, SandgateError
from sandgate.contract.media_hosts import Origin
from sandgate.gateway.config import Config, SessionLimits
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message
from sandgate.gateway.conversation.shown import CACHE_BYTES, PICTURE_BYTES_MAX, Seen, refuse_many
from sandgate.gateway.journal.records import FetchedImage, ImagesFetched, PicturesKept, Record
from sandgate.gateway.media.allowed_hosts import Address, AllowedHosts, address_of, allowed_hosts
from sandgate.gateway.media.pictures import PIXELS_MAX, REQUEST_PIXELS_MAX, Picture, read_within
from sandgate.gateway.media.rules import Rule
from sandgate.gateway.service.fair_pool import FairPool
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions

FRESH_MAX = 32
"""Addresses that one turn may bring which the session has not fetched; all of them but one may be of earlier turns."""
AT_ONCE, AT_ONCE_PER_SESSION = 32, 4
"""Fetches in this process, each of up to 8 MiB, and for one session. Of one host, where several are listed, half as
many: one that is slow must not keep those of the others waiting."""
TURN_S = 60.0
"""For all that a turn has fetched, waiting for a place included; SDKs give up after 10 minutes."""
Fetch = Callable[[Address, str], Awaitable[bytes]]
_Named = tuple[Address, str]


@dataclass(slots=True)
class _Room:
    """What is left for one turn."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_PER_SESSION))
    pixels: int = REQUEST_PIXELS_MAX


@dataclass(slots=True)
class FetchedImages:
    """The images of addresses, for all sessions of a process."""

    sessions: Sessions
    allowed: AllowedHosts
    fetch: Fetch
    pool: FairPool
    rule: Rule
    limits: SessionLimits
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    hosts: dict[Origin, asyncio.Semaphore] = field(default_factory=dict)
    """Of each listed one, its places."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """One turn of a session fetches at a time: two that name the same address are shown the same."""
    cache: ByteCache[tuple[str, bytes], Picture] = field(
        default_factory=lambda: ByteCache(CACHE_BYTES, PICTURE_BYTES_MAX)
    )

    async def of(self, session: Session, messages: Sequence[Message]) -> Mapping[str, Seen]:
        """The picture of each address in these messages, by its URL. Durable when it returns. Raises Unsupported,
        InvalidBody, LimitReached, MediaUnavailable, JournalUnavailable; then nothing is recorded."""
        refuse_many(messages)
        images = (part for one in messages for part in one.parts if isinstance(part, ImagePart))
        parts = {image.url: image.field for image in images if image.field}
        if not parts:
            return {}
        named = {url: (address_of(url, where), where) for url, where in parts.items()}
        lock = self.locks.get(session.session_id)
        if lock is None:
            lock = self.locks[session.session_id] = asyncio.Lock()
        async with lock:
            fresh = {
                address.key: (address, where)
                for address, where in named.values()
                if address.key not in session.fetched
            }
            for address, where in fresh.values():
                self.allowed.check(address, where)
            if fresh:
                await self._add(session, list(fresh.values()))
        return {url: await self._seen(session, address.key) for url, (address, _) in named.items()}

    async def _add(self, session: Session, fresh: Sequence[_Named]) -> None:
        if len(fresh) > FRESH_MAX:
            raise InvalidBody(
                f"the request names {len(fresh)} images that the session has not fetched; at most {FRESH_MAX} are "
                "fetched for one turn",
                field=fresh[FRESH_MAX][1],
            )
        self.sessions.refuse_over_limits(session, self.limits, 0)
        self.sessions.refuse_over_share(session)
        room = _Room()
        tasks = [asyncio.ensure_future(self._one(session.session_id, one, room)) for one in fresh]
        try:
            async with asyncio.timeout(TURN_S):
                made = await asyncio.gather(*tasks)
        except TimeoutError:
            raise MediaUnavailable(f"the images of this turn took longer than {TURN_S:g} s") from None
        except MediaUnavailable as error:
            if error.unreached:  # no address in a host brings this about, so no agent does
                session.call_failed(error, shaped=False)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        session.refuse_if_ended()
        pictures = {picture.digest: picture for _, picture in made if picture.digest not in session.pictures}
        now = self.sessions.now()
        kept: list[Record] = [PicturesKept.kept(pictures.values(), at=now)] if pictures else []
        kept.append(ImagesFetched(at=now, images=tuple(image for image, _ in made)))
        self.sessions.refuse_over_share(session, *kept)
        await self.sessions.record(session, *kept)
        for image, picture in made:
            self._remember(session, image.key, picture)

    async def _one(self, session_id: str, named: _Named, room: _Room) -> tuple[FetchedImage, Picture]:
        address, where = named
        async with room.places, self._of_host(address.origin), self.at_once:
            raw = await self.fetch(address, where)
            try:
                work = self.pool.of(session_id).charged
                picture, pixels = await work(read_within, raw, self.rule, min(PIXELS_MAX, room.pixels))
            except SandgateError as error:
                raise InvalidBody(f"{where}: {error}", field=where) from error
            room.pixels -= pixels
        text, digest = str(address), sha256(raw).digest()
        return FetchedImage(text, address.key, digest, pixels, picture.digest), picture

    def _of_host(self, origin: Origin) -> asyncio.Semaphore:
        """Waited for before a place of all: who waits for a host must hold none."""
        if origin not in self.hosts:
            alone = len(self.allowed.origins) < 2
            self.hosts[origin] = asyncio.Semaphore(AT_ONCE if alone else AT_ONCE // 2)
        return self.hosts[origin]

    async def _seen(self, session: Session, key: bytes) -> Seen:
        digest, pixels = session.fetched[key]
        picture = self.cache.get((session.session_id, digest))
        if picture is None:
            run = asyncio.get_running_loop().run_in_executor
            picture = await run(self.pool.of(session.session_id), self._read_back, session.session_id, digest)
            self._remember(session, key, picture)
        return picture, pixels

    def _read_back(self, session_id: str, digest: bytes) -> Picture:
        for _, _, record in self.sessions.store.scan(session_id):
            if isinstance(record, PicturesKept):
                for picture in record.pictures:
                    if picture.digest == digest:
                        return picture
        raise CorruptRecord(f"the picture {digest.hex()} of this session was never recorded")

    def _remember(self, session: Session, key: bytes, picture: Picture) -> None:
        cost = len(picture.png) + len(key) + len(session.session_id)
        self.cache.put((session.session_id, picture.digest), picture, cost)


def hosts_of(config: Config) -> AllowedHosts:
    """Whence images are fetched."""
    return allowed_hosts(config.media.allowed_hosts, private=config.media.private_addresses)
