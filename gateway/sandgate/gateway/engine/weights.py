"""What weights replicas have, by their label or the LoRA adapter that they serve; one that lacks them is not used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from sandgate.contract.errors import EngineUnavailable
from sandgate.gateway.engine.api import Prompt, ServedAdapter
from sandgate.gateway.engine.dialect import Dialect
from sandgate.gateway.engine.labels import Labels, SeenLabels, beyond
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.way import Way

log = logging.getLogger("sandgate.gateway.engine")


@dataclass(slots=True)
class ReplicaWeights:
    """Reads labels and adapters of a pool's replicas, and holds them against what the trainer told."""

    http: Transport
    dialect: Dialect
    table: ReplicaTable
    """The routing table, which is told who must not be used."""
    labels: Labels
    version_now: Callable[[], int] | None
    """Gives the policy version last told; None: the latest prompt's counts."""
    adapter_now: Callable[[], ServedAdapter | None] | None
    way_of: Callable[[str], Way]
    """How a replica is talked to."""
    _latest: int = 0
    """The version of the latest prompt."""
    _beyond: dict[str, str] = field(default_factory=dict)
    """Replica -> its label, if that has a number that is no version, and was told so."""
    _seen: SeenLabels = field(default_factory=SeenLabels)

    def adapter(self) -> ServedAdapter | None:
        """The adapter that is the policy; None: the engines' own weights are."""
        return None if self.adapter_now is None else self.adapter_now()

    def told(self) -> int:
        """The version last told."""
        return self._latest if self.version_now is None else self.version_now()

    def told_since(self, prompt: Prompt) -> int:
        """The version last told, or the prompt's if that is newer."""
        return prompt.version if self.version_now is None else max(prompt.version, self.version_now())

    def told_for(self, prompt: Prompt) -> int:
        """As `told_since`; the prompt is the latest from now on."""
        self._latest = prompt.version
        return self.told_since(prompt)

    @property
    def demanded(self) -> bool:
        """Whether a replica is not used before its weights have a number."""
        return self.labels.demanded(self.told())

    async def read(self, urls: Sequence[str], *, fresh: bool = False) -> None:
        """Reads replicas' labels. A replica that does not answer stays as usable as it was; a `fresh` one is not
        used. Where an adapter is the policy, it is what they must have; their labels say nothing of it."""
        if self.adapter() is not None:
            await self._look_for_adapter(urls, fresh=fresh)
            return
        told = self.told()
        labels = await asyncio.gather(
            *(self.dialect.label_of(self.http, url, self.way_of(url)) for url in urls), return_exceptions=True
        )
        for url, label in zip(urls, labels, strict=True):
            if isinstance(label, str):
                self.labels.heed(label)
                self._note_beyond(url, label)
        for url, label in zip(urls, labels, strict=True):
            if isinstance(label, str):
                self._seen.heed(url, label, told)
                self.doubt(url, self.labels.against(label, self.told()))
            elif label is None:  # then only its answers can report a version
                self.doubt(url, "")
            elif not isinstance(label, EngineUnavailable):
                raise label
            elif fresh:
                self._seen.forget(url)
                if self.demanded:
                    self.doubt(url, f"the version of its weights is not known yet: {label}")

    def _note_beyond(self, url: str, label: str) -> None:
        """Said once: labels are read every few seconds."""
        why = beyond(label)
        if why and self._beyond.get(url) != label:
            log.warning("engine %s: %s", url, why)
        self._beyond[url] = label if why else ""

    async def _look_for_adapter(self, urls: Sequence[str], *, fresh: bool) -> None:
        served = self.adapter()
        asked = (self.dialect.names_of(self.http, url) for url in urls)
        found = await asyncio.gather(*asked, return_exceptions=True)
        if served is None or self.adapter() != served:  # another was told meanwhile: this says nothing of it
            await self.read(urls, fresh=fresh)
            return
        for url, names in zip(urls, found, strict=True):
            if isinstance(names, frozenset):
                self.doubt(url, "" if served.name in names else without(served))
            elif not isinstance(names, EngineUnavailable):
                raise names
            elif fresh:
                self.doubt(url, f"whether it has the adapter is not known yet: {names}")

    def doubt(self, url: str, why: str) -> None:
        """The replica is not used, and why; empty: it is used again."""
        if self.table.doubt(url, why):
            log.warning("engine %s is %s", url, f"not used: {why}" if why else "used again")

    def heed(self, url: str, newest: str | int | None, label: str | int | None) -> None:
        """Takes note of an answer: the newest label that its tokens came with, and the one that the replica has now."""
        self.labels.heed(newest)
        if label is not None:
            self._seen.heed(url, label, self.told())

    def forget(self, url: str) -> None:
        """It may have another label by now."""
        self._seen.forget(url)

    def keep(self, urls: Container[str]) -> None:
        """Forgets all others."""
        self._seen.keep(urls)
        self._beyond = {url: label for url, label in self._beyond.items() if url in urls}

    def version(self, url: str) -> int | None:
        """What a replica's own label says of what it samples now; None if what was told counts."""
        return self._seen.version(url, self.told()) if self.labels.known else None


def without(adapter: ServedAdapter) -> str:
    """Why a replica without it is not used."""
    return (
        f"version {adapter.version} is the adapter {adapter.name}, which it lacks: it restarted or is new; make "
        "the weight update again"
    )
