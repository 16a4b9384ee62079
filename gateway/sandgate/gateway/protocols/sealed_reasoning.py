"""Reasoning in an opaque field, for clients that send it back unread: `signature` and `encrypted_content`. (pure)

It is opaque, not secret: an agent may see what its model thought.
"""

from __future__ import annotations

import base64
import binascii

PREFIX = "sg1."
"""Of all that is sealed here; a later form gets another."""


def seal(reasoning: str) -> str:
    """The reasoning as characters of A-Za-z0-9_-. and =."""
    return PREFIX + base64.urlsafe_b64encode(reasoning.encode("utf-8", "replace")).decode()


def unseal(sealed: str) -> str:
    """Inverse of `seal`; empty for what was not sealed here."""
    if not sealed.startswith(PREFIX):
        return ""
    try:
        return base64.urlsafe_b64decode(sealed[len(PREFIX) :]).decode()
    except (binascii.Error, ValueError):
        return ""
