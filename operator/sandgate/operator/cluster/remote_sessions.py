"""Opens sessions for agents that run elsewhere, which people apply: their keys, and why one is not opened.

The Secret with the agent's environment is made before the gateway is told: it says which gateway was chosen, also to an
operator that comes after one that died in between.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import BadRequest, Conflict, Forbidden, NotFound, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.names import remote_keys_name, remote_verifier_name
from sandgate.contract.session_urls import SessionUrls
from sandgate.contract.status import SessionReason
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import key_life, session_needs, verifier_needs
from sandgate.operator.cluster.object_store import SessionSeen, controller, owner_uid, session_seen
from sandgate.operator.cluster.refusals import passes
from sandgate.operator.cluster.session_status import held_status
from sandgate.operator.driver.session_spec import session_spec
from sandgate.operator.manifests import gateway_in, keys_end, remote_secret, remote_verifier_secret
from sandgate.operator.observed import events
from sandgate.operator.observed.remotes import METADATA
from sandgate.operator.plan.actions import Ref
from sandgate.sandbox.agents import agent_env

BASE_URL, API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
"""Entries of the Secret: the first tells the gateway."""
ELSEWHERE = ("SANDGATE_PROMPT", "SANDGATE_TASK_FILE", "SANDGATE_TERMINATION_LOG")
"""Of an agent's environment: what only a sandbox has."""


class RemoteRefused(Exception):
    """It cannot be opened, now or later."""


@dataclass(slots=True)
class RemoteActs:
    """Of one job."""

    at: JobState

    async def open(self, ref: Ref, gateway: str) -> None:
        """Its keys, then at its gateway. What can never be is written into its status and not tried again."""
        at = self.at
        kept = at.sessions.held.get(ref.name)
        if kept is None or ref.name in at.observed.sessions:
            at.observe(events.RemoteWithdrawn(ref.name))
            return
        settled = ref.uid in at.observed.remotes.homes
        if not settled:  # siblings that are opened meanwhile go there too
            at.observe(events.RemotePlaced(ref.uid, gateway))
        try:
            place = await self._keys(ref, kept, gateway, settled=settled)
            at.observe(events.RemotePlaced(ref.uid, place))
            spec = session_spec(at.job.spec, ref, Task(uid=ref.uid), metadata=METADATA)
            await at.client(place).create(spec)
        except (RemoteRefused, Conflict, BadRequest) as error:
            await self.hold(ref, str(error), final=True)
            return
        at.opened[ref.name] = None
        at.observe(events.RemoteOpened(ref, place, at.now()))
        now_kept = at.sessions.held.get(ref.name)
        if now_kept is None or now_kept.uid != kept.uid:  # deleted meanwhile
            at.observe(events.ObjectDeleted(ref))

    async def _keys(self, ref: Ref, kept: SessionSeen, gateway: str, *, settled: bool) -> str:
        """The gateway that its Secret names; it is made if there is none. Where siblings are wins."""
        at = self.at
        body = remote_secret(at.job, ref, controller(kept), self._environment(ref, gateway))
        try:
            await at.kube.create(body)
        except Conflict:
            found = await at.kube.get("Secret", at.namespace, remote_keys_name(ref.name))
            _owned(found, kept.uid)
            said = gateway_said(found)
            if said == gateway or (said in at.monitors and not settled):
                if keys_end(found, API_KEY, at.secret, at.now()) >= session_needs(at):
                    return said
                gateway = said
            await at.kube.apply(remote_secret(at.job, ref, controller(kept), self._environment(ref, gateway)))
        except Forbidden as error:
            if passes(error):
                raise Unavailable(str(error), retry_after=5.0) from error
            raise RemoteRefused(str(error)) from error
        return gateway

    def _environment(self, ref: Ref, gateway: str) -> dict[str, str]:
        at = self.at
        key = mint(at.secret, Key(Scope.AGENT, ref.job, ref.name, at.now() + key_life(at)))
        handle = replace(SessionUrls.of(at.agents_origin(gateway), ref.name).handle(), api_key=key)
        env = agent_env(handle, model=at.job.spec.model.name, prompt="", delivery="")
        return {name: value for name, value in env.items() if name not in ELSEWHERE}

    async def verifier_keys(self, ref: Ref, owner: Json) -> None:
        """What its verifier's pod mounts."""
        at = self.at
        if not at.secret:
            raise Unavailable("no gateways are provided: keys would be signed with nothing")
        body = remote_verifier_secret(at.job, ref, owner, at.secret, at.now() + key_life(at))
        try:
            await at.kube.create(body)
        except Conflict:
            found = await at.kube.get("Secret", at.namespace, remote_verifier_name(ref.name))
            _owned(found, owner["uid"])
            if keys_end(found, f"{ref.name}.reward", at.secret, at.now()) < verifier_needs(at):
                await at.kube.apply(body)

    async def hold(self, ref: Ref, why: str, *, final: bool) -> None:
        """Say why it is not open. `final`: it is not planned again."""
        at = self.at
        kept = at.sessions.held.get(ref.name)
        if final or kept is None:
            at.observe(events.RemoteRefused(ref))
        if kept is not None:
            reason = SessionReason.REFUSED if final else SessionReason.ON_HOLD
            written = await tell(at.kube, at.namespace, kept, reason, why, at.now())
            if written is not None:
                at.sessions.put(written.name, written)


async def tell(
    kube: Api, namespace: str, kept: SessionSeen, reason: SessionReason, why: str, now: float
) -> SessionSeen | None:
    """Write why a remote session is not open; None if it says so already, or is gone."""
    status = held_status(kept.status, reason.value, why, now)
    if status == kept.status:
        return None
    empty = {"baseURL": ""} if kept.status.base_url else {}
    try:
        body = await kube.patch_status(
            AgentSession.KIND, namespace, kept.name, {"status": {**encode(status), **empty}}
        )
    except NotFound:
        return None
    return session_seen(body)


def gateway_said(secret: Json) -> str:
    """Name of the gateway that a remote session's Secret leads to; empty if somebody has spoilt it."""
    try:
        return gateway_in(base64.b64decode(secret["data"][BASE_URL], validate=True).decode("ascii"))
    except (KeyError, TypeError, ValueError, binascii.Error):
        return ""


def _owned(body: Json, uid: str) -> None:
    """Raises Refused for a Secret of somebody else, Unavailable for that of an earlier AgentSession of that name."""
    name, owner = body["metadata"]["name"], owner_uid(body)
    if not owner:
        raise RemoteRefused(f"metadata.name: Secret {name} is there already, and not of this AgentSession")
    if owner != uid:
        raise Unavailable(f"Secret {name} is of an earlier AgentSession of that name, and being deleted")
