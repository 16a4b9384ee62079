"""A session's actions: at its gateway, on its AgentSession and on its pods. Idempotent: names are derived."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import (
    BadRequest,
    Conflict,
    FailureReason,
    Forbidden,
    NotFound,
    Unavailable,
)
from sandgate.contract.job import Task
from sandgate.contract.names import KEYS_PER_SECRET, pod_name, verifier_name
from sandgate.contract.schema import encode
from sandgate.contract.session import SessionOutcome
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.cluster.api import Json
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import (
    ObjectTable,
    PodKept,
    SessionSeen,
    controller,
    owner_uid,
    pod_kept,
    session_seen,
)
from sandgate.operator.cluster.remote_sessions import RemoteActs
from sandgate.operator.cluster.session_status import session_status
from sandgate.operator.driver.sealing import seal
from sandgate.operator.driver.session_spec import session_spec
from sandgate.operator.manifests import keys_secret, session_object
from sandgate.operator.manifests.sandbox_pods import RESULT_BYTES_MAX, agent_pod, verifier_pod
from sandgate.operator.observed.job import Observed
from sandgate.operator.observed.pod_record import pod_gone
from sandgate.operator.plan.actions import Exit, Outage, Ref, Running, SessionObserved, Stop, Told
from sandgate.operator.plan.outcome import in_words
from sandgate.sandbox.agents import result_document

log = logging.getLogger(__name__)

KEY_MARGIN_S = 86_400.0
"""Keys outlive their session's longest life by this: a gateway may be away, a group may wait for its verifier."""
OUTCOME = ("reward", "failureClass", "failureReason")
"""Fields of a session's status that are absent where they do not apply."""
STOP_DEADLINE = {"spec": {"activeDeadlineSeconds": 1}}
"""How a pod is stopped without deleting it: its kubelet ends it, logs and statuses stay."""


@dataclass(slots=True)
class SessionActions:
    """What is done for one session after the other."""

    at: JobState
    remote: RemoteActs = field(init=False)
    _making: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Keys Secrets that are being made."""

    def __post_init__(self) -> None:
        self.remote = RemoteActs(self.at)

    @property
    def observed(self) -> Observed:
        return self.at.observed

    # -- opening ------------------------------------------------------------------------------------------------------

    async def open(self, ref: Ref, gateway: str) -> None:
        """Its keys; its AgentSession (which so tells that there are keys); then at its gateway. The API server lets one
        of two operators have the AgentSession's name, and what that one said of the gateway holds for both: siblings
        stay together, though a call of an operator that died may still arrive."""
        at = self.at
        if ref.name in self.observed.sessions or ref.uid not in at.tasks:  # it comes, and is planned again
            return
        if ref.uid in self.observed.groups:
            gateway = self.observed.gateway_of(ref.uid)
        at.doors[gateway].client  # noqa: B018 - away: nothing is begun
        # From now on: the AgentSession that is made next says so, whatever fails after it.
        self.observed.begin(ref.uid, gateway)
        await self._keys(ref)
        home = await self._object(ref, gateway)
        await self._at_gateway(ref, at.doors.get(home.spec.gateway, at.doors[gateway]))
        self.observed.opened(ref, home.spec.gateway, at.now(), Told.NOTHING)

    async def _at_gateway(self, ref: Ref, door: GatewayMonitor) -> None:
        if ref.name not in self.at.opened:
            task = self.at.tasks[ref.uid]
            await door.client.create(session_spec(self.at.job.spec, ref, task))
            self.at.opened[ref.name] = None

    async def _object(self, ref: Ref, gateway: str) -> SessionSeen:
        """Its AgentSession, made if there is none. Raises Unavailable for one that is not ours (yet)."""
        at = self.at
        if (kept := at.sessions.held.get(ref.name)) is not None:
            if kept.spec.remote:
                raise Unavailable(
                    f"AgentSession {ref.name} is of a remote agent: delete it, its name is ours"
                )
            return kept
        try:
            body = await at.kube.create(session_object(at.job, ref, gateway))
        except Conflict:
            body = await at.kube.get(AgentSession.KIND, at.namespace, ref.name)
            self._ours(body, at.job.metadata.uid)
        seen = session_seen(body)
        if seen is None or seen.deleting:
            raise Unavailable(f"AgentSession {ref.name} is not what was made")
        at.sessions.put(seen.name, seen)
        return seen

    async def _keys(self, ref: Ref) -> None:
        name = self.at.keys_of(ref)
        if name in self.at.keys:
            return
        async with self._making.setdefault(name, asyncio.Lock()):  # siblings are opened together
            if name not in self.at.keys:
                await self._make_keys(ref, name)
        self._making.pop(name, None)

    async def _make_keys(self, ref: Ref, name: str) -> None:
        at, limits = self.at, self.at.job.spec.limits
        life = KEY_MARGIN_S + limits.start_seconds + limits.session_seconds
        chunk = ref.sample // KEYS_PER_SECRET
        body = keys_secret(at.job, ref.uid, ref.attempt, chunk, at.secret, at.now() + life)
        try:
            await at.kube.create(body)
        except Conflict:
            self._ours(await at.kube.get("Secret", at.namespace, name), at.job.metadata.uid)
        at.keys[name] = None

    def _ours(self, body: Json, uid: str) -> None:
        if owner_uid(body) != uid:
            kind, name = body["kind"], body["metadata"]["name"]
            raise Unavailable(f"{kind} {name} is of an earlier job of that name, and being deleted")

    # -- pods ---------------------------------------------------------------------------------------------------------

    async def start(self, ref: Ref) -> None:
        """Make the agent's pod. One that the API server will never take is a failed start, not an error."""
        at = self.at
        if ref.uid not in at.tasks:
            raise Unavailable(f"task {ref.uid!r} is not known yet")
        door = at.door_of(ref)
        # An operator that died may have come to any of these.
        await self._keys(ref)
        await self._object(ref, door.name)
        await self._at_gateway(ref, door)
        body = agent_pod(
            at.job,
            session=ref.name,
            group=at.group(ref),
            namespace=at.namespace,
            owner=self._owner(ref),
            handle=SessionUrls.of(door.origin, ref.name),
            keys_secret=at.keys_of(ref),
            task=at.tasks[ref.uid],
            sample_index=ref.sample,
            look=at.look,
        )
        made = await self._create_pod(ref, body)
        if isinstance(made, Exit):
            self.observed.sandbox(ref, Running(made.at, None, made))
        else:
            at.agents.put(ref.name, made)
            self.observed.sandbox(ref, made.seen.running)

    async def start_verifier(self, ref: Ref) -> None:
        """Make the verifier's pod."""
        at = self.at
        seen = self.observed.sessions[ref.name]
        end = seen.sandbox.exit if seen.sandbox is not None else None
        result = b"{}" if end is None else result_document(end.code, end.message, RESULT_BYTES_MAX)
        if ref.called:
            await self.remote.verifier_keys(ref, self._owner(ref))
        body = verifier_pod(
            at.job,
            session=ref.name,
            group=at.group(ref),
            namespace=at.namespace,
            owner=self._owner(ref),
            handle=SessionUrls.of(at.door_of(ref).origin, ref.name),
            keys_secret=at.keys_of(ref),
            task=at.tasks.get(ref.uid) or Task(uid=ref.uid),
            sample_index=ref.sample,
            result=result,
            look=at.look,
        )
        made = await self._create_pod(ref, body)
        if isinstance(made, Exit):
            self.observed.verifier(ref, Running(made.at, None, made))
        else:
            at.verifiers.put(ref.name, made)
            self.observed.verifier(ref, made.seen.running)

    def _owner(self, ref: Ref) -> Json:
        seen = self.at.sessions.held.get(ref.name)
        if seen is None:
            raise Unavailable(f"AgentSession {ref.name} is not there")
        return controller(seen)

    async def _create_pod(self, ref: Ref, body: Json) -> PodKept | Exit:
        at = self.at
        try:
            made = await at.kube.create(body)
        except Conflict:
            made = await at.kube.get("Pod", at.namespace, body["metadata"]["name"])
            self._ours(made, body["metadata"]["ownerReferences"][0]["uid"])
        except Forbidden as error:
            if "exceeded quota" in str(error):  # room comes back
                raise Unavailable(str(error), retry_after=5.0) from error
            return Exit(at.now(), reason=FailureReason.START_FAILED, detail=str(error))
        except BadRequest as error:
            return Exit(at.now(), reason=FailureReason.START_FAILED, detail=str(error))
        return pod_kept(made, at.now())

    async def stop(self, ref: Ref, stop: Stop) -> None:
        """Remember why, write it down, tell the pod; what fails of it is done again (`JobState.unstopped`)."""
        at = self.at
        self.observed.stopping(ref, stop, at.now())
        at.unstopped[ref.name] = None
        seen = self.observed.sessions.get(ref.name)
        if seen is not None and seen.told is not None and seen.told < Told.FINALIZED:
            await self.write(ref)
        if seen is not None and not seen.remote:
            await self._stop_pod(ref, at.agents, pod_name(ref.name))
        at.unstopped.pop(ref.name, None)

    async def stop_verifier(self, ref: Ref) -> None:
        """Its time is up."""
        await self._stop_pod(ref, self.at.verifiers, verifier_name(ref.name))
        self.observed.stopping_verifier(ref, self.at.now())

    async def _stop_pod(self, ref: Ref, table: ObjectTable[PodKept], name: str) -> None:
        at = self.at
        try:
            await at.kube.patch("Pod", at.namespace, name, STOP_DEADLINE)
        except NotFound:
            self.vanished(ref.name, table)

    async def kill(self, ref: Ref) -> None:
        """Delete the pod without waiting for its node."""
        at = self.at
        await at.kube.delete("Pod", at.namespace, pod_name(ref.name), grace_s=0)
        self.observed.killed(ref)
        self.vanished(ref.name, at.agents)

    async def kill_verifier(self, ref: Ref) -> None:
        """The same."""
        at = self.at
        await at.kube.delete("Pod", at.namespace, verifier_name(ref.name), grace_s=0)
        self.observed.killed_verifier(ref)
        self.vanished(ref.name, at.verifiers)

    def vanished(self, session: str, table: ObjectTable[PodKept]) -> None:
        """A session's pod is not there any more; what it had told stands."""
        at = self.at
        kept, seen = table.held.get(session), self.observed.sessions.get(session)
        if kept is not None:
            table.pop(session, kept.uid)
        if seen is None:
            return
        known = seen.sandbox if table is at.agents else seen.verifier
        if known is None or known.exit is not None:
            return
        end = Exit(at.now(), reason=FailureReason.EVICTED, detail="the pod was deleted")
        running = replace(known, exit=end) if kept is None else pod_gone(kept.seen, at.now()).running
        report = self.observed.sandbox if table is at.agents else self.observed.verifier
        report(seen.ref, running)

    # -- the gateway --------------------------------------------------------------------------------------------------

    async def look(self, ref: Ref) -> None:
        """How it stands there; and, for an agent that failed, whether its gateway was there all the time."""
        asked = self.at.now()
        seen, door = self.observed.sessions.get(ref.name), self.at.door_of(ref)
        end = seen.sandbox.exit if seen is not None and seen.sandbox is not None else None
        if end is not None and end.code != 0 and not await door.same_life():
            away = Outage(door.heard_at, asked, FailureReason.GATEWAY_LOST)
            self.observed.outage(door.name, away)
        try:
            said = await self.at.client_of(ref).get(ref.name)
        except NotFound:
            self.observed.vanished(ref, asked)
        else:
            self.observed.told(said, asked)

    async def abort(self, ref: Ref) -> None:
        """Discard it."""
        with suppress(NotFound):
            await self.at.client_of(ref).abort(ref.name)
        await self.look(ref)

    async def seal(self, ref: Ref, outcome: SessionOutcome) -> None:
        """Finalize it."""
        with suppress(NotFound):  # the look says so
            await seal(self.at.client_of(ref), ref.name, outcome)
        await self.look(ref)

    async def close_group(self, uid: str, gateway: str) -> None:
        """No more sessions of this task count."""
        if gateway not in self.at.doors:
            raise Unavailable(f"gateway {gateway!r} is not known")
        with suppress(NotFound):  # nothing of it was ever opened there
            await self.at.doors[gateway].client.close_group(uid, job=self.at.name)
        self.observed.closed(uid)

    # -- its object ---------------------------------------------------------------------------------------------------

    async def write(self, ref: Ref) -> None:
        """Its status, if it does not say so yet. A conflict of the two writers that a change of leaders may bring is
        harmless: both write what the gateway says."""
        at = self.at
        seen, kept = self.observed.sessions.get(ref.name), at.sessions.held.get(ref.name)
        if seen is None:
            return
        if kept is None:
            self.observed.wrote_session(ref, None)
            return
        status = session_status(
            seen,
            kept.status,
            at.now(),
            base_url=SessionUrls.of(at.door_of(ref).origin, ref.name).base_url,
            node=at.agents.held[ref.name].seen.node if ref.name in at.agents.held else "",
            detail=_detail(seen),
        )
        if status != kept.status:
            try:
                # A merge leaves alone what it does not name: a failure that turned out to be none must go.
                body = await at.kube.patch_status(
                    AgentSession.KIND,
                    at.namespace,
                    ref.name,
                    {"status": dict.fromkeys(OUTCOME) | encode(status)},
                )
            except NotFound:
                self.gone(kept)
                return
            at.sessions.put(ref.name, session_seen(body) or kept)
        self.observed.wrote_session(ref, _told(seen))

    def gone(self, kept: SessionSeen) -> None:
        """Somebody deleted an AgentSession: that attempt is discarded."""
        self.observed.remotes.no_more(kept.name)
        self.at.sessions.pop(kept.name, kept.uid)
        self.observed.deleted(kept.ref)


def _told(seen: SessionObserved) -> Told:
    if seen.summary is None or not seen.summary.state.ended:
        return Told.RUNNING
    return Told.COMMITTED if seen.committed else Told.FINALIZED


def _detail(seen: SessionObserved) -> str:
    if seen.stop is not None and seen.stop.detail:
        return seen.stop.detail
    ends = [one.exit for one in (seen.verifier, seen.sandbox) if one is not None and one.exit is not None]
    return next((words for end in ends if (words := in_words(end))), "")
