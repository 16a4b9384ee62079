"""Who calls, and may they? Keys are verified without a lookup and never logged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandgate.contract.errors import Forbidden, Unauthorized
from sandgate.contract.keys import Key, Scope, mint, verify

CACHE_MAX = 8_192
"""Verified keys kept (an HMAC and a JSON parse each); then the cache starts anew."""

RawHeaders = Iterable[tuple[bytes, bytes]]


def bearer(headers: RawHeaders) -> str:
    """The key in `Authorization: Bearer` or `x-api-key`. Raises Unauthorized if there is none."""
    found = ""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            found = value.strip().decode("latin-1")
    if not found:
        raise Unauthorized("no key: send Authorization: Bearer or x-api-key")
    return found


def digest(text: str) -> bytes:
    """What is kept of a text that somebody else chose as a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class Gate:
    """Verifies and mints with the job's secret."""

    secret: bytes = field(repr=False)
    now: Callable[[], float]
    job: str = ""
    """Whose gateway this is. Keys of another job's trainer may bear the same signature; empty = any job's."""
    cache: dict[str, Key] = field(default_factory=dict, repr=False)
    bound: dict[bytes, Key] = field(default_factory=dict, repr=False)
    """Digest of a text that stands for a session's key, whatever it says itself -> that key."""
    trainer_seen_at: float | None = None
    """Unix seconds of the last call with a trainer's key; None = not in this life of the process."""

    def key(self, headers: RawHeaders) -> Key:
        """What the caller's key says. Raises Unauthorized; Forbidden if it is to control another job."""
        text = bearer(headers)
        now = self.now()
        key = self.cache.get(text)
        if key is None or (key.expires_at and now >= key.expires_at):
            key = self.read(text)
            if len(self.cache) >= CACHE_MAX:
                self.cache.clear()
            self.cache[text] = key
        if key.scope in (Scope.TRAINER, Scope.ADMIN):
            if key.job and self.job and key.job != self.job:
                raise Forbidden("this key is for another job")
            if key.scope is Scope.TRAINER:
                self.trainer_seen_at = now
        return key

    def read(self, text: str) -> Key:
        """What this text says. Raises Unauthorized."""
        bound = self.bound.get(digest(text)) if self.bound else None
        return bound or verify(self.secret, text, self.now())

    def bind(self, name: bytes, key: Key) -> None:
        """From now on the text with this digest is this key."""
        self.bound[name] = key
        self.cache.clear()

    def unbind(self, session: str) -> None:
        """No text stands for a key of this session any more."""
        for name in [name for name, key in self.bound.items() if key.session == session]:
            del self.bound[name]
            self.cache.clear()

    def heartbeat(self) -> float:
        """A trainer lives, whatever key it uses; unix seconds."""
        self.trainer_seen_at = now = self.now()
        return now

    def session_key(self, scope: Scope, job: str, session: str, expires_at: float) -> str:
        """A key for one session; the same arguments give the same key."""
        return mint(self.secret, Key(scope, job, session, expires_at))


def agent_session(key: Key, named: str | None) -> str:
    """The session an agent endpoint is about: the path's, which the key must be for. Raises Forbidden."""
    if key.scope is Scope.AGENT:
        if named is not None and named != key.session:
            raise Forbidden("this key is for another session")
        return key.session
    if key.scope in (Scope.ADMIN, Scope.TRAINER) and named is not None:
        return named
    raise Forbidden(f"keys of scope {key.scope.value} do not open the model endpoints")


def of_job(key: Key, job: str) -> None:
    """A session's key is for one of this job: another job may have a session of the same name. Raises Forbidden."""
    if key.scope in (Scope.AGENT, Scope.REWARD) and key.job != job:
        raise Forbidden("this key is for another job")


def control(key: Key, *, job: str | None = None) -> None:
    """Control API: admin, or trainer of that job. Raises Forbidden."""
    if key.scope is Scope.ADMIN:
        return
    if key.scope is not Scope.TRAINER:
        raise Forbidden(f"keys of scope {key.scope.value} do not open the control API")
    if job and key.job and job != key.job:
        raise Forbidden("this key is for another job")


def may_read_task(key: Key, session: str, *, job: str) -> None:
    """Agent (a part of it), reward and task scope of that session, trainer, admin. Raises Forbidden."""
    if key.scope in (Scope.AGENT, Scope.REWARD, Scope.TASK):
        if key.session != session:
            raise Forbidden("this key is for another session")
        of_job(key, job)
        return
    control(key, job=job)


def admin(key: Key) -> None:
    """Raises Forbidden."""
    if key.scope is not Scope.ADMIN:
        raise Forbidden(f"keys of scope {key.scope.value} do not administer this gateway")


def may_reward(key: Key, session: str, *, job: str, reward_source: str) -> None:
    """Reward scope of that session, trainer, admin; an agent only where the job says so. Raises Forbidden."""
    of_job(key, job)
    if key.scope is Scope.REWARD and key.session == session:
        return
    if key.scope is Scope.AGENT and key.session == session and reward_source == "agent":
        return
    if key.scope in (Scope.AGENT, Scope.REWARD):
        raise Forbidden("this key may not set this session's reward")
    control(key, job=job)
