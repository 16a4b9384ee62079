"""AgentSessions, and the Secrets with their keys. (pure)"""

from __future__ import annotations

import base64

from sandgate.contract.agent_session import AgentSession, AgentSessionSpec
from sandgate.contract.errors import Unauthorized
from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint, verify
from sandgate.contract.labels import AGENT
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.names import (
    API_VERSION,
    KEYS_PER_SECRET,
    done_name,
    group_name,
    keys_name,
    remote_keys_name,
    remote_verifier_name,
    session_id,
)
from sandgate.operator.manifests.base import Json, metadata, secret_data
from sandgate.operator.plan.actions import Ref

VERIFIERS = (("reward", Scope.REWARD), ("task", Scope.TASK))
"""Keys of a verifier's pod: the verifier's own, and its fetcher's."""


def session_object(job: RolloutJob, ref: Ref, gateway: str, *, remote: bool = False) -> Json:
    """The AgentSession of one attempt."""
    spec = AgentSessionSpec(
        job_name=job.metadata.name,
        task_uid=ref.uid,
        sample_index=ref.sample,
        attempt=ref.attempt,
        gateway=gateway,
        remote=remote,
    )
    group = group_name(job.metadata.name, ref.uid)
    return {
        "apiVersion": API_VERSION,
        "kind": AgentSession.KIND,
        "metadata": metadata(job, ref.name, AGENT, session=ref.name, group=group),
        "spec": encode(spec),
    }


def keys_secret(
    job: RolloutJob, uid: str, attempt: int, chunk: int, secret: bytes, expires_at: float
) -> Json:
    """All keys of one attempt of KEYS_PER_SECRET samples of a task, by session id. To be *created*: one that exists is
    as good while its keys last (`keys_end`), and cannot be changed (kubelets do not watch those)."""
    name = job.metadata.name
    group = group_name(name, uid)
    first = chunk * KEYS_PER_SECRET
    data: dict[str, str] = {}
    for sample in range(first, min(first + KEYS_PER_SECRET, job.spec.group_size)):
        session = session_id(name, uid, sample, attempt)
        for ending, scope in (("api", Scope.AGENT), *VERIFIERS):
            data[f"{session}.{ending}"] = mint(secret, Key(scope, name, session, expires_at))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, keys_name(group, attempt, chunk), AGENT, group=group),
        "type": "Opaque",
        "immutable": True,
        "data": secret_data(**data),
    }


def keys_end(body: Json, entry: str, secret: bytes, now: float) -> float:
    """When the key in this entry of a Secret expires, in unix seconds; 0.0 if it opens nothing: expired, signed with
    another secret, or spoilt."""
    try:
        text = base64.b64decode(body["data"][entry], validate=True).decode("ascii")
        return verify(secret, text, now).expires_at
    except (KeyError, TypeError, ValueError, Unauthorized):
        return 0.0


def remote_secret(job: RolloutJob, ref: Ref, owner: Json, data: dict[str, str]) -> Json:
    """What a remote agent needs, as its environment would be in a sandbox (`envFrom` takes it as it is), and goes with
    its AgentSession. It also decides which gateway has the session: whoever creates it first."""
    return _of_session(job, ref, owner, remote_keys_name(ref.name), data)


def remote_verifier_secret(job: RolloutJob, ref: Ref, owner: Json, secret: bytes, expires_at: float) -> Json:
    """The keys of a remote session's verifier, to which its agent has no right."""
    data = {
        f"{ref.name}.{ending}": mint(secret, Key(scope, ref.job, ref.name, expires_at))
        for ending, scope in VERIFIERS
    }
    return _of_session(job, ref, owner, remote_verifier_name(ref.name), data)


def _of_session(job: RolloutJob, ref: Ref, owner: Json, name: str, data: dict[str, str]) -> Json:
    meta = metadata(job, name, AGENT, session=ref.name, group=group_name(ref.job, ref.uid))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**meta, "ownerReferences": [owner]},
        "type": "Opaque",
        "data": secret_data(**data),
    }


def done_map(job: RolloutJob, part: int) -> Json:
    """A ConfigMap for tasks that are done; empty."""
    meta = metadata(job, done_name(job.metadata.name, part), AGENT)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}
