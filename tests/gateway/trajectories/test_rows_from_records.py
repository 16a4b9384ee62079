"""Rows straight from the journal's records are those of the session that the records fold to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.journal.records import (
    Completed,
    Delivered,
    Intent,
    Opened,
    Record,
    Rewarded,
    Sealed,
    TurnCommitted,
)
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.session_tree import trajectories_from, trajectories_of
from sandgate.gateway.trajectories.linearize import Facts
from tests.gateway.trajectories.test_linearize import SPEC, forests

SENT: list[dict[str, Any]] = [{}, {"unsure": True}, {"partly": True}]
FACTS = Facts(model="m", renderer="r", engine="e", logprobs_mode="l", tokenizer_digest="t")


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Of one session: turns of a forest, each told or not, perhaps twice; rewards and ends anywhere after them."""
    found: list[Record] = [Opened(at=1.0, spec=SPEC)]
    for number, turn in enumerate(draw(forests())):
        record = TurnCommitted(
            at=2.0,
            turn=turn.id,
            parent=turn.parent,
            fork=draw(st.sampled_from([None, "compaction"])),
            digest=turn.id.encode(),
            context=turn.context.tobytes(),
            ids=turn.ids.tobytes(),
            logprobs=turn.logprobs.tobytes(),
            versions=turn.versions,
            finish=turn.finish,
            reply=Reply(),
            prompt_key=turn.id.encode(),
            head_key=b"h",
            sampling={"temperature": number},
            build=draw(st.sampled_from(["", "e", "e2"])),
            renderer=draw(st.sampled_from(["", "r2"])),
            prompt_tokens=1,
        )
        found.append(Intent(at=2.0, turn=turn.id, digest=record.digest))
        found += [record] * draw(st.sampled_from([1, 1, 2]))
        if draw(st.booleans()):
            found.append(Delivered(at=2.0, turn=turn.id, **draw(st.sampled_from(SENT))))
        if draw(st.integers(0, 4)) == 0:
            found.append(Rewarded(at=2.0, turn=draw(st.sampled_from([turn.id, None])), reward=number))
        if draw(st.integers(0, 8)) == 0:
            found.append(Completed(at=2.0, info={"n": number}))
        if draw(st.integers(0, 12)) == 0:
            found.append(Sealed(at=3.0, reward=0.5))
    if draw(st.integers(0, 6)):
        found.append(Sealed(at=3.0, reward=number, discount=0.5, aborted=draw(st.integers(0, 6)) == 0))
    found += [Delivered(at=4.0, turn="a")] * draw(st.integers(0, 1))
    return found


@given(histories())
def test_rows_from_records(records: list[Record]) -> None:
    session = Session("s")
    for record in records:
        session.apply(record)
    assert trajectories_from("s", records, FACTS) == trajectories_of(session, FACTS)


def test_a_session_that_goes_on_has_no_rows() -> None:
    assert trajectories_from("s", [Opened(at=1.0, spec=SPEC)], FACTS) == []
