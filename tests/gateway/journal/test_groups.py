"""What a failed write takes with it."""

from __future__ import annotations

import pytest

from sandgate.gateway.journal.commit_batch import CommitRequest, after_failure

CASES = {
    "a request whose caller waits is refused": (["a sync"], "a", ""),
    "requests without sync are kept": (["a later", "b later"], "", "a b"),
    "later records of a refused session rest on a hole": (["a sync", "a later"], "a a", ""),
    "earlier records of a refused session rest on no hole": (["a later", "a sync"], "a", "a"),
    "a hole in one session is none in another": (["a sync", "b later", "a later"], "a a", "b"),
    "what was delivered rests on no hole": (["a sync", "a sent", "a later"], "a a", "a"),
    "a hole grows with each refused record of its session": (
        ["a sync", "a later", "a later", "b later"],
        "a a a",
        "b",
    ),
}


@pytest.mark.parametrize(("queued", "refused", "kept"), CASES.values(), ids=CASES)
def test_after_a_failure(queued: list[str], refused: str, kept: str) -> None:
    jobs = [
        CommitRequest(line[0], (b"record",), sync=line.endswith("sync"), alone=line.endswith("sent"))
        for line in queued
    ]
    out = after_failure(jobs)
    assert tuple(" ".join(job.session for job in half) for half in out) == (refused, kept)


def test_a_refused_probe_or_retirement_makes_no_hole() -> None:
    kept = CommitRequest("", (b"lease",), sync=False)
    refused, rest = after_failure([CommitRequest(), CommitRequest(forget=("a",)), kept])
    assert len(refused) == 2
    assert rest == [kept]
