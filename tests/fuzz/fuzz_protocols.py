"""Any body is understood or refused: `python -m tests.fuzz.fuzz_protocols [SEED] [N]`.

Fast and dumb, so that a million bodies take minutes: good bodies (protocol_seeds) are cut, spliced and retyped, as
bytes or as values, and given to every adapter. What is understood also goes through matching, which must not fail
either. The only exception that may come out is a SandgateError; any other one is raised here with its body,
as is one that takes longer than an event loop may stall.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from sandgate.contract.errors import BadRequest, SandgateError
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.protocols.base import Adapter
from sandgate.gateway.protocols.table import ADAPTERS
from tests.fuzz.mutating import copied, edit
from tests.fuzz.patience import quick
from tests.fuzz.protocol_seeds import good_bodies

TOKENS = [
    *(b"null true false NaN -Infinity 0 -1 1e999 1.0 [] {} [ ] { } , : \"".split()),
    *(b"\\ud83d \\udd5d \\u0000 \\\\ \\\" \xff \xc3\x28 \xe2\x80\xa8 \xef\xbb\xbf".split()),
    b"9" * 400, b"[" * 2000, b'{"a":' * 2000, b'""', b'"text"', b'"type":', b'"role":"tool"', b'"content":', b" \n",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63) - 1, 10**40, 1.5, -0.0, 1e300, "", "auto", "user", "text", "\u2028",
    "x" * 300, [], {}, [None], [[]], {"type": "text"}, {"type": "function"}, {"name": "f"}, [{"type": "image_url"}],
    [{"type": "tool_result", "tool_use_id": "c"}], {"type": "tool_use", "name": "f", "input": {}}, {"type": "thinking"},
]  # fmt: skip
EDITS_MAX = 3
OWN_SHARE = 0.9
"""Bodies of the adapter's own dialect; the others are another's, which clients send to the wrong path."""
BYTES_SHARE = 0.3
"""Edited as bytes; most of these are no JSON any more, and go no further than the reader."""


class Escaped(Exception):
    """An adapter raised something else; the body says what for."""

    def __init__(self, adapter: str, body: bytes) -> None:
        super().__init__(f"{adapter}: {body!r}")
        self.body = body


def run(seed: int, n: int, adapters: Mapping[str, Adapter] = ADAPTERS) -> Counter[str]:
    """Feed n bodies to each adapter. Returns how many were understood, and refused for which reason."""
    chance = random.Random(seed)
    seeds = {adapter.name: good_bodies(adapter.name) for adapter in ADAPTERS.values()}
    every = [body for own in seeds.values() for body in own]
    seen: Counter[str] = Counter()
    for _ in range(n):
        for name, adapter in adapters.items():
            raw = chance.choice(seeds.get(adapter.name, every) if chance.random() < OWN_SHARE else every)
            as_bytes = chance.random() < BYTES_SHARE
            body = edited(raw, chance) if as_bytes else _value(msgspec.json.decode(raw), chance)
            try:
                with quick():
                    request = adapter.decode(body, {})
                    Tree().find(request)
                seen["understood"] += 1
            except BadRequest as error:
                if not error.field or not adapter.error_body(error):
                    raise Escaped(name, body) from error
                seen[error.reason] += 1
            except SandgateError as error:
                seen[error.reason] += 1
            except Exception as error:
                raise Escaped(name, body) from error
    return seen


def edited(body: bytes, chance: random.Random) -> bytes:
    """Cut, repeat, flip, put in a token."""
    for _ in range(chance.randint(1, EDITS_MAX)):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(5):
            case 0:
                body = body[:at] + chance.choice(TOKENS) + body[at:]
            case 1:
                body = body[:at] + chance.choice(TOKENS) + body[at + chance.randint(1, 12) :]
            case 2:
                body = body[:at] + body[at + chance.randint(1, 30) :]
            case 3:
                body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
            case _:
                end = at + chance.randint(1, 60)
                body = body[:end] + body[at:end] + body[end:]
    return body


def _value(value: Any, chance: random.Random) -> bytes:
    """Good JSON with other values in it."""
    value = copied(value)
    for _ in range(chance.choice((1, 1, EDITS_MAX))):
        edit(value, chance, VALUES)
    return msgspec.json.encode(value)


def main(seed: str = "0", n: str = "1000000") -> None:
    """Print what came of it."""
    for reason, count in run(int(seed), int(n)).most_common():
        print(f"{count:>9} {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
