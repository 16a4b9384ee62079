"""Authentication and permissions: verifies keys, mints session keys, says which scope may do what.

Keys are verified without a lookup and never logged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandgate.contract.errors import Forbidden, Unauthorized
from sandgate.contract.keys import Key, Scope, mint, verify

CACHE_MAX = 8_192
"""Verified keys in the cache, each of which saves an HMAC and a JSON parse; a full cache starts anew."""

RawHeaders = Iterable[tuple[bytes, bytes]]


def presented(headers: RawHeaders) -> list[str]:
    """What stands in `Authorization: Bearer` and in `x-api-key`: one or two texts, the first of them named first.
    Raises Unauthorized if there is none."""
    bearer = key = ""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = bearer or value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            key = value.strip().decode("latin-1")
    if not bearer and not key:
        raise Unauthorized("no key: send Authorization: Bearer or x-api-key")
    return [text for text in dict.fromkeys((bearer, key)) if text]


def bearer(headers: RawHeaders) -> str:
    """The first of the texts presented as a key. Raises Unauthorized if there is none."""
    return presented(headers)[0]


def digest(text: str) -> bytes:
    """The hash that is kept of a text that somebody else chose as a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class Gate:
    """Verifies and mints keys with the job's secret."""

    secret: bytes = field(repr=False)
    now: Callable[[], float]
    job: str = ""
    """The job of this gateway; empty = any job. Keys of another job's trainer may bear the same signature."""
    cache: dict[str, Key] = field(default_factory=dict, repr=False)
    bound: dict[bytes, Key] = field(default_factory=dict, repr=False)
    """Session keys by the digest of a text that stands for them, whatever the text itself says."""
    trainer_seen_at: float | None = None
    """Unix seconds of the last call with a trainer's key; None = not in this life of the process."""
    steady: Callable[[], float] | None = None
    """A clock that nobody sets; None: `now`."""
    _steadily_seen_at: float = 0.0
    """`trainer_seen_at` by it."""

    def key(self, headers: RawHeaders) -> Key:
        """The caller's verified key. Of two texts one may be no key: command lines send a dummy beside the real one.
        Raises Unauthorized, also for two keys that differ; Forbidden for a trainer's or admin's key of another job."""
        now = self.now()
        found: list[Key] = []
        refused: list[Unauthorized] = []
        for text in presented(headers):
            try:
                found.append(self._known(text, now))
            except Unauthorized as error:
                refused.append(error)
        if not found:
            raise refused[0]
        key = found[0]
        if any(other != key for other in found):
            raise Unauthorized("Authorization and x-api-key are two different keys: send one of them")
        if key.scope in (Scope.TRAINER, Scope.ADMIN):
            if key.job and self.job and key.job != self.job:
                raise Forbidden("this key is for another job")
            if key.scope is Scope.TRAINER:
                self.heartbeat()
        return key

    def _known(self, text: str, now: float) -> Key:
        key = self.cache.get(text)
        if key is None or (key.expires_at and now >= key.expires_at):
            key = self.read(text)
            if len(self.cache) >= CACHE_MAX:
                self.cache.clear()
            self.cache[text] = key
        return key

    def read(self, text: str) -> Key:
        """The key that this text stands for. Raises Unauthorized."""
        bound = self.bound.get(digest(text)) if self.bound else None
        return bound or verify(self.secret, text, self.now())

    def bind(self, name: bytes, key: Key) -> None:
        """From now on the text with the digest `name` stands for this key."""
        self.bound[name] = key
        self.cache.clear()

    def unbind(self, session: str) -> None:
        """No text stands for a key of this session any more."""
        for name in [name for name, key in self.bound.items() if key.session == session]:
            del self.bound[name]
            self.cache.clear()

    def heartbeat(self) -> float:
        """Notes that a trainer lives, whatever key it uses. Returns the time in unix seconds."""
        self.trainer_seen_at = now = self.now()
        self._steadily_seen_at = now if self.steady is None else self.steady()
        return now

    @property
    def trainer_age_s(self) -> float | None:
        """Seconds since then: to whoever has another clock `trainer_seen_at` says little."""
        if self.trainer_seen_at is None:
            return None
        now = self.now() if self.steady is None else self.steady()
        return max(0.0, now - self._steadily_seen_at)

    def session_key(self, scope: Scope, job: str, session: str, expires_at: float) -> str:
        """A key for one session; the same arguments give the same key."""
        return mint(self.secret, Key(scope, job, session, expires_at))


def agent_session(key: Key, named: str | None) -> str:
    """The session that a call to an agent endpoint is about. Raises Forbidden if the key is not for the session that
    the path names (`named`)."""
    if key.scope is Scope.AGENT:
        if named is not None and named != key.session:
            raise Forbidden("this key is for another session")
        return key.session
    if key.scope in (Scope.ADMIN, Scope.TRAINER) and named is not None:
        return named
    raise Forbidden(f"keys of scope {key.scope.value} do not open the model endpoints")


def of_job(key: Key, job: str) -> None:
    """Raises Forbidden if a session's key is of another job, which may have a session of the same name."""
    if key.scope in (Scope.AGENT, Scope.REWARD, Scope.TASK) and key.job != job:
        raise Forbidden("this key is for another job")


def control(key: Key, *, job: str | None = None) -> None:
    """Raises Forbidden unless the key opens the control API: an admin's, or a trainer's of that job."""
    if key.scope is Scope.ADMIN:
        return
    if key.scope is not Scope.TRAINER:
        raise Forbidden(f"keys of scope {key.scope.value} do not open the control API")
    if job and key.job and job != key.job:
        raise Forbidden("this key is for another job")


def may_read_task(key: Key, session: str, *, job: str) -> None:
    """Raises Forbidden unless the key may read the session's task. Keys of scope agent (which are given a part of it),
    reward and task of that session may, a trainer's, and an admin's."""
    if key.scope in (Scope.AGENT, Scope.REWARD, Scope.TASK):
        if key.session != session:
            raise Forbidden("this key is for another session")
        of_job(key, job)
        return
    control(key, job=job)


def admin(key: Key) -> None:
    """Raises Forbidden unless the key is an admin's."""
    if key.scope is not Scope.ADMIN:
        raise Forbidden(f"keys of scope {key.scope.value} do not administer this gateway")


def may_reward(key: Key, session: str, *, job: str, reward_source: str) -> None:
    """Raises Forbidden unless the key may reward the session: of its reward scope, a trainer's, an admin's; its agent's
    only where the job says so."""
    of_job(key, job)
    if key.scope is Scope.REWARD and key.session == session:
        return
    if key.scope is Scope.AGENT and key.session == session and reward_source == "agent":
        return
    if key.scope in (Scope.AGENT, Scope.REWARD):
        raise Forbidden("this key may not set this session's reward")
    control(key, job=job)
