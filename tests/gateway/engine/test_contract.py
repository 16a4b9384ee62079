"""docs/reference/engines.md promises what the suites hold, and all that they hold."""

from __future__ import annotations

from scripts.generators.engines import CLAUSES
from tests.gateway.engine import test_conformance, test_faults, test_sglang_own


def named_in(module: object) -> set[str]:
    return {name for name in vars(module) if name.startswith("test_")}


def test_every_test_of_the_suites_is_a_clause_and_every_clause_has_tests() -> None:
    cited = [name for clause in CLAUSES for name in clause.tests]
    assert len(cited) == len(set(cited))
    assert set(cited) == named_in(test_conformance) | named_in(test_faults)
    assert all(clause.tests for clause in CLAUSES)


def test_sglangs_own_server_runs_the_whole_suite_but_what_needs_a_tokenizer() -> None:
    left_out = named_in(test_conformance) - named_in(test_sglang_own)
    assert left_out == {"test_a_stop_string_ends_it_and_its_tokens_are_kept"}
