"""Small tokenizers, trained here: real BPE with the special tokens that a template names."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sandgate.gateway.tokens.vocab import Vocab

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CORPUS = [
    'user assistant system tool {"name": "buy", "arguments": {"item": "kiwi", "n": 7}} receipt 44 you are helpful',
    "You may call one or more functions to assist with the user query. def main(): return x + 1",
    "# Tools\n\nYou are provided with function signatures within XML tags:\n<tools></tools> <think>\n</think>\n\n",
    "the quick brown fox jumps over the lazy dog; naïve café — 你好 🙂 1234567890 \t  indentation",
] * 8


def train(kind: str, special: Sequence[str], plain: Sequence[str] = (), vocab_size: int = 600) -> bytes:
    """tokenizer.json of a small BPE; trained once, kept in the cache folder."""
    key = hashlib.sha256(json.dumps([3, kind, list(special), list(plain), vocab_size]).encode()).hexdigest()[
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
    tokenizer = Tokenizer(models.BPE())
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
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if not alphabet:
        tokenizer = _with_byte_fallback(tokenizer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return str(tokenizer.to_str())


def _with_byte_fallback(tokenizer: Tokenizer) -> Tokenizer:
    """As Llama 2, Mistral and Gemma: what the vocabulary has no piece for is spelt in bytes."""
    made = json.loads(tokenizer.to_str())
    words = made["model"]["vocab"]
    words |= {f"<0x{n:02X}>": len(words) + n for n in range(256)}
    made["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(made))


@functools.cache
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
