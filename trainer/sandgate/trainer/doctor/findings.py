"""Finding: what a check found, and what to do about it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from sandgate.contract.trajectory import Json

Verdict = Literal["ok", "warn", "fail", "skip"]
"""warn: works, but know this. fail: rollouts would be wrong or impossible. skip: could not be judged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """What to do about it; empty for ok."""


def ok(check: str, detail: str) -> Finding:
    return Finding(check, "ok", detail)


def warn(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, "warn", detail, fix)


def fail(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, "fail", detail, fix)


def skip(check: str, detail: str) -> Finding:
    return Finding(check, "skip", detail)


def as_rows(findings: Iterable[Finding]) -> list[dict[str, Json]]:
    """For tables and --json."""
    return [asdict(finding) for finding in findings]
