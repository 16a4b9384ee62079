"""The operator's command: reads and checks its options and settings, then runs one replica until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from sandgate.contract.errors import BadManifest, SandgateError
from sandgate.operator.cluster.job_controller import JobController as ClusterHub
from sandgate.operator.driver.reconcile import Reconciler
from sandgate.operator.kubernetes import access
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.plan.actions import Action
from sandgate.operator.replica import json_log
from sandgate.operator.replica.metrics import OperatorMetrics
from sandgate.operator.replica.probes import ReplicaState
from sandgate.operator.replica.run import Leading, OperatorReplica, Options
from sandgate.operator.settings import Settings

log = logging.getLogger(__name__)

LEASE = "sandgate-operator"
"""Name of the Lease, with `-<shard>` after it."""
PORT = 8080


def main(argv: Sequence[str] | None = None) -> int:
    """Gives 2 when asked wrongly; else ends the process: 0 drained after SIGTERM, 1 could not go on (start me again),
    2 the port is taken. Logs on stderr, as the settings say."""
    said = _parser().parse_args(argv)
    try:
        settings = _settings(said.settings, said.namespace).like_pod(os.environ.get("POD_IP", ""))
        reached = access.find(said.kubeconfig)
        options = _options(said, settings, os.environ, reached.namespace)
    except (SandgateError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    json_log.install(sys.stderr, settings.log_level, settings.log_format)
    asyncio.run(_run(reached, settings, options))
    raise AssertionError("unreachable")


async def _run(reached: access.Access, settings: Settings, options: Options) -> NoReturn:
    """Ends the process from inside the loop: kopf may leave tasks behind that refuse to be cancelled (a watch that
    waits for credentials), and a loop does not close without them."""
    metrics = OperatorMetrics()
    replica = OperatorReplica(
        access=reached,
        settings=settings,
        options=options,
        hub_of=_hub,
        metrics=metrics,
        state=ReplicaState(metrics),
        stop=asyncio.Event(),
    )
    try:
        code = await replica.run()
    except OSError as error:
        sys.stderr.write(f"error: --http {options.host}:{options.port}: {error}\n")
        code = 2
    except BaseException:
        log.exception("ends")
        code = 1
    logging.shutdown()
    os._exit(code)


def _hub(kube: KubeClient, settings: Settings, metrics: OperatorMetrics) -> Leading:
    hub = ClusterHub(kube, settings)
    measure(hub.reconciler, metrics)
    return hub


def measure(reconciler: Reconciler, metrics: OperatorMetrics) -> None:
    """Tell of every plan and action from now on."""
    plan, carry_out = reconciler.plan, reconciler.carry_out

    def planned(key: str) -> Sequence[Action]:
        start = time.perf_counter()
        try:
            return plan(key)
        finally:
            metrics.planned(time.perf_counter() - start)

    async def carried_out(key: str, action: Action) -> None:
        start, outcome = time.perf_counter(), "Cancelled"
        try:
            await carry_out(key, action)
            outcome = "ok"
        except Exception as error:
            outcome = error.reason if isinstance(error, SandgateError) else SandgateError.reason
            raise
        finally:
            metrics.acted(type(action).__name__, outcome, time.perf_counter() - start)

    reconciler.plan, reconciler.carry_out = planned, carried_out


def _settings(path: Path | None, namespaces: Sequence[str]) -> Settings:
    settings = Settings()
    if path is not None:
        settings = Settings.of(path.read_bytes(), str(path))
    return dataclasses.replace(settings, namespaces=tuple(namespaces)) if namespaces else settings


def _options(said: argparse.Namespace, settings: Settings, environ: Mapping[str, str], own: str) -> Options:
    host, _, port = str(said.http).rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise BadManifest(f"--http {said.http}: must be HOST:PORT or :PORT", field="--http")
    lease = said.lease or (f"{LEASE}-{settings.shard}" if settings.shard else LEASE)
    home = said.lease_namespace or environ.get("POD_NAMESPACE") or settings.operator_namespace or own
    return Options(
        host=host.strip("[]"),
        port=int(port),
        lease="" if said.no_lease else lease,
        lease_namespace=home,
        identity=environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandgate operator",
        description="Watch RolloutJobs and run their sessions. One replica leads, the others stand by.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--settings", type=Path, metavar="FILE", help="JSON, as the chart writes it")
    add(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch this one (again: more); over the settings",
    )
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="default: the pod's service account, $KUBECONFIG, ~/.kube/config",
    )
    add("--http", default=f":{PORT}", metavar="HOST:PORT", help=f"probes and metrics (default :{PORT})")
    add("--lease", default="", metavar="NAME", help=f"default {LEASE}, and the shard's name")
    add("--lease-namespace", default="", metavar="NAME", help="default $POD_NAMESPACE, or the context's")
    add("--no-lease", action="store_true", help="lead without a Lease: only if no other operator runs")
    return parser
