"""What the tiny model is taught before it learns by itself: how the tools are used, by a careless demonstrator.

It knows the skill afterwards, and makes the demonstrator's mistakes: programs with slips, submitted without a try
or though the try failed. Unlearning those is left to reinforcement learning. Needs examples/learning on the path.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from spec import WORDS, Spec, Step, Steps, program, random_step, random_steps, value
from turns import Piece, call, tool_turn, user_turn


@dataclass(frozen=True)
class Mistakes:
    """Chance of each."""

    slip: float = 0.0
    """A program is not what the spec says."""
    untried: float = 0.0
    """Submitted without a run."""
    heedless: float = 0.0
    """Submitted though the run was wrong."""
    copy: float = 0.0
    """What is submitted is not what was run."""


NONE = Mistakes(slip=0.25)
"""Careful: it still errs, to show how an error is mended."""
SOME = Mistakes(slip=0.55, untried=0.3, heedless=0.5, copy=0.1)


def slipped(rnd: random.Random, steps: Steps) -> Steps:
    """Nearly right: a number, an operation or the order is not."""
    wrong = list(steps)
    at = rnd.randrange(len(wrong))
    match rnd.randrange(3):
        case 0:
            wrong[at] = Step(wrong[at].name, rnd.randint(2, 99))
        case 1:
            wrong.reverse()
        case _:
            wrong[at] = random_step(rnd, wrong[at].name)
    return tuple(wrong)


def copied(rnd: random.Random) -> list[Piece]:
    """Say it again: a model from nothing learns to copy in a minute of this, and in half an hour of episodes."""
    words = [*WORDS, ";", "x", "f(", ")", ",", "=", *(words[0] for words in WORDS.values())]
    said = " ".join(rnd.choice(words) if rnd.random() < 0.5 else str(rnd.randint(2, 99)) for _ in range(14))
    return [(f" {said}\n", False), (f" {said}\n", True)]


def translated(rnd: random.Random) -> list[Piece]:
    """A specification and its program, with nothing around."""
    steps = random_steps(rnd, held_out=False)
    words = Spec.of(rnd, steps).text()
    return [(tool_turn(words), False), (call(rnd.choice(("run", "submit")), {"code": program(steps)}), True)]


def episode(rnd: random.Random, mistakes: Mistakes) -> list[Piece]:
    """All after the system turn, as (text, taught) pieces."""

    def slip(chance: float) -> bool:
        return rnd.random() < chance

    steps = random_steps(rnd, held_out=False)
    spec, number = Spec.of(rnd, steps), rnd.randint(100, 999)
    out: list[Piece] = [(user_turn(f"spec {number}"), False)]
    out += [(call("read", {}), True), (tool_turn(spec.text()), False)]
    tried = slipped(rnd, steps) if slip(mistakes.slip) else steps
    if not slip(mistakes.untried):
        for _ in range(3):
            got = value(tried, spec.given)
            out += [(call("run", {"code": program(tried)}), True), (tool_turn(spec.compared(got)), False)]
            if got == spec.wanted or slip(mistakes.heedless):
                break
            tried = slipped(rnd, steps) if slip(mistakes.slip / 2) else steps
    last = slipped(rnd, steps) if slip(mistakes.copy) else tried
    return [*out, (call("submit", {"code": program(last)}), True)]
