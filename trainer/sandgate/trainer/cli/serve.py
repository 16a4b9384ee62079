"""`sandgate gateway` and `sandgate operator`: the processes that pods run."""

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


def operator(
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="JSON, as the chart writes it.")
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Watch this one (again: more); over the settings."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Default: the pod's service account, $KUBECONFIG, ~/.kube/config.",
        ),
    ] = None,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Probes and metrics.")] = ":8080",
    lease: Annotated[
        str, typer.Option("--lease", metavar="NAME", help="Default sandgate-operator, and the shard's name.")
    ] = "",
    lease_namespace: Annotated[
        str,
        typer.Option("--lease-namespace", metavar="NAME", help="Default $POD_NAMESPACE, or the context's."),
    ] = "",
    no_lease: Annotated[
        bool, typer.Option("--no-lease", help="Lead without a Lease: only if no other operator runs.")
    ] = False,
) -> None:
    """Run the operator: watches RolloutJobs and runs their sessions, until SIGTERM. JSON logs on stderr."""
    from sandgate.operator.command import main

    named = {"--settings": settings, "--kubeconfig": kubeconfig, "--http": http, "--lease": lease}
    named["--lease-namespace"] = lease_namespace
    argv = [f"{option}={value}" for option, value in named.items() if value]
    argv += [f"--namespace={name}" for name in namespace or ()]
    raise typer.Exit(main([*argv, "--no-lease"] if no_lease else argv))
