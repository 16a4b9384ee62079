"""Wherever in a session's life its operator dies, another one brings it to the same end: it is judged once, as it was
seen, and never tried again for it. Its pod may have gone meanwhile, ended by force for a side-car that did not end.

But for a death between a session's object and its pod: the next operator cannot tell that from a pod that was deleted
while nobody looked, whose agent may run on. That session is sealed, and another attempt begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionOutcome
from tests.operator import fake_kube
from tests.operator.pod_lives import Life, Lives

R = FailureReason
BY_CODE = {"source": "exitCode"}
BY_ITSELF = {"source": "agent"}
BY_VERIFIER = {
    "source": "verifier",
    "verifier": {"container": {"image": "v", "command": ["judge"]}, "seconds": 60},
}
WELL = {"exitCode": 0, "message": '{"reward": 0.25}'}
LEFT = '{"reward": 0.5, "reward_info": {"tests": "3 of 6"}}'
LATE_S = 45.0
STAYS: dict[str, Any] = {"beside": "container"}

Wanted = tuple[FailureReason | None, float | None] | None
LIVES: dict[str, tuple[Life, Wanted, int]] = {
    "an agent alone": (Life(reward=BY_CODE), (None, 1.0), 4),
    "and its verifier": (Life(reward=BY_VERIFIER, verdict=WELL), (None, 0.25), 5),
    "a side-car that ends late": (
        Life(reward=BY_VERIFIER, verdict=WELL, beside="container", beside_s=LATE_S),
        (None, 0.25),
        7,
    ),
    "a side-car that never ends, before a verdict": (
        Life(reward=BY_VERIFIER, verdict=WELL, **STAYS),
        (None, 0.25),
        7,
    ),
    "an init container that never ends": (
        Life(reward=BY_VERIFIER, verdict=WELL, beside="init"),
        (None, 0.25),
        7,
    ),
    "one that never ends, by exit code": (Life(reward=BY_CODE, **STAYS), (None, 1.0), 6),
    "a wrong answer stays one": (Life(reward=BY_CODE, code=1, **STAYS), (R.ANSWER_WRONG, 0.0), 6),
    "what the agent left counts": (Life(reward=BY_ITSELF, message=LEFT, **STAYS), (None, 0.5), 6),
    "a crash is judged": (
        Life(reward=BY_VERIFIER, verdict=WELL, code=3, message="boom", **STAYS),
        (R.AGENT_EXIT, 0.25),
        7,
    ),
    "a verifier that fails": (
        Life(reward=BY_VERIFIER, verdict={"exitCode": 1}, **STAYS),
        (R.VERIFIER_FAILED, None),
        7,
    ),
    "an agent whose time was up": (
        Life(reward=BY_VERIFIER, verdict=WELL, code=None, **STAYS),
        (R.SESSION_TIMEOUT, 0.25),
        8,
    ),
    "and that does not end": (
        Life(reward=BY_VERIFIER, verdict=WELL, code=None, heeds=False, **STAYS),
        (R.SESSION_TIMEOUT, 0.25),
        7,
    ),
    "one that completed": (
        Life(reward=BY_ITSELF, code=None, completes=True, beside="container", beside_s=0.0),
        (None, None),
        6,
    ),
    "one that completed, and does not end": (
        Life(reward=BY_ITSELF, code=None, completes=True, heeds=False, **STAYS),
        (None, None),
        6,
    ),
    "a verifier that its node does not end": (
        Life(reward=BY_VERIFIER, **STAYS),
        (R.VERIFIER_FAILED, None),
        8,
    ),
}
"""(what happens, (reason, reward), API writes that are about the session)."""


@pytest.fixture(autouse=True)
def _unruled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What our definitions refuse is held by others, and asking them is most of a life's time."""
    monkeypatch.setattr(fake_kube, "check", lambda *_: None)


def deaths(whole: Lives) -> Iterator[Lives]:
    """At every call, before and after it; and between all turns, with nobody there for a while."""
    for number in range(whole.calls):
        yield Lives(whole.life, before=number)
        yield Lives(whole.life, after=number)
    for number in range(whole.turns):
        yield Lives(whole.life, between=number, away_s=300.0)


@pytest.mark.parametrize(("life", "wanted", "writes"), LIVES.values(), ids=LIVES)
async def test_a_session_ends_alike_wherever_its_operator_dies(
    life: Life, wanted: Wanted, writes: int
) -> None:
    whole = Lives(life)
    end = await whole.run()
    assert (end and (end.failure_reason, end.reward)) == wanted
    assert list(whole.kube.touched.values()) == [writes]
    found: dict[str, SessionOutcome | None] = {}
    untold = 0
    for one in deaths(whole):
        where = f"before={one.before} after={one.after} between={one.between}"
        found[where] = await one.run()
        assert not one.wrong, f"{where}: {one.wrong}"
        assert one.made("agent") <= 1, where
        if one.untold:
            untold += 1
            assert found.pop(where) is None, where
            continue
        # One that was ended by force has said nothing: another may judge.
        judged_once = life.reward is not BY_VERIFIER or life.verdict is None or one.made("verifier") == 1
        assert judged_once, where
    assert found == dict.fromkeys(found, end)
    assert 4 <= untold <= 6, "after its object, around its opening and its pod's making, and between"
