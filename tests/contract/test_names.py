"""Derived names are DNS labels, the same for the same thing, and different for different things."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.names import (
    ATTEMPTS_MAX,
    JOB_NAME_KEPT_MAX,
    JOB_NAME_MAX,
    LABEL_MAX,
    LABEL_PATTERN,
    SAMPLES_MAX,
    done_name,
    engines_name,
    gateway_name,
    gateways_name,
    group_name,
    pod_name,
    session_id,
    short_hash,
    signing_name,
    slug,
    trainer_name,
    verifier_name,
    workload_name,
)

LABEL = re.compile(LABEL_PATTERN)
job_names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True)


def is_label(name: str) -> bool:
    return len(name) <= LABEL_MAX and LABEL.fullmatch(name) is not None


@given(
    job=job_names,
    uid=st.text(min_size=1, max_size=256),
    sample=st.integers(0, SAMPLES_MAX - 1),
    attempt=st.integers(0, ATTEMPTS_MAX - 1),
)
def test_every_derived_name_is_a_dns_label(job: str, uid: str, sample: int, attempt: int) -> None:
    name = session_id(job, uid, sample, attempt)
    assert is_label(name)
    assert is_label(pod_name(name))
    assert is_label(group_name(job, uid))
    assert name.startswith(group_name(job, uid))
    assert name == session_id(job, uid, sample, attempt)


@given(job=job_names, index=st.integers(0, 99))
def test_gateways_are_named_by_their_job(job: str, index: int) -> None:
    assert is_label(gateway_name(job, index))


@given(
    first=st.tuples(job_names, st.text(max_size=30), st.integers(0, 99), st.integers(0, 9)),
    second=st.tuples(job_names, st.text(max_size=30), st.integers(0, 99), st.integers(0, 9)),
)
def test_different_attempts_have_different_names(
    first: tuple[str, str, int, int], second: tuple[str, str, int, int]
) -> None:
    assert (session_id(*first) == session_id(*second)) == (first == second)


def test_texts_that_look_alike_are_told_apart() -> None:
    names = {group_name("shop", uid) for uid in ("a b", "a-b", "A b", "a_b", "a  b", "")}
    assert len(names) == 6
    assert short_hash("ab", "c") != short_hash("a", "bc")


def test_a_person_recognises_the_task() -> None:
    assert (
        session_id("shop", "Django__12345", 3, 1)
        == f"shop-django-12345-{short_hash('shop', 'Django__12345')}-3-1"
    )
    assert slug("日本", 10) == "x"


@pytest.mark.parametrize(("sample", "attempt"), [(-1, 0), (SAMPLES_MAX, 0), (0, -1), (0, ATTEMPTS_MAX)])
def test_numbers_out_of_range_would_make_names_too_long(sample: int, attempt: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        session_id("shop", "q1", sample, attempt)


def test_the_longest_job_name_leaves_room() -> None:
    assert len(gateway_name("x" * JOB_NAME_KEPT_MAX, 99)) <= LABEL_MAX
    revision = f"{gateways_name('x' * JOB_NAME_MAX)}-{2**32 - 1}"
    assert len(revision) == LABEL_MAX, "controller-revision-hash of the gateways' pods"


NAMES: dict[str, str] = {
    "gateways": gateways_name("x" * JOB_NAME_KEPT_MAX),
    "engines": engines_name("x" * JOB_NAME_KEPT_MAX),
    "its signing Secret": signing_name("x" * JOB_NAME_KEPT_MAX),
    "its trainer's Secret": trainer_name("x" * JOB_NAME_KEPT_MAX),
    "done tasks": done_name("x" * JOB_NAME_KEPT_MAX, 999),
    "its Workload": workload_name("x" * JOB_NAME_KEPT_MAX, "u"),
    "a session": session_id("x" * JOB_NAME_KEPT_MAX, "y" * 99, SAMPLES_MAX - 1, ATTEMPTS_MAX - 1),
    "a verifier's pod": verifier_name(
        session_id("x" * JOB_NAME_KEPT_MAX, "y" * 99, SAMPLES_MAX - 1, ATTEMPTS_MAX - 1)
    ),
    "a group": group_name("x" * JOB_NAME_KEPT_MAX, "y" * 99),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_every_derived_name_of_the_longest_job_is_a_label(name: str) -> None:
    """Services and pods are named so: part of host names."""
    assert re.fullmatch(LABEL_PATTERN, name)
    assert len(name) <= LABEL_MAX
