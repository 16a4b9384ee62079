"""Renders the objects of one session that stands for all of a job's. (pure)"""

from __future__ import annotations

from typing import Any, Final

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.names import API_VERSION, gateway_name, group_name, keys_name
from sandgate.contract.session import TerminationMessage
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.manifests.base import Json, gateway_origin
from sandgate.operator.manifests.sandbox_pods import PodDefaults, agent_pod, verifier_pod
from sandgate.operator.manifests.sessions import keys_secret, session_object
from sandgate.operator.plan.actions import Ref
from sandgate.operator.settings import Settings
from sandgate.sandbox.agents import result_document

NO_UID: Final = "00000000-0000-0000-0000-000000000000"
NO_SECRET: Final = "00" * 32


def session_owner(name: str, uid: str) -> Json:
    """ownerReference to an AgentSession."""
    return {
        "apiVersion": API_VERSION,
        "kind": AgentSession.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def session_objects(job: RolloutJob, settings: Settings) -> list[Json]:
    """Of the first attempt at the first sample of the first task, or of one that stands for tasks to come."""
    name, namespace = job.metadata.name, job.metadata.namespace
    task = (job.spec.tasks.inline or (Task(uid="example", prompt="a task"),))[0]
    ref = Ref(name, task.uid, 0, 0)
    group = group_name(name, task.uid)
    origin = gateway_origin(name, 0, namespace, settings)
    where: dict[str, Any] = {
        "session": ref.name,
        "group": group,
        "namespace": namespace,
        "owner": session_owner(ref.name, NO_UID),
        "handle": SessionUrls.of(origin, ref.name),
        "keys_secret": keys_name(group, 0, 0),
        "task": task,
        "sample_index": 0,
        "look": PodDefaults.of(settings),
    }
    found = [
        keys_secret(job, task.uid, 0, 0, bytes.fromhex(NO_SECRET), 0.0),
        session_object(job, ref, gateway_name(name, 0)),
        agent_pod(job, **where),
    ]
    if job.spec.reward.verifier is not None:
        found.append(verifier_pod(job, **where, result=result_document(0, TerminationMessage())))
    return found
