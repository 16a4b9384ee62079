"""PodBackend: runs agents and verifiers as pods, with the keys that they mount. Idempotent: names are derived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sandgate.contract.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge, Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import Task
from sandgate.contract.names import KEYS_PER_SECRET, pod_name, verifier_name
from sandgate.contract.session import SessionHandle
from sandgate.contract.session_urls import SessionUrls
from sandgate.contract.trajectory import Json as Value
from sandgate.operator.cluster.adoption import adopt
from sandgate.operator.cluster.api import Json
from sandgate.operator.cluster.garbage_collection import GarbageCollector
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import key_life, session_needs, verifier_needs
from sandgate.operator.cluster.object_store import ObjectTable, PodKept, pod_kept
from sandgate.operator.cluster.refusals import passes
from sandgate.operator.cluster.remote_sessions import RemoteActs
from sandgate.operator.cluster.session_objects import SessionObjects, check_owner
from sandgate.operator.cluster.unopened import Unopened
from sandgate.operator.manifests import keys_end, keys_secret
from sandgate.operator.manifests.sandbox_pods import RESULT_BYTES_MAX, agent_pod, verifier_pod
from sandgate.operator.manifests.workload import placed
from sandgate.operator.observed.events import AgentHeld, AgentSeen, VerifierHeld, VerifierSeen
from sandgate.operator.observed.job import Observed
from sandgate.operator.observed.pod_record import pod_gone
from sandgate.operator.plan.actions import Exit, Ref, Running, SideCars, Told
from sandgate.sandbox.agents import result_document

log = logging.getLogger(__name__)

NOT_YET_S = 5.0
"""Between tries of a pod that the API server does not make now."""
STOP_DEADLINE = {"spec": {"activeDeadlineSeconds": 1}}
"""How a pod is stopped without deleting it: its kubelet ends it, logs and statuses stay."""


class NotYet(Unavailable):
    """The API server makes no such pod now, and may later."""


@dataclass(slots=True)
class PodBackend:
    """Of one job (a `SandboxBackend`)."""

    at: JobState
    objects: SessionObjects
    remote: RemoteActs
    collector: GarbageCollector
    unopened: Unopened
    task_chars_max: int | None = None
    """Pods fetch their task from the session's record: it must be there, however large."""
    _making: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Keys Secrets that are being made."""

    @property
    def observed(self) -> Observed:
        return self.at.observed

    def metadata(self, task: Task) -> Mapping[str, Value]:
        """Nothing: what the job is stands in its object."""
        return {}

    async def prepare(self, ref: Ref, gateway: str) -> str:
        """Its keys, then its AgentSession (which so tells that there are keys). The API server lets one of two
        operators have the AgentSession's name, and what that one said of the gateway holds for both: siblings stay
        together, though a call of an operator that died may still arrive."""
        if self.at.rebuilding:
            raise Unavailable("what gateways hold is being asked for")
        try:
            await self._keys(ref, session_needs(self.at))
            made = await self.objects.make(ref, gateway)
        except (Forbidden, BadRequest, TooLarge) as error:
            self.unopened.refused(ref, str(error))
            raise
        self.unopened.made(ref)
        return made.spec.gateway

    def opened(self, ref: Ref, handle: SessionHandle) -> None:
        """Its keys are in a Secret."""
        self.unopened.opened(ref)

    def refused(self, ref: Ref, why: str) -> None:
        """The job says so."""
        self.unopened.unwelcome(ref, why)

    async def forget(self, ref: Ref) -> None:
        """Its pods go when it is their turn."""
        self.collector.forget(ref.name)

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def _keys(self, ref: Ref, until: float) -> None:
        """There are some that do not expire before `until` (unix seconds)."""
        name = self.at.keys_of(ref)
        if self.at.keys.get(name, 0.0) >= until:
            return
        async with self._making.setdefault(name, asyncio.Lock()):  # siblings are opened together
            if self.at.keys.get(name, 0.0) < until:
                self.at.keys[name] = await self._make_keys(ref, name, until)
        self._making.pop(name, None)

    async def _make_keys(self, ref: Ref, name: str, until: float) -> float:
        """When they expire. A group may be opened in parts, days apart (it was suspended, or waited for its queue):
        what was made then is made anew, and siblings that run have theirs."""
        at, secret = self.at, self.at.secret
        if not secret:
            raise Unavailable("no gateways are provided: keys would be signed with nothing")
        expires = at.now() + key_life(at)
        chunk = ref.sample // KEYS_PER_SECRET
        body = keys_secret(at.job, ref.uid, ref.attempt, chunk, secret, expires)
        try:
            await at.kube.create(body)
        except Conflict:
            found = await at.kube.get("Secret", at.namespace, name)
            check_owner(found, at.job.metadata.uid)
            kept = keys_end(found, f"{ref.name}.api", secret, at.now())
            if kept >= until and at.secret == secret:
                return kept
            log.info("job %s/%s: Secret %s is made anew: its keys are too old", at.namespace, at.name, name)
            await at.kube.delete("Secret", at.namespace, name, uid=found["metadata"]["uid"])
            await at.kube.create(body)
        if at.secret != secret:
            raise Unavailable("another secret signs keys by now")
        return expires

    # -- pods ---------------------------------------------------------------------------------------------------------

    async def start(self, ref: Ref, task: Task) -> None:
        """Make the agent's pod. One that the API server will never take is a failed start, not an error."""
        at = self.at
        body = agent_pod(
            at.job,
            session=ref.name,
            group=at.group(ref),
            namespace=at.namespace,
            owner=self.objects.owner(ref),
            handle=self._urls(ref),
            keys_secret=at.keys_of(ref),
            task=task,
            sample_index=ref.sample,
            look=at.look,
        )
        await self._run(ref, at.agents, body)

    async def start_verifier(self, ref: Ref, task: Task, end: Exit | None) -> None:
        """Make the verifier's pod."""
        at = self.at
        result = b"{}" if end is None else result_document(end.code, end.message, RESULT_BYTES_MAX)
        try:
            await self._verifier_keys(ref)
        except (Forbidden, BadRequest, TooLarge) as error:
            at.observe(VerifierHeld(ref, str(error)))
            raise
        body = verifier_pod(
            at.job,
            session=ref.name,
            group=at.group(ref),
            namespace=at.namespace,
            owner=self.objects.owner(ref),
            handle=self._urls(ref),
            keys_secret=at.keys_of(ref),
            task=task,
            sample_index=ref.sample,
            result=result,
            look=at.look,
        )
        await self._run(ref, at.verifiers, body)

    async def _verifier_keys(self, ref: Ref) -> None:
        if ref.called:
            await self.remote.verifier_keys(ref, self.objects.owner(ref))
        else:
            await self._keys(ref, verifier_needs(self.at))

    def _urls(self, ref: Ref) -> SessionUrls:
        return SessionUrls.of(self.at.monitors[self.at.gateway_of(ref)].origin, ref.name)

    async def _run(self, ref: Ref, table: ObjectTable[PodKept], body: Json) -> None:
        try:
            made = await self._create_pod(body)
        except NotYet as error:
            held = AgentHeld if table is self.at.agents else VerifierHeld
            self.at.observe(held(ref, str(error)))
            raise
        if isinstance(made, Exit):
            self._report(ref, table, Running(made.at, None, made))
        else:
            table.put(ref.name, made)
            self._report(ref, table, made.seen.running)

    def _report(self, ref: Ref, table: ObjectTable[PodKept], running: Running) -> None:
        seen = AgentSeen if table is self.at.agents else VerifierSeen
        self.at.observe(seen(ref, running))

    async def _create_pod(self, body: Json) -> PodKept | Exit:
        at = self.at
        body = placed(body, at.places)
        try:
            made = await at.kube.create(body)
        except Conflict:
            try:
                made = await at.kube.get("Pod", at.namespace, body["metadata"]["name"])
            except NotFound:  # there was one, and its program may run on: never two in one session
                return Exit(at.now(), reason=FailureReason.EVICTED, detail="the pod was deleted")
            check_owner(made, body["metadata"]["ownerReferences"][0]["uid"])
            made = await self._adopted(made)
        except Forbidden as error:
            if passes(error):
                raise NotYet(str(error), retry_after=NOT_YET_S) from error
            return _refused(at.now(), error)
        except BadRequest as error:
            return _refused(at.now(), error)
        return pod_kept(made, at.now())

    async def _adopted(self, made: Json) -> Json:
        if found := await adopt(self.at, "Pod", [made]):
            return found[0]
        raise Unavailable(f"Pod {made['metadata']['name']} is gone again")

    async def stop(self, ref: Ref) -> None:
        """Write down why, tell the pod."""
        seen = self.observed.sessions.get(ref.name)
        if seen is not None and seen.told is not None and seen.told < Told.FINALIZED:
            await self.objects.write(ref)
        if seen is not None and not seen.remote:
            await self._stop_pod(ref, self.at.agents, pod_name(ref.name))

    async def stop_verifier(self, ref: Ref) -> None:
        """Its time is up."""
        await self._stop_pod(ref, self.at.verifiers, verifier_name(ref.name))

    async def _stop_pod(self, ref: Ref, table: ObjectTable[PodKept], name: str) -> None:
        at = self.at
        try:
            await at.kube.patch("Pod", at.namespace, name, STOP_DEADLINE)
        except NotFound:
            self.vanished(ref.name, table)

    async def kill(self, ref: Ref) -> None:
        """Delete the pod without waiting for its node. Of an agent that had ended nothing else says how: that is
        written down first."""
        seen = self.observed.sessions.get(ref.name)
        if seen is not None and seen.sandbox is not None and seen.sandbox.exit is not None:
            await self.objects.write(ref)
        await self._delete_pod(ref, self.at.agents, pod_name(ref.name))

    async def kill_verifier(self, ref: Ref) -> None:
        """The same."""
        await self._delete_pod(ref, self.at.verifiers, verifier_name(ref.name))

    async def _delete_pod(self, ref: Ref, table: ObjectTable[PodKept], name: str) -> None:
        await self.at.kube.delete("Pod", self.at.namespace, name, grace_s=0)
        self.vanished(ref.name, table)

    def vanished(self, session: str, table: ObjectTable[PodKept]) -> None:
        """A session's pod is not there any more; what it had told stands."""
        at = self.at
        kept, seen = table.held.get(session), self.observed.sessions.get(session)
        if kept is not None:
            table.pop(session, kept.uid)
        if seen is None:
            return
        known = seen.sandbox if table is at.agents else seen.verifier
        if known is None or (known.exit is not None and known.side_cars is SideCars.NONE):
            return
        end = Exit(at.now(), reason=FailureReason.EVICTED, detail="the pod was deleted")
        gone = replace(known, exit=known.exit or end, side_cars=SideCars.NONE)
        running = gone if kept is None else pod_gone(kept.seen, at.now()).running
        self._report(seen.ref, table, running)


def _refused(now: float, error: Exception) -> Exit:
    return Exit(now, reason=FailureReason.START_FAILED, detail=str(error), refused=True)
