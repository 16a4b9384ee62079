"""Small tokenizers, trained here: real BPE with the special tokens that a template names."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.vocab import Vocab

QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CORPUS = [
    'user assistant system tool {"name": "buy", "arguments": {"item": "kiwi", "n": 7}} receipt 44 you are helpful',
    "You may call one or more functions to assist with the user query. def main(): return x + 1",
    "# Tools\n\nYou are provided with function signatures within XML tags:\n<tools></tools> <think>\n</think>\n\n",
    "the quick brown fox jumps over the lazy dog; naïve café — 你好 🙂 1234567890 \t  indentation",
] * 8

SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|\[/?[A-Z_]{3,24}\]|</?s>|<(?:start|end)_of_turn>|<bos>|<eos>|"
    r"</?(?:think|tool_call|tool_response|arg_key|arg_value|minimax:tool_call|seed:\w+)>|<end_of_utterance>|"
    r"\[gMASK\]|<sop>|\]~[!b]?b?\[|\]<\]|\[e~\[|<reserved_\d+>|<\|im_sep\|>"
)
"""What in a template's text looks like a special token."""


def special_tokens(source: str, *more: str) -> list[str]:
    """Special tokens that a template names, in order of appearance; `more` first."""
    return list(dict.fromkeys([*more, *SPECIAL.findall(source)]))


def train(kind: str, special: Sequence[str], plain: Sequence[str] = (), vocab_size: int = 600) -> bytes:
    """tokenizer.json of a small BPE; trained once, kept in the cache folder."""
    key = hashlib.sha256(json.dumps([2, kind, list(special), list(plain), vocab_size]).encode()).hexdigest()[
        :20
    ]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandgate" / "tiny-tokenizers"
    path = root / f"{key}.json"
    if not path.is_file():
        root.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text(_train(kind, special, plain, vocab_size), "utf-8")
        made.replace(path)
    return path.read_bytes()


def _train(kind: str, special: Sequence[str], plain: Sequence[str], vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "metaspace-first", unk_token=None))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind in ("qwen", "prefix-space", "no-normalizer"):
        if kind == "qwen":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefix-space", use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
    elif kind.startswith("metaspace"):
        scheme = kind.removeprefix("metaspace-")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=scheme, split=False
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = []
    elif kind == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = []
    else:
        raise ValueError(kind)
    bytes_256 = [f"<0x{n:02X}>" for n in range(256)] if kind == "metaspace-first" else []
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=bytes_256, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return str(tokenizer.to_str())


@functools.lru_cache(maxsize=None)
def vocab(kind: str, special: tuple[str, ...], plain: tuple[str, ...] = ()) -> Vocab:
    """A `Vocab` of `train`."""
    return Vocab(train(kind, special, plain))


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def qwen() -> Vocab:
    """ChatML specials, Qwen3's added tokens."""
    return vocab("qwen", CHATML, QWEN_PLAIN)


def write_model(
    folder: Path, tokenizer: bytes, template: str | None, *, eos: str = "<|im_end|>", **config: object
) -> Path:
    """A model folder as a checkpoint has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, **config}), "utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def template(source: str, **variables: object) -> ChatTemplate:
    """A compiled template with usual special tokens."""
    return ChatTemplate(source, tokens={"bos_token": "", "eos_token": "<|im_end|>"}, variables=variables)
