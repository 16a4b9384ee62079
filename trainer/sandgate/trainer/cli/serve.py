"""`sandgate gateway`: the process that a pod runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gateway(
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="JSON settings, see docs.", show_default=False)
    ],
) -> None:
    """Serve agents: run one gateway process until SIGTERM, then drain. Says where it listens as one JSON line."""
    from sandgate.gateway.app import main

    raise typer.Exit(main(["--config", str(config)]))
