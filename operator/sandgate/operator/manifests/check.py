"""Checks that a job can run in a cluster, and refuses what works on one machine only, naming the field. (pure)"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import BackendKind, Beside, RolloutJob
from sandgate.contract.manifest_decoder import bad
from sandgate.operator.manifests import engines, gateways
from sandgate.operator.manifests.example_session import NO_SECRET, session_objects
from sandgate.operator.manifests.models import is_hub_name, leads_out
from sandgate.operator.manifests.overlay import refuse
from sandgate.operator.manifests.template_shape import CONTAINER, misfits, template_misfits
from sandgate.operator.settings import Settings

AGENT: Final = "spec.agent.template"
JUDGE: Final = "spec.reward.verifier.container"


def check_cluster(job: RolloutJob) -> None:
    """Raises BadManifest or Unsupported; `field` is the path in the manifest."""
    for field, text in _unsupported(job):
        raise Unsupported(f"{field}: {text}", field=field)
    for problem in _misshapen(job):
        raise problem
    for problem in _wrong(job):
        raise problem
    refuse(job.spec.gateway.template, gateways.PATH, gateways.OURS)
    if job.spec.engine.managed is not None:
        refuse(job.spec.engine.managed.template, engines.PATH, engines.OURS)
    for path, make in MAKES.items():
        _tried(job, path, make)


MAKES: Final[Mapping[str, Callable[[RolloutJob, Settings], object]]] = {
    gateways.PATH: lambda job, settings: gateways.gateway_objects(
        job, settings, engine_urls=(), secret_hex=NO_SECRET
    ),
    engines.PATH: engines.engine_objects,
    AGENT: session_objects,
}
"""Field that may be of a shape that nobody thought of -> what is made of it."""


def _tried(job: RolloutJob, path: str, make: Callable[[RolloutJob, Settings], object]) -> None:
    """Made once, for nobody: what fails here would fail at each session, where no one is told."""
    try:
        make(job, Settings())
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        text = f"{type(error).__name__}: {error}"
        raise bad(path, f"no pod can be made of it ({text}); compare it with a Pod's fields") from error


def _misshapen(job: RolloutJob) -> Iterator[BadManifest]:
    for field, text in template_misfits(job.spec.agent.template, AGENT):
        yield bad(field, text)
    if job.spec.reward.verifier is not None:
        for field, text in misfits(CONTAINER, job.spec.reward.verifier.container, JUDGE):
            yield bad(field, text)


def _unsupported(job: RolloutJob) -> Iterator[tuple[str, str]]:
    spec = job.spec
    if spec.tasks.file is not None:
        yield (
            "spec.tasks.file",
            "no file of yours is seen in a cluster; put the tasks into a ConfigMap (spec.tasks.configMap) or push them"
            " (spec.tasks.queue)",
        )
    if spec.agent.backend is not BackendKind.POD:
        yield "spec.agent.backend", f"{spec.agent.backend.value} does not run in a cluster; use Pod"
    if spec.engine.endpoints is not None and spec.gateway.beside is Beside.REQUIRED:
        yield "spec.gateway.beside", "where URLs lead to is not known; use Preferred or Anywhere"


def _wrong(job: RolloutJob) -> Iterator[BadManifest]:
    spec = job.spec
    if leads_out(spec.model.tokenizer):
        yield bad(
            "spec.model.tokenizer", "leads out of the folder of models; use a path in it, or an absolute one"
        )
    managed = spec.engine.managed
    if managed is not None:
        if not is_hub_name(managed.model) and leads_out(managed.model):
            yield bad("spec.engine.managed.model", "leads out of the folder of models; use a path in it")
        for index, one in enumerate(managed.args):
            if not managed.command and one.partition("=")[0] == "--port":
                yield bad(f"spec.engine.managed.args[{index}]", "the port is 8000 in a cluster; leave it out")
    folder = "" if spec.output.parquet is None else spec.output.parquet.url
    if folder and "://" not in folder and not folder.startswith("/"):
        yield bad("spec.output.parquet.url", "is no URL; use one, or the absolute path of a gateway's volume")
    for index, url in enumerate(spec.engine.endpoints or ()):
        host = urlsplit(url).hostname or ""
        if host in ("localhost", "::1") or host.startswith("127."):
            yield bad(
                f"spec.engine.endpoints[{index}]", f"{host} is each gateway's own pod; name the engine's host"
            )
    for index, container in enumerate(spec.agent.template["spec"]["containers"]):
        yield from _container(container, f"{AGENT}.spec.containers[{index}]")
    if spec.reward.verifier is not None:
        yield from _container(spec.reward.verifier.container, JUDGE)


def _container(container: dict[str, Any], path: str) -> Iterator[BadManifest]:
    """Relative paths begin beside the manifest, which is nowhere in a cluster; `.` alone is the image's own folder."""
    if not container.get("image"):
        yield bad(f"{path}.image", "is missing")
    where = container.get("workingDir") or "."
    if not posixpath.isabs(where) and posixpath.normpath(where) != ".":
        yield bad(
            f"{path}.workingDir", f"{where!r} begins beside the manifest; use an absolute path of the image"
        )
