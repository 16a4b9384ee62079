"""What is to be programmed: small specifications in words, the programs that meet them, and what is held out."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

WORDS = {
    "+": ("add", "plus"),
    "-": ("subtract", "minus"),
    "*": ("times", "multiply by"),
    "//": ("divide by", "over"),
    "%": ("modulo", "rest by"),
}
"""Of each step, before its number."""
HELD_OUT = 5
"""Every fifth specification is held out: neither the lessons nor the training tasks ever have it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on x."""

    name: str
    n: int

    def line(self) -> str:
        """Python."""
        return f"x {self.name}= {self.n}"

    def apply(self, x: int) -> int:
        """What the line does: the verifier's own arithmetic, which runs no text of the model."""
        match self.name:
            case "+":
                return x + self.n
            case "-":
                return x - self.n
            case "*":
                return x * self.n
            case "//":
                return x // self.n
        return x % self.n


Steps = tuple[Step, ...]


def random_step(rnd: random.Random, after: str = "") -> Step:
    """`after`: the step before, which is not repeated."""
    name = rnd.choice([one for one in WORDS if one != after])
    return Step(name, rnd.randint(2, 99 if name in "+-%" else 12))


def random_steps(rnd: random.Random, held_out: bool) -> Steps:
    """A specification of that side of the split."""
    while True:
        found: list[Step] = []
        for _ in range(rnd.choice((2, 2, 3))):
            found.append(random_step(rnd, found[-1].name if found else ""))
        if is_held_out(found) == held_out:
            return tuple(found)


def is_held_out(steps: Sequence[Step]) -> bool:
    return zlib.crc32(program(steps).encode()) % HELD_OUT == 0


def program(steps: Sequence[Step]) -> str:
    return "; ".join(step.line() for step in steps)


def value(steps: Sequence[Step], x: int) -> int:
    for step in steps:
        x = step.apply(x)
    return x


def told(rnd: random.Random, steps: Sequence[Step]) -> str:
    return ", ".join(f"{rnd.choice(WORDS[step.name])} {step.n}" for step in steps)


@dataclass(frozen=True, slots=True)
class Spec:
    """What the tool `read` finds under a number: words, and one pair to try a program on."""

    words: str
    given: int
    wanted: int

    @classmethod
    def of(cls, rnd: random.Random, steps: Steps) -> Spec:
        given = rnd.randint(2, 60)
        return cls(told(rnd, steps), given, value(steps, given))

    def text(self) -> str:
        return f"{self.words}. f({self.given}) = {self.wanted}"

    def compared(self, got: int) -> str:
        """What the tool `run` answers."""
        same = "as wanted" if got == self.wanted else f"wanted {self.wanted}"
        return f"f({self.given}) = {got}, {same}"
