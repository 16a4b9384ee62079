"""Creates AgentSessions and writes their status. Idempotent: names are derived."""

from __future__ import annotations

from dataclasses import dataclass

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.cluster.adoption import adopt
from sandgate.operator.cluster.api import Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import SessionSeen, controller, owner_uid, session_seen
from sandgate.operator.cluster.session_status import session_status
from sandgate.operator.manifests import session_object
from sandgate.operator.observed import events
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Ref, SessionObserved, Told
from sandgate.operator.plan.outcome import in_words

ABSENT = ("agentEnd", "reward", "failureClass", "failureReason")
"""Fields of a session's status that are absent where they do not apply."""


@dataclass(slots=True)
class SessionObjects:
    """Of one job."""

    at: JobState

    @property
    def observed(self) -> Observed:
        return self.at.observed

    async def make(self, ref: Ref, gateway: str) -> SessionSeen:
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
            check_owner(body, at.job.metadata.uid)
            body = next(iter(await adopt(at, AgentSession.KIND, [body])), {})
        seen = session_seen(body)
        if seen is None or seen.deleting:
            raise Unavailable(f"AgentSession {ref.name} is not what was made")
        at.sessions.put(seen.name, seen)
        return seen

    def owner(self, ref: Ref) -> Json:
        """What goes with it names it so. Raises Unavailable if it is not there."""
        seen = self.at.sessions.held.get(ref.name)
        if seen is None:
            raise Unavailable(f"AgentSession {ref.name} is not there")
        return controller(seen)

    async def write(self, ref: Ref) -> None:
        """Its status, if it does not say so yet. A conflict of the two writers that a change of leaders may bring is
        harmless: both write what the gateway says."""
        at = self.at
        seen, kept = self.observed.sessions.get(ref.name), at.sessions.held.get(ref.name)
        if seen is None:
            return
        if kept is None:
            self.at.observe(events.ObjectWritten(ref, None))
            return
        status = session_status(
            seen,
            kept.status,
            at.now(),
            base_url=SessionUrls.of(at.origin_of(ref), ref.name).base_url,
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
                    {"status": dict.fromkeys(ABSENT) | encode(status)},
                )
            except NotFound:
                self.gone(kept)
                return
            at.sessions.put(ref.name, session_seen(body) or kept)
        self.at.observe(events.ObjectWritten(ref, _told(seen)))

    def gone(self, kept: SessionSeen) -> None:
        """Somebody deleted an AgentSession: that attempt is discarded."""
        self.at.observe(events.RemoteWithdrawn(kept.name))
        self.at.sessions.pop(kept.name, kept.uid)
        self.at.observe(events.ObjectDeleted(kept.ref))


def check_owner(body: Json, uid: str) -> None:
    """Raises Unavailable for an object of another than this uid."""
    if owner_uid(body) != uid:
        kind, name = body["kind"], body["metadata"]["name"]
        raise Unavailable(f"{kind} {name} is of an earlier job of that name, and being deleted")


def _told(seen: SessionObserved) -> Told:
    if seen.summary is None or not seen.summary.state.ended:
        return Told.RUNNING
    return Told.COMMITTED if seen.committed else Told.FINALIZED


def _detail(seen: SessionObserved) -> str:
    if seen.stop is not None and seen.stop.detail:
        return seen.stop.detail
    ends = [one.exit for one in (seen.verifier, seen.sandbox) if one is not None and one.exit is not None]
    return next((words for end in ends if (words := in_words(end))), "")
