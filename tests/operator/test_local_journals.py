"""A gateway that cannot write its journal is told of once, and takes no sessions; the job's status says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.contract.status import JobCondition
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.job import Event, Note, Problem
from sandgate.operator.local.journals import Journals
from sandgate.operator.observed.events import AgentSeen, GatewayChanged, SessionOpened
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Exit, Running
from sandgate.operator.plan.conditions import find
from sandgate.operator.plan.outcome import failure
from sandgate.operator.plan.status import job_status
from tests.operator.plans import ref, spec, want
from tests.operator.rig import job

FULL = "the disk is full"


def said(**gateways: str) -> dict[str, dict[str, Any]]:
    """Of each gateway, what is wrong with its journal."""
    return {name: {"journal": {"healthy": not why, "detail": why}} for name, why in gateways.items()}


def test_an_agent_that_died_meanwhile_is_not_to_blame_and_one_that_dies_later_is(tmp_path: Path) -> None:
    now = [1000.0]
    state = DriverState(
        job=job("a x"),
        observed=Observed(want=want(groupSize=2)),
        changed=lambda key: None,
        now=lambda: now[0],
    )
    journals = Journals(state, tmp_path, lambda event: None)
    state.observe(GatewayChanged("g0", ready=True))
    for sample in range(2):
        state.observe(SessionOpened(ref(sample=sample), "g0", 990.0))
        state.observe(AgentSeen(ref(sample=sample), Running(990.0, 991.0)))
    journals.look(said(g0=FULL))
    died = Exit(1001.0, 1)
    assert failure(spec(), state.observed.sessions[ref().name], died)[0] is FailureReason.GATEWAY_LOST
    now[0] = 1002.0
    journals.look(said(g0=""))
    later = state.observed.sessions[ref(sample=1).name]
    assert [(one.since, one.until) for one in later.outages] == [(1000.0, 1002.0)]
    turned = SessionSummary(session_id=later.ref.name, state=SessionState.OPEN, turned_at=1003.0)
    late = replace(later, summary=turned)
    assert failure(spec(), late, Exit(1100.0, 1))[0] is FailureReason.ANSWER_WRONG


def test_it_is_told_once_and_no_session_goes_there_until_it_is_mended(tmp_path: Path) -> None:
    state = DriverState(
        job=job("a x"), observed=Observed(want=want()), changed=lambda key: None, now=lambda: 5.0
    )
    told: list[Event] = []
    journals = Journals(state, tmp_path, told.append)
    for name in ("g0", "g1"):
        state.observe(GatewayChanged(name, ready=True))

    def ready() -> tuple[str, str, str]:
        found = find(job_status(want(), state.observed.job(), 5.0), JobCondition.READY)
        assert found is not None
        return found.status.value, found.reason, found.message

    journals.look(said(g0="", g1=""))
    assert not told
    for _ in range(2):
        journals.look(said(g0="", g1=FULL))
    assert (set(state.observed.gateways), set(journals.outages)) == ({"g0"}, {"g1"})
    for _ in range(2):
        journals.look(said(g0=FULL, g1=FULL))
    assert ready() == ("False", "NoGateway", f"no gateway takes sessions: g1: {FULL}; g0: {FULL}")
    journals.look(said(g0=FULL, g1=""))
    assert (set(state.observed.gateways), ready()[0]) == ({"g1"}, "True")
    journals.look(said(g0="", g1=""))
    assert set(state.observed.gateways) == {"g0", "g1"}
    assert not journals.outages
    problem = "cannot write its journal: the disk is full"
    assert [(type(one), one.text.partition(";")[0]) for one in told if isinstance(one, Problem | Note)] == [
        (Problem, f"g1 {problem}"),
        (Problem, f"g0 {problem}"),
        (Note, "g1 writes its journal again"),
        (Note, "g0 writes its journal again"),
    ]
