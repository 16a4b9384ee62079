"""Where looks come from: a gateway that answers, or the --out directory of a run. The same questions for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Json
from sandgate.trainer import outdir
from sandgate.trainer.trees import Tree

if TYPE_CHECKING:
    from sandgate.trainer.client import RolloutClient

ATTEMPTS = 2
"""A person is waiting: say soon that nobody answers."""


class Source(Protocol):
    """Answers about sessions."""

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        """Summaries in id order, of one job or ("") of all."""
        ...

    def tree(self, session_id: str, *, text: bool) -> Tree:
        """Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """A gateway."""

    url: str
    key: str

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        with self.client() as client:
            yield from client.sessions(job=job or None)

    def tree(self, session_id: str, *, text: bool) -> Tree:
        with self.client() as client:
            return client.tree(session_id, text=text)

    def client(self) -> RolloutClient:
        from sandgate.trainer.client import Retries, RolloutClient  # loaded by the command that needs it

        return RolloutClient(self.url, self.key, retries=Retries(attempts=ATTEMPTS))


@dataclass(frozen=True, slots=True)
class Stored:
    """The directory of a run."""

    out: Path
    tokenizer: str = ""

    def sessions(self, job: str) -> Iterator[dict[str, Json]]:
        from sandgate.gateway import offline  # loads the gateway; asking one over HTTP does not need it

        return offline.sessions(self.out, job)

    def tree(self, session_id: str, *, text: bool) -> Tree:
        from sandgate.gateway import offline

        tokenizer = self.tokenizer or outdir.used_tokenizer(self.out)
        return offline.tree(self.out, session_id, text=text, tokenizer=tokenizer)


def source(out: Path | None, url: str | None, key: str | None, tokenizer: str = "") -> Source:
    """Exactly one of `out` and `url`. Raises InvalidBody."""
    if (out is None) == (url is None):
        raise InvalidBody("say where to look: either --out DIR or --url URL", field="--out")
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise InvalidBody(f"{url!r} is not an http URL", field="--url")
        return Live(url, key or "")
    assert out is not None
    return Stored(out, tokenizer)
