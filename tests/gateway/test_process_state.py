"""What a process was told is the fold of its records, and a compacted log folds to the same."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from sandgate.gateway.journal.records import (
    AdapterServed,
    CapacityChanged,
    EnginesLabelled,
    EnginesSet,
    PolicyVersion,
    Record,
    TurnsHeld,
    decode,
    encode,
)
from sandgate.gateway.service.process_state import ProcessRecord, ProcessState

AT = st.just(1.0)
UPDATES = st.sampled_from(["", "000000000001.a", "000000000001.b", "000000000002.a"])
RECORDS = st.lists(
    st.one_of(
        st.builds(PolicyVersion, at=AT, version=st.integers(0, 9)),
        st.builds(AdapterServed, at=AT, version=st.integers(0, 9), name=st.just("a")),
        st.builds(EnginesLabelled, at=AT, labelled=st.booleans()),
        st.builds(TurnsHeld, at=AT, paused=st.booleans(), update=UPDATES),
        st.builds(EnginesSet, at=AT, urls=st.lists(st.just("http://e"), max_size=2).map(tuple)),
        st.builds(CapacityChanged, at=AT, by=st.integers(-3, 3)),
    )
)


def fold(records: list[Record]) -> ProcessState:
    def step(state: ProcessState, record: Record) -> ProcessState:
        assert isinstance(record, ProcessRecord)
        return state.apply(record)

    return reduce(step, records, ProcessState())


def test_a_held_turn_of_an_older_journal_names_no_update() -> None:
    older = msgpack.encode({"type": "held", "schema": 4, "at": 1.0, "paused": True})
    assert fold([decode(older)]) == ProcessState(paused=True)


@given(records=RECORDS)
def test_a_compacted_log_folds_to_the_state_that_it_replaces(records: list[Record]) -> None:
    state = fold(records)
    assert fold([decode(encode(record)) for record in state.snapshot(2.0)]) == state
