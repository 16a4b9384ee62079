"""Law: whatever ids an engine samples and however a client goes on from them, every sampled token is trained in exactly
one row, with its own logprob and version, behind exactly the ids that the engine was given.

`python -m tests.fuzz` looks longer than the tests do.
"""

from __future__ import annotations

import functools
import random
from collections import Counter

from sandgate.contract.errors import BadRequest
from sandgate.gateway.conversation.messages import Message
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.probe_conversations import user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from tests.fuzz.fuzz_answers import Subject, sampled, subjects
from tests.gateway.tokens.histories import Played, echo, following
from tests.gateway.tokens.zoo import zoo


@functools.cache
def by_template(name: str) -> TemplateCodec:
    """Under the history policy `template`."""
    return zoo()[name].codec("template")


def talk(chance: random.Random, subject: Subject) -> Played:
    """A few turns. Clients send back what they were told, without its thoughts or with them, go back, or ask again."""
    codec = subject.codec if chance.random() < 0.7 else by_template(subject.name)
    assert isinstance(codec, TemplateCodec | FamilyCodec)
    played = Played(codec)
    messages: list[Message] = [user("question")]
    before: list[list[Message]] = []
    for number in range(chance.randint(1, 4)):
        finish = chance.choice(["stop", "stop", "stop", "length"])
        ids = sampled(chance, subject)
        if finish == "stop" and chance.random() < 0.8:
            ids.append(chance.choice(subject.codec.stop_ids))
        try:
            record = played.turn(messages, ids, finish=finish)
        except BadRequest:  # the template refuses what the model said
            break
        before.append(messages)
        match chance.randrange(8):
            case 0:
                messages = chance.choice(before)
            case 1:
                messages = [*chance.choice(before), user("else")]
            case _:
                thoughts = chance.random() < 0.5
                messages = [*messages, echo(record, thoughts=thoughts), *following(record, number)]
    return played


def check(played: Played) -> None:
    """The law."""
    trained: Counter[float] = Counter()
    turns = {record.turn: number for number, record in enumerate(played.records)}
    for row in played.rows:
        whole, start = row.prompt_ids + row.response_ids, len(row.prompt_ids)
        for turn, end in zip(row.turn_ids, row.turn_ends, strict=True):
            made, number = played.sampled[turns[turn]], turns[turn]
            first = end - len(made)
            assert whole[: start + first] == played.prompts[number], (
                "a turn stands behind what the engine was given"
            )
            assert row.response_ids[first:end] == made
            mask = row.loss_mask[first:end].tolist()
            assert mask in ([0] * len(made), [1] * len(made))
            if any(mask):
                trained.update(row.response_logprobs[first:end])
                assert set(row.versions[first:end]) == {number}
        told = sum(1 for value in row.response_logprobs if value)
        assert told == sum(row.loss_mask), "no logprob stands where nothing is trained"
    count = sum(map(len, played.sampled))
    assert trained == Counter(-float(place + 1) for place in range(count)), (
        "every sampled token in exactly one row"
    )


def run(seed: int, inputs: int) -> Counter[str]:
    """How many sessions had how many rows."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(inputs):
        subject = chance.choice(subjects())
        played: Played | None = None
        try:
            played = talk(chance, subject)
            check(played)
            seen["one row" if len(played.rows) == 1 else "forked"] += 1
        except Exception as error:
            said = [ids.tolist() for ids in played.sampled] if played else "?"
            raise AssertionError(f"{subject.name} {subject.codec.name}, sampled {said}: {error!r}") from error
    return seen
