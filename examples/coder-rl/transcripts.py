"""Training rows made of chat transcripts, as trainers make them that see only messages: rendered, and tokenized anew.

The text is what the agent has; which token ids the model said it in is guessed by the tokenizer, and which of them it
said at all by where the chat template puts an assistant's turns. There are no logprobs of the sampling: the trainer
takes its own, as if its own weights had sampled those ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

Json = Any
Encode = Any
"""Messages and whether the assistant speaks next -> ids of the conversation."""


class Transcripts:
    """Messages of sessions by session id; on disk too, for a trainer that was killed and goes on with them."""

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, {}  # type: ignore[var-annotated]
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                name, messages = json.loads(line)
            except ValueError:  # cut by a kill
                continue
            self._known[name] = messages

    def keep(self, session: str, messages: list[Json]) -> None:
        self._known[session] = messages
        with self._path.open("a") as file:
            file.write(json.dumps([session, messages]) + "\n")

    def of(self, session: str | None) -> list[Json] | None:
        return self._known.get(session)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A row as a transcript tells it."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    """1: said by an assistant, as far as the template shows."""

    @classmethod
    def of(cls, messages: Sequence[Json], encode: Encode, end: int) -> Rebuilt:
        """The prompt is all before the first assistant turn. `end`: the id that closes a turn; what the template puts
        behind it (a newline) is not the assistant's."""
        said = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
        prompt = encode(messages[: said[0]], True)
        whole, mask = list(prompt), [0] * len(prompt)
        for at in said:
            opened, closed = encode(messages[:at], True), encode(messages[: at + 1], False)
            whole += closed[len(whole) :]
            mask += [0] * (len(opened) - len(mask))
            last = len(closed) - 1 - closed[::-1].index(end)
            mask += [1] * (last + 1 - len(opened)) + [0] * (len(closed) - 1 - last)
        while mask and not mask[-1]:
            mask.pop()
        return cls(prompt, whole[len(prompt) : len(mask)], mask[len(prompt) :])


def around_first_difference(ours: list[int], theirs: list[int]) -> tuple[list[int], list[int]]:
    """A few ids of both, from a little before they part."""
    same = (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    at = max(0, next(same, min(len(ours), len(theirs))) - 3)
    return ours[at : at + 10], theirs[at : at + 10]


@dataclass(frozen=True, slots=True)
class Difference:
    """Between a record and what a transcript makes of it."""

    sampled: int
    """Tokens that the policy sampled."""
    lost: int
    """Of these not in the transcript's row, as tokens that are trained on."""
    invented: int
    """Tokens that are trained on though nobody sampled them."""

    @classmethod
    def of(cls, prompt: list[int], ids: list[int], mask: list[int], rebuilt: Rebuilt) -> Difference:
        ours = list(zip([*prompt, *ids], [*[0] * len(prompt), *mask], strict=True))
        theirs = list(
            zip(
                [*rebuilt.prompt_ids, *rebuilt.completion_ids],
                [*[0] * len(rebuilt.prompt_ids), *rebuilt.mask],
                strict=True,
            )
        )
        if ours == theirs:
            return cls(sum(mask), 0, 0)
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        same = sum(mask for one in blocks for _, mask in ours[one.a : one.a + one.size])
        return cls(sum(mask), sum(mask) - same, sum(rebuilt.mask) - same)
