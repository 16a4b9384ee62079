"""A model folder without a model: byte-level tokenizer and ChatML template, enough to talk to a scripted engine."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

BYTES = 256
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Added tokens that are text to a parser, as in Qwen3."""
TOKENS = {text: BYTES + at for at, text in enumerate((*SPECIAL, *PLAIN))}
END = TOKENS["<|im_end|>"]
VOCAB_SIZE = BYTES + len(TOKENS)

TEMPLATE = """\
{%- macro said(role, text) -%}{{- '<|im_start|>' ~ role ~ '\\n' ~ text ~ '<|im_end|>\\n' -}}{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
    {{- '\\n</tools>\\nCall one as <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- set thought = message.reasoning_content -%}
        {%- if thought -%}{{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' -}}{%- endif -%}
        {{- message.content or '' -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role in ('system', 'developer', 'user', 'tool') -%}
        {{- said('system' if message.role == 'developer' else message.role, message.content or '') -}}
    {%- else -%}
        {{- raise_exception('unknown role ' ~ message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_tiny_model(folder: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"},
        "generation_config.json": {"eos_token_id": [END, TOKENS["<|endoftext|>"]]},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder


def encode(text: str) -> list[int]:
    """Ids of a text: one per UTF-8 byte, one per added token. What the folder's tokenizer gives."""
    parts = re.split(f"({'|'.join(map(re.escape, TOKENS))})", text)
    return [one for part in parts for one in ([TOKENS[part]] if part in TOKENS else part.encode())]


def decode(ids: Sequence[int]) -> str:
    """Inverse of `encode` for whole characters."""
    names = {number: text for text, number in TOKENS.items()}
    raw = b"".join(names[one].encode() if one in names else bytes([one]) for one in ids)
    return raw.decode("utf-8", "replace")


def tokenizer() -> dict[str, object]:
    """tokenizer.json: BPE without merges over the byte alphabet that byte-level tokenizers use."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": text, "special": text in SPECIAL, **shape}
        for text, number in TOKENS.items()
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {char: number for number, char in enumerate(alphabet())},
            "merges": [],
        },
    }


def alphabet() -> list[str]:
    """The printable character that stands for each byte: itself where it is printable, else the next from U+0100."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte if byte in kept else next(shifted)) for byte in range(BYTES)]
