"""Text that retells a branch is that branch's ids, however they were sampled, in every kind of vocabulary."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation import retold_text
from sandgate.gateway.conversation.retold_text import retold
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.tokens.vocab import Vocab
from tests.gateway.tokens import lab

KINDS = (
    "qwen",
    "no-normalizer",
    "prefix-space",
    "metaspace-always",
    "metaspace-first",
    "metaspace-never",
    "llama2",
)
WORDS = st.text("ab \n你é🙂", min_size=1, max_size=12)
EOS = "<|im_end|>"


@functools.cache
def vocab(kind: str) -> Vocab:
    return lab.vocab(kind, lab.CHATML)


def turn(number: int, parent: str | None, context: Ids, ids: Ids) -> Turn:
    values: dict[str, Any] = dict.fromkeys(Turn.__dataclass_fields__)
    return Turn(
        **values | {"id": f"t{number}", "number": number, "parent": parent, "context": context, "ids": ids}
    )


def oddly(vocab: Vocab, text: str, cuts: Sequence[bool]) -> Ids:
    """The ids of a text in pieces, as a model samples it that was not told the tokenizer's rules."""
    ids, piece = array("i"), ""
    for letter, cut in zip(text, cuts, strict=False):
        piece += letter
        if cut:
            ids += vocab.segments.encode(piece, at_head=False)
            piece = ""
    return ids + vocab.segments.encode(piece, at_head=False) if piece else ids


def path_of(turns: Sequence[Turn]) -> Ids:
    return functools.reduce(lambda path, one: path + one.context + one.ids, turns, array("i"))


@pytest.mark.parametrize("kind", KINDS)
@given(
    said=st.lists(
        st.tuples(WORDS, WORDS, st.lists(st.booleans(), min_size=12, max_size=12)), min_size=1, max_size=4
    ),
    more=WORDS,
    lead=st.booleans(),
)
def test_a_branch_retold_is_its_ids(
    kind: str, said: list[tuple[str, str, list[bool]]], more: str, lead: bool
) -> None:
    model = vocab(kind)
    before = array("i", [model.ids["<|endoftext|>"]]) if lead else array("i")
    turns: list[Turn] = []
    for number, (context, sampled, cuts) in enumerate(said):
        head = before + model.encode(context) if not number else model.segments.encode(context, at_head=False)
        turns.append(turn(number, turns[-1].id if turns else None, head, oddly(model, sampled, cuts)))
    path = path_of(turns)
    text = model.decode(path[len(before) :])
    found = retold(text + more, turns, model.decode, lead=before, stop_ids=())
    assert not found.unclosed
    assert model.decode(found.ids[len(before) :]) == text[: len(model.decode(found.ids[len(before) :]))]
    assert found.ids[: len(path)] == path[: len(found.ids)], "nothing but ids of the branch"
    assert (text + more).startswith(text[: found.chars])
    if "\ufffd" not in text:
        assert found.ids == path


def chain(model: Vocab, *texts: tuple[str, str]) -> list[Turn]:
    turns: list[Turn] = []
    for number, (context, sampled) in enumerate(texts):
        parent = turns[-1].id if turns else None
        turns.append(turn(number, parent, model.encode(context), model.encode(sampled)))
    return turns


CASES: dict[str, tuple[str, int, bool]] = {
    "all of it": ("one two<|im_end|> three four", 4, False),
    "the first turn, where the second says something else": ("one two<|im_end|> three five", 2, False),
    "the first turn, its end left out": ("one two three", 2, True),
    "no turn is retold where the answer is another": ("one too<|im_end|>", 0, False),
    "no turn is retold by another prompt": ("two two", 0, False),
    "no turn is retold where the text ends within the answer": ("one t", 0, False),
}


@pytest.mark.parametrize(("text", "parts", "unclosed"), CASES.values(), ids=CASES)
def test_as_much_as_was_said(text: str, parts: int, unclosed: bool) -> None:
    model = vocab("qwen")
    turns = chain(model, ("one", f" two{EOS}"), (" three", " four"))
    found = retold(text, turns, model.decode, lead=array("i"), stop_ids=[model.ids[EOS]])
    pieces = [ids for one in turns for ids in (one.context, one.ids)][:parts]
    whole = functools.reduce(lambda path, ids: path + ids, pieces, array("i"))
    assert found.ids == (whole[:-1] if unclosed else whole)
    assert found.unclosed is unclosed
    assert text.startswith(model.decode(found.ids))
    assert found.chars == len(model.decode(found.ids))


def test_of_answers_that_read_the_same_the_newest_counts() -> None:
    model = vocab("qwen")
    first = turn(0, None, model.encode("one"), model.encode(" two"))
    other = turn(1, None, model.encode("one"), oddly(model, " two", [True] * 4))
    assert first.ids != other.ids
    found = retold("one two, three", [first, other], model.decode, lead=array("i"), stop_ids=())
    assert found.ids == other.context + other.ids


def test_the_ids_that_a_hostile_tree_makes_it_decode_are_bounded() -> None:
    """A thousand prompts that differ at their end: each has to be read to be found another."""
    model = vocab("qwen")
    long = model.encode("a " * 2_000)
    turns = [
        turn(number, None, long + model.encode(f"{number}"), model.encode("x")) for number in range(1_000)
    ]
    asked = 0

    def decode(ids: Ids) -> str:
        nonlocal asked
        asked += len(ids)
        return model.decode(ids)

    retold("a " * 2_000 + "no", turns, decode, lead=array("i"), stop_ids=())
    most = retold_text.IDS_PER_CHAR * 4_002 + retold_text.IDS_MIN
    assert asked < 2 * (most + len(long))
    assert asked < sum(len(one.context) for one in turns)
