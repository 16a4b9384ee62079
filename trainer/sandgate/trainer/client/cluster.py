"""Find the gateways of a job in a cluster, and the key to them, through the Kubernetes API server.

Needs `sandgate[cluster]`. Inside the cluster gateways are reached by their own names; outside, by port-forward.
A trainer needs `get` on the job's Secret `<job>-trainer`; outside also `create` on `pods/portforward`.
"""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from sandgate.contract.errors import BadRequest, Forbidden, InvalidBody, NotFound, Unavailable
from sandgate.contract.names import GROUP, VERSION, trainer_name
from sandgate.contract.trajectory import Json

Api = Any
"""kubernetes.client, loaded when a cluster is asked for."""

MANAGER = "sandgate-trainer"
"""Field manager of what trainers apply; the operator's own fields are its own."""
LOG_CHUNK = 65536
ANSWER_S = 20.0
"""For one answer of the API server: calls of a trainer may wait for it, and one that never comes would hang them."""
PAGE = 500
"""Objects of one answer of the API server."""
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Set in every pod."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Which cluster and namespace: empty fields are the kubeconfig's current ones, or the pod's own."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""


def place_of(said: Json) -> ClusterPlace:
    """As trainers' configurations say it: true, or texts for any of its fields. Raises InvalidBody."""
    if said is True:
        return ClusterPlace()
    names = [one.name for one in fields(ClusterPlace)]
    if not isinstance(said, Mapping) or not all(
        name in names and isinstance(value, str) for name, value in said.items()
    ):
        raise InvalidBody(
            f"cluster must be true, or have texts for any of {', '.join(names)}, not {said!r}",
            field="cluster",
        )
    return ClusterPlace(**said)


@dataclass(frozen=True, slots=True)
class JobGateways:
    """Where a job's gateways answer, from here. `repr` hides the key."""

    job: str
    namespace: str
    origins: dict[str, str]
    """Gateway name -> origin."""
    key: str = field(repr=False)
    """Scope trainer, of this job."""


@contextmanager
def job_gateways(job: str, place: ClusterPlace = ClusterPlace()) -> Iterator[JobGateways]:
    """The gateways of a job, reachable while the block runs. Raises NotFound, Forbidden, Unavailable, InvalidBody."""
    with _cluster(place) as (api, connection, namespace):
        data = _trainer_secret(api, connection, job, namespace)
        origins = {
            str(urlsplit(one).hostname).split(".")[0]: one
            for one in data.get("origins", "").split(",")
            if one
        }
        if not origins:
            raise InvalidBody(f"Secret {trainer_name(job)}: origins is missing", field="data.origins")
        with ExitStack() as stack:
            if IN_CLUSTER not in os.environ or place.kubeconfig or place.context:
                from sandgate.trainer.client.port_forward import Forward

                origins = {
                    name: stack.enter_context(
                        Forward(connection.configuration, namespace, name, urlsplit(origin).port or 80)
                    ).origin
                    for name, origin in origins.items()
                }
            yield JobGateways(job, namespace, origins, data["api_key"])


def trainer_key(job: str, place: ClusterPlace = ClusterPlace()) -> str:
    """The key of a job's trainers, as it is now: the operator makes it anew before it expires. Raises as
    `job_gateways`."""
    with _cluster(place) as (api, connection, namespace):
        return _trainer_secret(api, connection, job, namespace)["api_key"]


def _trainer_secret(api: Api, connection: Any, job: str, namespace: str) -> dict[str, str]:
    name = trainer_name(job)
    secret = _call(
        lambda: api.CoreV1Api(connection).read_namespaced_secret(name, namespace, _request_timeout=ANSWER_S),
        f"Secret {namespace}/{name} (is there a RolloutJob {job}, and has the operator seen it?)",
    )
    data = {entry: base64.b64decode(value).decode() for entry, value in (secret.data or {}).items()}
    if not data.get("api_key"):
        raise InvalidBody(f"Secret {name}: api_key is missing", field="data.api_key")
    return data


def pinned(place: ClusterPlace) -> ClusterPlace:
    """The same place, whatever becomes the kubeconfig's current one meanwhile."""
    with _cluster(place) as (_, __, namespace):
        context = place.context
        if not context and (IN_CLUSTER not in os.environ or place.kubeconfig):
            config: Any = import_module("kubernetes.config")
            active = config.list_kube_config_contexts(config_file=place.kubeconfig or None)[1]
            context = str(active["name"])
        return replace(place, namespace=namespace, context=context)


def rollout_job(job: str, place: ClusterPlace = ClusterPlace()) -> dict[str, Json]:
    """The RolloutJob as the API server has it. Raises NotFound, Forbidden, Unavailable."""
    return _object("rolloutjobs", job, place)


def agent_session(name: str, place: ClusterPlace = ClusterPlace()) -> dict[str, Json]:
    """An AgentSession as the API server has it. Raises NotFound, Forbidden, Unavailable."""
    return _object("agentsessions", name, place)


def agent_sessions(beginning: str, limit: int, place: ClusterPlace = ClusterPlace()) -> list[str]:
    """Names of AgentSessions that begin like that, in the API server's order, at most `limit`. It knows no such
    question: all are looked through, page by page, until enough are found. Raises Forbidden, Unavailable."""
    found: list[str] = []
    with _cluster(place) as (api, connection, namespace):
        objects, after = api.CustomObjectsApi(connection), ""
        while len(found) < limit:
            page: dict[str, Json] = _call(
                functools.partial(
                    objects.list_namespaced_custom_object,
                    GROUP,
                    VERSION,
                    namespace,
                    "agentsessions",
                    limit=PAGE,
                    _continue=after,
                ),
                f"agentsessions in {namespace}",
            )
            names = (str(one["metadata"]["name"]) for one in page["items"])
            found += [name for name in names if name.startswith(beginning)]
            after = str(page["metadata"].get("continue") or "")
            if not after:
                break
    return found[:limit]


def pod_log(pod: str, place: ClusterPlace = ClusterPlace(), *, follow: bool = False) -> Iterator[bytes]:
    """What the pod's own program (its first container) printed, as it comes; with `follow` until it ends. Needs `get`
    on `pods` and `pods/log`, as the role `view` has. Raises NotFound (no such pod), InvalidBody (it has not begun),
    Forbidden, Unavailable."""
    with _cluster(place) as (api, connection, namespace):
        what, core = f"pod {namespace}/{pod}", api.CoreV1Api(connection)
        found = _call(lambda: core.read_namespaced_pod(pod, namespace), what)
        response = _call(
            lambda: core.read_namespaced_pod_log(
                pod,
                namespace,
                container=found.spec.containers[0].name,
                follow=follow,
                _preload_content=False,
            ),
            what,
        )
        chunks = response.stream(LOG_CHUNK)
        try:
            while (chunk := _call(lambda: next(chunks, None), what)) is not None:
                yield chunk
        finally:
            response.close()


def submit(manifest: dict[str, Json], place: ClusterPlace = ClusterPlace()) -> dict[str, Json]:
    """Create the RolloutJob, or update it, as `kubectl apply --server-side` would. Raises what the API server says."""
    with _cluster(place) as (api, connection, namespace):
        name = str(manifest["metadata"]["name"])
        body = manifest | {"metadata": {**manifest["metadata"], "namespace": namespace}}
        found: dict[str, Json] = _call(
            lambda: api.CustomObjectsApi(connection).patch_namespaced_custom_object(
                GROUP,
                VERSION,
                namespace,
                "rolloutjobs",
                name,
                body,
                field_manager=MANAGER,
                force=True,
                _content_type="application/apply-patch+yaml",
                _request_timeout=ANSWER_S,
            ),
            f"RolloutJob {namespace}/{name}",
        )
        return found


def delete_job(job: str, place: ClusterPlace = ClusterPlace()) -> None:
    """Delete the RolloutJob, and all that was made for it: journals with what nobody has collected included. Raises
    NotFound, Forbidden, Unavailable."""
    with _cluster(place) as (api, connection, namespace):
        _call(
            lambda: api.CustomObjectsApi(connection).delete_namespaced_custom_object(
                GROUP,
                VERSION,
                namespace,
                "rolloutjobs",
                job,
                propagation_policy="Background",
                _request_timeout=ANSWER_S,
            ),
            f"RolloutJob {namespace}/{job}",
        )


def _object(plural: str, name: str, place: ClusterPlace) -> dict[str, Json]:
    with _cluster(place) as (api, connection, namespace):
        found: dict[str, Json] = _call(
            lambda: api.CustomObjectsApi(connection).get_namespaced_custom_object(
                GROUP, VERSION, namespace, plural, name, _request_timeout=ANSWER_S
            ),
            f"{plural} {namespace}/{name}",
        )
        return found


@contextmanager
def _cluster(place: ClusterPlace) -> Iterator[tuple[Api, Any, str]]:
    """(client module, its connections, which end with the block, namespace). Raises BadRequest when no cluster is
    configured."""
    try:
        client: Any = import_module("kubernetes.client")
        config: Any = import_module("kubernetes.config")
    except ImportError as error:
        raise BadRequest("a cluster needs the extra: pip install 'sandgate[cluster]'") from error
    configuration = client.Configuration()
    try:
        if IN_CLUSTER in os.environ and not place.kubeconfig and not place.context:
            config.load_incluster_config(client_configuration=configuration)
            namespace = place.namespace or _own_namespace()
        else:
            config.load_kube_config(
                config_file=place.kubeconfig or None,
                context=place.context or None,
                client_configuration=configuration,
            )
            namespace = place.namespace or _context_namespace(config, place)
    except Exception as error:  # the library has no error of its own for a file of another shape
        raise BadRequest(f"no cluster: {error}; say --out DIR or --url URL for a run without one") from error
    with client.ApiClient(configuration) as connection:
        yield client, connection, namespace


def _own_namespace() -> str:
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
        return file.read().strip()


def _context_namespace(config: Any, place: ClusterPlace) -> str:
    contexts, active = config.list_kube_config_contexts(config_file=place.kubeconfig or None)
    for one in contexts:
        if one["name"] == (place.context or active["name"]):
            return str(one["context"].get("namespace") or "default")
    return "default"


def _call(ask: Any, what: str) -> Any:
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return ask()
    except ApiException as error:
        if error.status == 404:
            raise NotFound(f"{what}: not found") from error
        if error.status in (401, 403):
            raise Forbidden(f"{what}: {error.reason}: {_message(error)}") from error
        if error.status in (400, 422):
            raise InvalidBody(f"{what}: {_message(error)}") from error
        raise Unavailable(f"{what}: API server: {error.status} {error.reason}", retry_after=1.0) from error
    except (HTTPError, OSError) as error:
        raise Unavailable(f"{what}: API server: {error}", retry_after=1.0) from error
    except ValueError as error:  # its text may hold the token
        why = f"no request can be made of the kubeconfig's server and token ({type(error).__name__})"
        raise InvalidBody(f"{what}: {why}") from None


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body)[:500]
