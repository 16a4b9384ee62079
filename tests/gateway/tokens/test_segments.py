"""Ids put together from cached segments are the ids of the whole text, for every kind of tokenizer."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken as RawToken
from tokenizers import Tokenizer

from sandgate.gateway.tokens.segments import (
    ENTRY_OVERHEAD_BYTES,
    AddedToken,
    Mode,
    SegmentCache,
    SegmentEncoder,
)
from sandgate.gateway.tokens.vocab import Vocab
from tests.gateway.tokens import lab

LIKE = ("<|im_end|>", "<|im_end|>x", "<|im_", "<|im_start|><|im_end|>")


def with_tokens(*tokens: RawToken) -> Vocab:
    """ChatML's tokens and these."""
    raw = Tokenizer.from_str(lab.train("qwen", lab.CHATML).decode())
    raw.add_tokens(list(tokens))
    return Vocab(str(raw.to_str()).encode())


def with_template_postprocessor() -> Vocab:
    """Adds <s> when asked to add special tokens; a prompt never asks."""
    made = json.loads(lab.train("qwen", ("<s>", *lab.CHATML)))
    bos = next(token["id"] for token in made["added_tokens"] if token["content"] == "<s>")
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}},
    }
    made["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    return Vocab(json.dumps(made).encode())


KINDS: dict[str, tuple[Vocab, Mode]] = {
    "byte level": (lab.qwen(), Mode.PLAIN),
    "byte level with a space put before": (lab.vocab("prefix-space", lab.CHATML), Mode.PLAIN),
    "metaspace, space before the first piece only": (lab.vocab("metaspace-first", lab.CHATML), Mode.ANCHORED),
    "metaspace, space before every piece": (lab.vocab("metaspace-always", lab.CHATML), Mode.PLAIN),
    "metaspace, never a space": (lab.vocab("metaspace-never", lab.CHATML), Mode.PLAIN),
    "sentencepiece normalizer": (lab.vocab("llama2", lab.CHATML), Mode.PLAIN),
    "tokens that begin like others": (lab.vocab("qwen", (*lab.CHATML, *LIKE[1:])), Mode.PLAIN),
    "a token that takes white space": (
        with_tokens(RawToken("<|end|>", rstrip=True, lstrip=True, normalized=False)),
        Mode.PLAIN,
    ),
    "a token that is a word": (
        with_tokens(RawToken("im_end", single_word=True, normalized=False)),
        Mode.PLAIN,
    ),
    "a token matched after normalisation": (with_tokens(RawToken("é!", normalized=True)), Mode.PLAIN),
    "a post-processor and a truncation": (with_template_postprocessor(), Mode.PLAIN),
    "no added tokens": (lab.vocab("qwen", ()), Mode.WHOLE),
}

PIECES = st.one_of(
    st.sampled_from([*lab.CHATML, *LIKE, "<tool_call>", "<think>", "<|end|>", "im_end", "é!", "e\u0301!"]),
    st.sampled_from(
        ["\n", " ", "  ", "user\n", "Hello", "\u0301", "é", "你好", "🙂", "123", "<|", "|>", "\t"]
    ),
    st.text(max_size=12),
)


@pytest.mark.parametrize("kind", KINDS)
@given(pieces=st.lists(PIECES, max_size=12))
def test_segments_give_the_ids_of_the_whole_text(kind: str, pieces: list[str]) -> None:
    vocab, _ = KINDS[kind]
    text = "".join(pieces)
    whole = vocab.encode_whole(text)
    assert vocab.encode(text) == whole
    assert vocab.encode(text) == whole  # now from the cache


@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_is_what_this_kind_of_tokenizer_allows(kind: str) -> None:
    vocab, mode = KINDS[kind]
    assert vocab.segments.mode is mode


def test_a_tokenizer_that_looks_across_its_tokens_is_encoded_whole() -> None:
    """No known one does; the start-up proof would see it."""

    def whole(text: str) -> array[int]:
        return array("i", [9 if char == "#" else len(text) for char in text])

    encoder = SegmentEncoder(whole, [AddedToken("#", 9, special=True)])
    assert encoder.mode is Mode.WHOLE
    assert encoder.encode("ab#cd") == whole("ab#cd")


def test_what_encode_gives_belongs_to_the_caller() -> None:
    vocab = lab.qwen()
    first = vocab.encode("Hello")
    first.append(-1)
    assert vocab.encode("Hello") == first[:-1]


def test_the_cache_holds_its_bound_and_drops_what_was_used_least_recently() -> None:
    cache = SegmentCache(bytes_max=20 * ENTRY_OVERHEAD_BYTES)
    ids = array("i", range(10))
    cache.put("kept", ids)
    for n in range(100):
        cache.put(f"other {n}", ids)
        assert cache.get("kept") == ids
        assert cache.bytes <= 20 * ENTRY_OVERHEAD_BYTES
    assert cache.get("other 0") is None
    assert cache.get("other 99") == ids


def test_one_huge_segment_does_not_push_everything_out() -> None:
    cache = SegmentCache(bytes_max=10_000)
    cache.put("small", array("i", [1]))
    cache.put("x" * 9_000, array("i", [2]))
    assert cache.get("small") == array("i", [1])
    assert cache.get("x" * 9_000) is None


def test_siblings_share_what_they_have_in_common() -> None:
    vocab = Vocab(lab.train("qwen", lab.CHATML, lab.QWEN_PLAIN))
    prompt = "<|im_start|>system\n" + "rules " * 500 + "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    vocab.encode(prompt.format("one"))
    misses = vocab.segments.cache.misses
    vocab.encode(prompt.format("two"))
    assert vocab.segments.cache.misses == misses + 1
