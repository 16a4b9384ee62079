"""The addresses of a session at its gateway. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandgate.contract.session import SessionHandle

SESSIONS: Final = "/sessions"
"""What agents call at a gateway begins so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUrls:
    """A session's addresses: its handle without the keys, which travel in a Secret."""

    session_id: str
    origin: str
    """Origin of the session's gateway, without a slash at the end."""
    base_url: str
    anthropic_base_url: str
    complete_url: str
    reward_url: str

    @classmethod
    def of(cls, origin: str, session: str) -> SessionUrls:
        """The URLs that a gateway at `origin` has for a session (docs/agents.md)."""
        base = f"{origin}{SESSIONS}/{session}"
        return cls(
            session_id=session,
            origin=origin,
            base_url=f"{base}/v1",
            anthropic_base_url=base,
            complete_url=f"{base}/complete",
            reward_url=f"{origin}/v1/sessions/{session}/reward",
        )

    @property
    def task_url(self) -> str:
        """URL of the task document; how much of it the caller gets depends on the key."""
        return f"{self.origin}/v1/sessions/{self.session_id}/task"

    def handle(self) -> SessionHandle:
        """The session's handle with empty keys, so that nothing made of it can have one."""
        return SessionHandle(
            session_id=self.session_id,
            base_url=self.base_url,
            anthropic_base_url=self.anthropic_base_url,
            complete_url=self.complete_url,
            reward_url=self.reward_url,
            api_key="",
            reward_key="",
            expires_at=0.0,
        )
