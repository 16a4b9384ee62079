"""Where our parse differs from vLLM's, and why: what docs/reference/vllm-parsers.md lists. (pure)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.gateway.tokens.vllm_parity.corpus import TYPES, Answer


@dataclass(frozen=True, slots=True)
class Parsed:
    """A turn as one of the two reads it; arguments as JSON values."""

    text: str
    reasoning: str
    calls: list[tuple[str, Any]]
    malformed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer of one template, and what both make of it."""

    template: str
    answer: Answer
    ours: Parsed
    theirs: Parsed

    def same_words(self) -> bool:
        """But for white space at their ends."""
        return self.ours.text.strip() == self.theirs.text.strip() and self.same_thought()

    def same_thought(self) -> bool:
        return self.ours.reasoning.strip() == self.theirs.reasoning.strip()

    def ours_is_given(self) -> bool:
        """Our calls are those that the template was given: all, or of a cut answer the first ones."""
        given = self.answer.calls
        return self.ours.calls == (given if self.answer.whole else given[: len(self.ours.calls)])


def _space(it: Compared) -> bool:
    return it.same_words() and it.ours.calls == it.theirs.calls


def _spelt(it: Compared) -> bool:
    return it.answer.name.startswith("spelt ") and it.ours_is_given() and not it.ours.malformed


def _spelt_closer(it: Compared) -> bool:
    named = it.answer.name in ("spelt </arg_value>", "spelt </parameter>")
    return named and not it.ours.calls and it.ours.text in it.ours.malformed


def _cut(it: Compared) -> bool:
    done = len(it.ours.calls)
    before = it.ours.text.removesuffix("".join(it.ours.malformed[-1:]))
    return (
        not it.answer.whole
        and bool(it.ours.malformed)
        and it.theirs.calls[:done] == it.ours.calls
        and len(it.theirs.calls) <= done + 1
        and it.theirs.text.strip() == before.strip()
        and it.same_thought()
    )


def _cut_opener(it: Compared) -> bool:
    return (
        not it.answer.whole
        and it.ours.text.strip() == f"[TOOL_CALLS]{it.theirs.text}"
        and not it.theirs.calls
    )


def _lost_with_the_cut(it: Compared) -> bool:
    return (
        not it.answer.whole
        and bool(it.ours.calls)
        and it.ours_is_given()
        and not it.theirs.calls
        and bool(it.theirs.text)
    )


def _lost_with_the_next(it: Compared) -> bool:
    whole = it.theirs.calls[:-1]
    return (
        not it.answer.whole
        and not it.ours.calls
        and bool(it.ours.malformed)
        and bool(whole)
        and whole == it.answer.calls[: len(whole)]
        and it.same_thought()
    )


def _no_thought(it: Compared) -> bool:
    return (
        "Seed-OSS" in it.template
        and not it.ours.reasoning
        and not it.theirs.text
        and it.theirs.reasoning.strip() == it.ours.text.removesuffix("".join(it.ours.malformed)).strip()
        and it.theirs.calls[: len(it.ours.calls)] == it.ours.calls
    )


def _behind(it: Compared) -> bool:
    said = it.answer.text if it.answer.whole else it.answer.text[: len(it.ours.text)]
    return (
        "gemma4" in it.template
        and bool(it.ours.text)
        and it.ours.text.strip() == said.strip()
        and not it.theirs.text
        and _untyped(it.ours.calls) == _untyped(it.theirs.calls)
        and it.same_thought()
    )


def _number(it: Compared) -> bool:
    return (
        "gemma4" in it.template and it.same_words() and _untyped(it.ours.calls) == _untyped(it.theirs.calls)
    )


def _after_words(it: Compared) -> bool:
    whole = it.theirs.calls == it.answer.calls[: len(it.theirs.calls)]
    spoke = it.ours.text.startswith(it.answer.text) and bool(it.answer.text)
    llama = it.template.rpartition("/")[2].startswith("llama")
    return llama and whole and spoke and not it.ours.calls and not it.theirs.text


def _dashed(it: Compared) -> bool:
    dashed = any("-" in name for name, _ in it.ours.calls)
    return "lfm2" in it.template and dashed and it.ours_is_given() and not it.theirs.calls


def _untyped(value: Any) -> Any:
    """With every number as its text, one for 3 and 3.0."""
    if isinstance(value, dict):
        return {key: _untyped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_untyped(item) for item in value]
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


def _kept_text(it: Compared) -> bool:
    return (
        "poolside-Laguna" in it.template
        and it.answer.name in TYPES
        and it.same_words()
        and it.ours_is_given()
        and [name for name, _ in it.ours.calls] == [name for name, _ in it.theirs.calls]
    )


DIFFERENCES: dict[str, Callable[[Compared], bool]] = {
    "white space beside markup": _space,
    "a marker spelt in letters": _spelt,
    "the closing tag of a value spelt in it": _spelt_closer,
    "a call that was cut": _cut,
    "a call that was cut behind `[TOOL_CALLS]`": _cut_opener,
    "whole calls before a cut": _lost_with_the_cut,
    "calls before a cut in the same block": _lost_with_the_next,
    "a turn of Seed-OSS without a thought": _no_thought,
    "words behind a Gemma call": _behind,
    "numbers without a declared type in a Gemma call": _number,
    "a bare JSON call behind words": _after_words,
    "a text of Laguna's that may be of another type, or of any": _kept_text,
    "a dash in a tool's name, in a call as Python writes it": _dashed,
}
"""The first that holds is the difference's kind; one of no kind fails."""
