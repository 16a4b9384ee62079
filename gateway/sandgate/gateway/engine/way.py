"""How one replica of an engine is asked for tokens, and its answers are read: requests as data. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import orjson

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.responses import ErrorInAnswer, Step


class Request(NamedTuple):
    """One POST."""

    path: str
    body: bytes


class PausedNow(Exception):
    """A replica takes no new requests during a weight update."""


class Shut(Exception):
    """A replica does not serve this endpoint; `instead` is how to talk to it from now on."""

    def __init__(self, instead: Way) -> None:
        super().__init__("this endpoint is not served")
        self.instead = instead


class Reader(Protocol):
    """Reads one answer. Raises SandgateError: what cannot be trusted, and refusals that come inside of a stream; or
    ErrorInAnswer, where what it means depends on whether something was sampled before."""

    def __call__(self, payload: bytes) -> Step:
        """A whole answer, or the next event of a stream."""
        ...

    def together(self, payloads: Sequence[bytes]) -> Iterable[Step]:
        """The next events of a stream, which came at once: in as few steps as their words allow. What is wrong is
        raised behind the steps before it."""
        ...


class Way(Protocol):
    """How to ask one replica for tokens."""

    @property
    def caps(self) -> bool:
        """It may sample fewer tokens than it is asked for, by a limit of the replica's own that is not its window."""
        ...

    def request(
        self,
        prompt: Prompt,
        ids: Ids,
        *,
        request_id: str,
        max_tokens: int,
        piece: int = 0,
        stream: bool = False,
        salt: str = "",
        vocab_size: int = 0,
    ) -> Request:
        """Asks for at most `max_tokens` after `ids` (the prompt, and what was sampled so far). `piece` > 0: it goes on
        after an abort. `salt`: prompts with another one share no cache. `vocab_size`: ids at or above it do not exist;
        0 = unknown. Every sampling parameter is said, so that no default of the server's counts. Raises BadRequest for
        what this replica could not honour."""
        ...

    def reader(self, prompt: Prompt, ids: Ids, *, vocab_size: int) -> Reader:
        """For one answer to that request."""
        ...

    def refused(self, status: int, body: bytes, retry_after: str | None, *, prompt_tokens: int) -> Exception:
        """What an answer with a status other than 200 means: a SandgateError, PausedNow or Shut."""
        ...

    def abort(self, request_id: str) -> Request | None:
        """Ends the generation of that id; None if only a closed connection does."""
        ...


def meaning(said: ErrorInAnswer, way: Way, *, begun: bool, prompt_tokens: int) -> Exception:
    """A refusal, as if it had come as a status, where nothing was sampled before (not `begun`); else, and where the
    engine says that it broke, a failure."""
    if begun or said.status == 500:
        return said.failure()
    body = orjson.dumps({"error": {"message": said.words}})
    return way.refused(said.status, body, None, prompt_tokens=prompt_tokens)
