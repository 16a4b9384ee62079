"""What every dialect's requests have: template variables, the identity of a request, the most messages. (pure)"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.conversation.message_equality import tools_key
from sandgate.gateway.conversation.messages import TemplateValue
from sandgate.gateway.protocols.wire import brief, limited
from sandgate.gateway.tokens.efforts import EFFORTS, UNSAID

MESSAGES_MAX = 10_000
"""Far above any window (a message takes at least 3 tokens); bounds the work on a hostile body."""
KWARGS_MAX = 8
KWARG_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
KWARG_NUMBER_MAX = 2**31
KWARG_TEXT = re.compile(r"[\w .,:+/-]{0,64}")
"""A template's variable is not escaped as a message's text is; such words spell no control token."""

_CANONICAL = msgspec.json.Encoder(order="deterministic")


def template_variables(
    given: dict[str, Any] | None, effort: str | None, effort_field: str = "reasoning_effort"
) -> dict[str, TemplateValue]:
    """Template variables. Their text is the owner's part of a prompt, which is not escaped: a few plain words.
    `effort_field`: where the dialect says the effort."""
    asked = dict(given or {})
    field = "chat_template_kwargs"
    limited(len(asked), KWARGS_MAX, "variables", field)
    if effort is not None:
        if effort not in EFFORTS and effort not in UNSAID:  # what that is, its template decides
            raise InvalidBody(
                f"{effort_field} is {brief(effort)}; it must be one of {', '.join(EFFORTS)}",
                field=effort_field,
            )
        asked.setdefault("reasoning_effort", effort)
    for name, value in asked.items():
        where = f"{field}.{name[:64]}"
        if not KWARG_NAME.fullmatch(name):
            raise InvalidBody(f"{where}: no name of a template's variable", field=where)
        if isinstance(value, str) and not KWARG_TEXT.fullmatch(value):
            raise InvalidBody(
                f"{where}: must be at most 64 letters, digits, blanks or any of -_.,:/+", field=where
            )
        if not isinstance(value, str | int | float):
            raise InvalidBody(f"{where}: must be true, false, a number or text", field=where)
        if not isinstance(value, str) and not abs(value) <= KWARG_NUMBER_MAX:
            raise InvalidBody(f"{where}: must be at most {KWARG_NUMBER_MAX}", field=where)
    return asked


def digest_of(fields: dict[str, Any]) -> bytes:
    """The hash of what is asked, however it is spelt; it does not depend on how the answer is to be sent."""
    raw = _CANONICAL.encode({**fields, "tools": tools_key(fields["tools"]).hex()})
    return blake2b(raw, digest_size=16).digest()
