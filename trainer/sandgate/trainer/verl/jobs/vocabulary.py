"""Whether the gateways of a job in a cluster, whose manifest names the tokenizer, have verl's own."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from sandgate.contract.trajectory import Trajectory

log = logging.getLogger(__name__)


class Vocabulary:
    """Says once that they have another. It may be the same in other bytes, so this is no error: ids of another
    vocabulary are one at the gateway (TokenizerMismatch)."""

    def __init__(self, folder: str) -> None:
        file = Path(folder) / "tokenizer.json"
        self._digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        self.folder = folder

    def compare(self, rows: Iterable[Trajectory]) -> bool:
        """Whether no row is known to be of another `tokenizer.json`."""
        for row in rows:
            if self._digest and row.tokenizer_digest not in ("", self._digest):
                log.warning(
                    "the gateways' tokenizer.json (spec.model.tokenizer of the manifest) is not that of %s, "
                    "which verl has: are they of one model?",
                    self.folder,
                )
                self._digest = ""
                return False
        return True
