"""What refusals of SGLang mean. (pure)"""

from __future__ import annotations

import re

from sandgate.contract.errors import PromptTooLong, SandgateError
from sandgate.gateway.engine.wire import refusal, words_of

TOO_LONG = re.compile(
    r"longer than the model's context length \((?P<a>\d+) tokens\)"
    r"|exceeds the model's maximum context length of (?P<b>\d+) tokens"
    r"|exceeds the maximum allowed length \((?P<c>\d+) tokens\)"
)
"""0.5.23's texts for a prompt that is too long: managers/tokenizer_manager.py, managers/utils.py."""


ABORTED = "Aborted by AbortReq."
"""0.5.23 ends so, with a 400, what still waits for its grammar at an abort (constrained/grammar_manager.py): a weight
update's, mostly. Nothing was sampled."""


def is_abort(status: int | None, message: str) -> bool:
    """Whether a refusal is an abort: it says nothing of the request."""
    return status == 400 and message == ABORTED


def refused(status: int, body: bytes, retry_after: str | None = None, *, prompt_tokens: int) -> SandgateError:
    """The error that a refusal means; `body` as SGLang writes it, or its text."""
    too_long = TOO_LONG.search(words_of(body)) if status in (400, 413, 422) else None
    if too_long is not None:
        return PromptTooLong(tokens=prompt_tokens, limit=int(too_long[too_long.lastgroup or "a"]))
    return refusal(status, body, retry_after, prompt_tokens=prompt_tokens)
