"""What is learned from it: the user's side, from submitting jobs to exporting trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from contextlib import AbstractAsyncContextManager

    from sandgate.trainer.attach import LocalFleet

__all__ = ["local"]


def local(out: str | os.PathLike[str], **options: Any) -> AbstractAsyncContextManager[LocalFleet]:
    """Attach to a run of this machine: `sandgate run JOB.yaml --out OUT`. See `attach.attach`."""
    from sandgate.trainer.attach import attach  # loads the client

    return attach(out, **options)
