"""Keys: HMAC-signed, self-describing, verified without a lookup.

`sk-sg-` + base64url(JSON payload) + `.` + base64url(HMAC-SHA256(secret, payload)). The payload names scope, job,
session and expiry, so any gateway that holds the job's secret can verify a key it never saw.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from enum import StrEnum

from sandgate.contract.errors import Unauthorized

PREFIX = "sk-sg-"
SECRET_BYTES_MIN = 16
"""A shorter secret can be guessed; refused at start-up."""
KEY_CHARS_MAX = 2048
"""Longer ones are not ours; refused before any decoding."""


class Scope(StrEnum):
    """What a key may do."""

    AGENT = "agent"
    """The model endpoints of its own session, that session's /complete, and what an agent may see of its task."""
    REWARD = "reward"
    """The reward of its own session, and that session's task in full: a verifier's."""
    TASK = "task"
    """The task of its own session in full, and nothing else: what fetches it for a verifier."""
    TRAINER = "trainer"
    """Leases, weight updates, sessions of its job."""
    ADMIN = "admin"
    """Everything."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a verified key says. `session` and `job` are empty where the scope is not bound to one."""

    scope: Scope
    job: str = ""
    session: str = ""
    expires_at: float = 0.0
    """Unix seconds; 0 = never."""


def mint(secret: bytes, key: Key) -> str:
    """The key as text."""
    body = json.dumps(
        {"v": 1, "s": key.scope.value, "j": key.job, "i": key.session, "e": int(key.expires_at)},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    return f"{PREFIX}{_text(body)}.{_text(_sign(secret, body))}"


def verify(secret: bytes, text: str, now: float) -> Key:
    """What the key says, if it was minted with `secret` and has not expired at `now` (unix seconds).

    Constant time in the signature. Raises Unauthorized, whose text never contains the key.
    """
    if not text.startswith(PREFIX) or len(text) > KEY_CHARS_MAX:
        raise Unauthorized("not a key of this gateway")
    body_text, _, mac_text = text[len(PREFIX) :].partition(".")
    try:
        body, mac = _bytes(body_text), _bytes(mac_text)
    except (binascii.Error, ValueError) as error:
        raise Unauthorized("not a key of this gateway") from error
    if not hmac.compare_digest(mac, _sign(secret, body)):
        raise Unauthorized("the key's signature does not verify")
    fields = json.loads(body)
    key = Key(Scope(fields["s"]), str(fields["j"]), str(fields["i"]), float(fields["e"]))
    if key.expires_at and now >= key.expires_at:
        raise Unauthorized("the key has expired")
    return key


def _sign(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, body, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    if not text.isascii():
        raise ValueError("not ASCII")
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(raw) != text:  # base64 has spare bits: one key, one spelling
        raise ValueError("not canonical")
    return raw
