"""A gateway in memory: what a driver's calls do to sessions. Any call may fail, before or after its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sandgate.contract.errors import BadRequest, Gone, NotFound
from sandgate.contract.failure_reasons import FAILURE_CLASS
from sandgate.contract.session import SessionHandle, SessionOutcome, SessionSpec, SessionState, SessionSummary
from sandgate.contract.session_urls import SessionUrls


def quiet(call: str) -> None:
    """No failure."""


@dataclass
class FakeGateway:
    """One; a `SessionClient`."""

    now: Callable[[], float]
    origin: str = "http://127.0.0.1:9"
    sessions: dict[str, SessionSummary] = field(default_factory=dict)
    specs: dict[str, SessionSpec] = field(default_factory=dict)
    outcomes: dict[str, SessionOutcome] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    retired: dict[str, SessionSummary] = field(default_factory=dict)
    """Sessions of which a line is left."""
    calls: Counter[str] = field(default_factory=Counter)
    fail: Callable[[str], None] = quiet
    """Asked before each call; raises to make it fail."""
    lose: Callable[[str], None] = quiet
    """Asked after it; raises to lose its answer."""
    picky: bool = False
    """It refuses outcomes with a detail."""

    async def create(self, spec: SessionSpec) -> SessionHandle:
        self._begins("create")
        if spec.session_id not in self.sessions:
            self.specs[spec.session_id] = spec
            self.sessions[spec.session_id] = SessionSummary(
                session_id=spec.session_id,
                state=SessionState.OPEN,
                job=spec.job,
                uid=spec.uid,
                sample_index=spec.sample_index,
                attempt=spec.attempt,
                created_at=self.now(),
            )
        self.lose("create")
        handle = SessionUrls.of(self.origin, spec.session_id).handle()
        return replace(handle, api_key="key", reward_key="reward")

    async def get(self, session_id: str) -> SessionSummary:
        self._begins("get")
        return self.retired.get(session_id) or self._held(session_id)

    async def finalize(self, session_id: str, outcome: SessionOutcome) -> None:
        self._begins("finalize")
        said = self._held(session_id)
        if said.state is SessionState.ABORTED:
            raise Gone("it was aborted")
        if self.picky and outcome.detail:
            raise BadRequest("detail: is refused")
        if said.state is not SessionState.FINALIZED:
            reason = outcome.failure_reason
            self.outcomes[session_id] = outcome
            self.sessions[session_id] = replace(
                said,
                state=SessionState.FINALIZED,
                failure_reason=None if reason is None else reason.value,
                failure_class=None if reason is None else FAILURE_CLASS[reason].value,
                reward=outcome.reward,
                changed_at=self.now(),
            )
        self.lose("finalize")

    async def abort(self, session_id: str) -> None:
        self._begins("abort")
        said = self._held(session_id)
        if not said.state.ended:
            self.sessions[session_id] = replace(said, state=SessionState.ABORTED, changed_at=self.now())
        self.lose("abort")

    async def close_group(self, uid: str, *, job: str = "") -> None:
        self._begins("close_group")
        if not any((one.job, one.uid) == (job, uid) for one in self.sessions.values()):
            raise NotFound(f"no session of {uid}")
        self.closed.add(uid)
        self.lose("close_group")

    async def status(self) -> dict[str, str]:
        self._begins("status")
        return {}

    def _begins(self, call: str) -> None:
        self.fail(call)
        self.calls[call] += 1

    def _held(self, session_id: str) -> SessionSummary:
        if session_id not in self.sessions:
            raise NotFound(f"no session {session_id}")
        return self.sessions[session_id]
