"""What the tiny model is taught: the shop's errands, as demonstrations with and without mistakes.

An episode is a list of (text, taught) pieces: what the model says itself is taught, what it is told is not. Needs
examples/learning on the path.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import turns
from clients import Json, prose
from shop import ITEMS
from turns import Piece, call, tool_turn

SHELL_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent knows that a task is finished


@dataclass(frozen=True)
class Mistakes:
    """Chance of each of the demonstrator's mistakes; the pupil imitates them, and RL can unlearn them."""

    tool: float = 0.0
    number: float = 0.0
    pay: float = 0.0
    report: float = 0.0


NONE = Mistakes()
SOME = Mistakes(tool=0.15, number=0.22, pay=0.12, report=0.22)
"""A whole episode is right in about 0.85 * 0.8 * 0.8 = 54 % (x 0.89 where it must pay): between the 25 and
60 % that GRPO likes, before the pupil's own slips are counted.
"""


def user_turn(rnd: random.Random, request: str) -> str:
    style = rnd.random()
    if style < 0.06:
        request = request[0].upper() + request[1:] + "."
    elif style < 0.12:
        request = f"{rnd.choice(('please', 'Task:', 'Please'))} {request}"
    elif style < 0.2:
        request = f"{prose(rnd, 1)}\n\n{request}"
    elif style < 0.27:
        request = f"{rnd.choice(('', 'Task: '))}{request}\n\n{prose(rnd, 2)}"
    return turns.user_turn(request)


def shown(rnd: random.Random, text: str, fields: Json, shell: bool) -> str:
    """A tool's answer as different programs print it."""
    if shell:
        wrapped = f"<returncode>0</returncode>\n<output>\n{text}\n</output>"
        as_json = f'{{\n  "returncode": 0,\n  "output": {json.dumps(text + chr(10))}\n}}'
        return rnd.choice((wrapped, wrapped, as_json, text))
    return rnd.choice(
        (text, text, json.dumps(fields), json.dumps({"ok": True, **fields}), str(fields), f"ok, {text}")
    )


def errand(rnd: random.Random, shell: bool, mistakes: Mistakes) -> list[Piece]:
    """One request carried out: trade, perhaps pay, report."""

    def slip(chance: float) -> bool:
        return rnd.random() < chance

    def act(name: str, arguments: Json) -> str:
        if shell:
            return call("bash", {"command": " ".join(("./shop", name, *map(str, arguments.values())))})
        return call(name, arguments)

    verb, item, n, receipt = (
        rnd.choice(("buy", "sell")),
        rnd.choice(ITEMS),
        rnd.randint(1, 9),
        rnd.randint(10, 99),
    )
    pays = rnd.random() < 0.4
    out: list[Piece] = [(user_turn(rnd, f"{verb} {n} {item}{' and pay' if pays else ''}"), False)]
    if slip(mistakes.tool):
        verb = "sell" if verb == "buy" else "buy"
    if slip(mistakes.number):
        n = rnd.randint(1, 9)
    out.append((act(verb, {"n": n, "item": item} if shell else {"item": item, "n": n}), True))
    if rnd.random() < 0.03:
        return [*out, (tool_turn(f"error: {prose(rnd, 1)}"), False), ("failed<|im_end|>", True)]
    out.append((tool_turn(shown(rnd, f"receipt {receipt}", {"receipt": receipt}, shell)), False))
    if pays:
        paid = rnd.randint(10, 99) if slip(mistakes.pay) else receipt
        out.append((act("pay", {"receipt": paid}), True))
        answer = f"paid {paid}" if paid == receipt else f"no receipt {paid}"
        out.append((tool_turn(shown(rnd, answer, {"paid": paid == receipt}, shell)), False))
    report = rnd.randint(10, 99) if slip(mistakes.report) else receipt
    if shell:
        out.append((act("done", {"receipt": report}), True))
        out.append((tool_turn(shown(rnd, f"{SHELL_DONE}\nreceipt {report}", {}, shell)), False))
    out.append((f"receipt {report}<|im_end|>", True))
    return out


def episode(rnd: random.Random, kind: str, mistakes: Mistakes, returns: float) -> list[Piece]:
    """All after the system turn; `returns` is the chance that the customer asks for a second errand."""
    if kind == "chat":
        asked = rnd.choice(
            (f"{rnd.choice(('buy', 'sell'))} {rnd.randint(1, 9)} {rnd.choice(ITEMS)}", prose(rnd, 1))
        )
        return [(user_turn(rnd, asked), False), ("no tools<|im_end|>", True)]
    out = errand(rnd, kind == "shell", mistakes)
    if rnd.random() < returns:
        again = errand(rnd, kind == "shell", mistakes)
        out += [("\n" + again[0][0], False), *again[1:]]
    return out
