"""Vocab: a checkpoint's tokenizer: text to ids and back, and facts about its added tokens. (pure)"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tokenizers import AddedToken as RawToken
from tokenizers import Tokenizer

from sandgate.contract.trajectory import Ids
from sandgate.gateway.tokens.segments import AddedToken, SegmentCache, SegmentEncoder

FAITHFUL_PROBES = ("a", " a  b", "x\ny ")
"""Texts whose spaces a Metaspace decoder loses."""


PRIVATE_USE = 0x100000
"""First code point of a plane that no text has a meaning for."""

RENAMED_CACHE_BYTES = 16 * 1024 * 1024
"""Size limit of cached texts in which a client spells a control token; most texts spell none."""


class Vocab:
    """tokenizer.json, loaded once. Thread-safe: nothing changes after construction but caches.

    Truncation and padding that a tokenizer.json may carry are switched off: they are for batches, not for prompts.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        self.digest = hashlib.sha256(tokenizer_json).hexdigest()
        self.raw: Tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self.raw.no_truncation()
        self.raw.no_padding()
        self.added = tuple(_added(self.raw))
        self.ids = {token.text: token.id for token in self.added}
        self.texts = {token.id: token.text for token in self.added}
        self.special_ids = frozenset(token.id for token in self.added if token.special)
        self.size = max([self.raw.get_vocab_size(with_added_tokens=True), *(t.id + 1 for t in self.added)])
        self.byte_level = _is_byte_level(json.loads(tokenizer_json).get("decoder"))
        self.segments = SegmentEncoder(self.encode_whole, self.added)
        self.faithful = all(
            self.decode(self.encode(text)) == self._normalize(text) for text in FAITHFUL_PROBES
        )
        self.byte_pieces = _Pieces(self.raw)

    def encode_whole(self, text: str) -> Ids:
        """The tokenizer's own encode of the whole text, nothing added, nothing cached."""
        return array("i", self.raw.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode(self, text: str) -> Ids:
        """Equal to `encode_whole`, from cached segments."""
        return self.segments.encode(text)

    def renamed(self, tokens: Iterable[AddedToken], lead: str) -> tuple[SegmentEncoder, Mapping[str, str]]:
        """An encoder in which these added tokens have other names, each `lead` and a letter, and their own texts are
        ordinary words; and the names, by text. It shares the model, so it costs little."""
        raw = Tokenizer(self.raw.model)
        raw.normalizer, raw.pre_tokenizer = self.raw.normalizer, self.raw.pre_tokenizer
        letters = count(PRIVATE_USE)
        names = {token.text: lead + chr(next(letters)) for token in tokens}
        added_tokens = self.raw.get_added_tokens_decoder()
        size = raw.get_vocab_size(with_added_tokens=False)
        above = range(size, size + 2 * len(added_tokens) + 1)
        taken = 1 + max(
            (number for number in above if raw.model.id_to_token(number) is not None), default=size - 1
        )
        # A vocabulary with holes has ids above its size: new tokens must not take them.
        raw.add_tokens([lead + chr(next(letters)) for _ in range(size, taken)])
        raw.add_tokens(
            [_copy(token, names.get(token.content, token.content)) for token in added_tokens.values()]
        )
        ids = {
            raw.token_to_id(names.get(token.content, token.content)): token_id
            for token_id, token in added_tokens.items()
        }

        def whole(text: str) -> Ids:
            found = raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
            return array("i", [ids.get(token_id, token_id) for token_id in found])

        added = [replace(token, text=names.get(token.text, token.text)) for token in self.added]
        return SegmentEncoder(whole, added, SegmentCache(RENAMED_CACHE_BYTES), self.segments.mode), names

    def normalize(self, text: str) -> str:
        """A text without added tokens after the tokenizer's normalizer."""
        return str(self.raw.normalizer.normalize_str(text)) if self.raw.normalizer else text

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of ids, special tokens included."""
        return str(self.raw.decode(list(ids), skip_special_tokens=False))

    def decodes_to(self, ids: Ids, text: str) -> bool:
        """True if decoding `ids` gives `text`, up to what the tokenizer's own normalizer changes.

        Vocabularies that do not give spaces back (`faithful` is False) are compared without white space.
        """
        decoded = self.decode(ids)
        if decoded == text:
            return True
        if not self.faithful:
            return "".join(decoded.split()) == "".join(text.split())
        return decoded == self._normalize(text)

    def _normalize(self, text: str) -> str:
        # Piece by piece, as encoding does: a combining mark after an added token must not join it.
        normalizer = self.raw.normalizer
        if normalizer is None:
            return text
        pieces = self.segments.pieces(text)
        return "".join(str(normalizer.normalize_str(piece)) + token for piece, token in pieces)

    def id_of(self, token: str) -> int | None:
        """Id of a token of the vocabulary, added or not."""
        found: int | None = self.raw.token_to_id(token)
        return found

    def bytes_of(self, token_id: int) -> bytes:
        """UTF-8 bytes (perhaps a part of a character) of one id of any vocabulary; b"" for an unknown id."""
        if (added := self.texts.get(token_id)) is not None:
            return added.encode()
        if self.byte_level:
            return self.byte_pieces[token_id]
        token = self.raw.id_to_token(token_id) or ""
        if match := _FALLBACK_BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        return str(token).replace("\u2581", " ").encode()


class _Pieces(dict[int, bytes]):
    """Id -> UTF-8 bytes (perhaps a part of a character), of a byte-level vocabulary; b"" for an unknown id. What was
    asked for is kept, so that an answer's ids are looked up without a call for each."""

    def __init__(self, raw: Tokenizer) -> None:
        self._raw = raw

    def __missing__(self, token_id: int) -> bytes:
        token = self._raw.id_to_token(token_id)
        raw_bytes = self[token_id] = b"" if token is None else _bytes_of(token)
        return raw_bytes


_FALLBACK_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How vocabularies that are no byte-level ones (SentencePiece) name a byte."""


def _added(raw: Tokenizer) -> Iterable[AddedToken]:
    for token_id, token in sorted(raw.get_added_tokens_decoder().items()):
        yield AddedToken(
            text=token.content,
            id=token_id,
            special=token.special,
            normalized=token.normalized,
            strips=token.lstrip or token.rstrip or token.single_word,
        )


def _copy(token: RawToken, text: str) -> RawToken:
    return RawToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _is_byte_level(decoder: Any) -> bool:
    """True if the decoder is ByteLevel alone: then ids are bytes, one by one."""
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders", [])
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"


def _byte_chars() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    chars = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    return chars | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_chars()


def _bytes_of(token: str) -> bytes:
    """As the ByteLevel decoder does: a token with any character outside the alphabet stands for itself."""
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()
