"""Text outside of any chat template: prompts that clients write whole, and answers to them. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.tokens.api import Parser
from sandgate.gateway.tokens.client_text import ClientText
from sandgate.gateway.tokens.family_formats import Grammar
from sandgate.gateway.tokens.parse import TurnParser
from sandgate.gateway.tokens.vocab import Vocab


class PlainText:
    """The part of a codec that knows no template."""

    vocab: Vocab
    words: ClientText
    output_ids: int = 0
    """Ids that the model's output layer has, which checkpoints pad beyond the tokenizer's; 0: not known."""

    @property
    def vocab_size(self) -> int:
        """See `Codec.vocab_size`."""
        return max(self.vocab.size, self.output_ids)

    def lead(self) -> Ids:
        """See `Codec.lead`."""
        return array("i", self.vocab.raw.encode("", add_special_tokens=True).ids)

    def encode_text(self, text: str, *, behind: bool = False) -> Ids:
        """See `Codec.encode_text`."""
        spelt = self.spelt_in(text)
        if spelt and self.words.are_text:
            raise BadRequest(
                f"prompt spells {spelt} control tokens, which are no words: send the prompt as token ids, or set "
                "model.specialTokensInText: control",
                field="prompt",
            )
        if behind:
            return self.vocab.segments.encode(text, at_head=False)
        return array("i", self.vocab.raw.encode(text, add_special_tokens=True).ids)

    def plain(self, ids: Ids) -> str:
        """See `Codec.plain`."""
        return str(self.vocab.raw.decode(ids.tolist(), skip_special_tokens=True))

    def special_id(self, text: str) -> int | None:
        """See `Codec.special_id`."""
        token = self.vocab.ids.get(text)
        return token if token in self.vocab.special_ids else None

    def bytes_of(self, token: int) -> bytes:
        """See `Codec.bytes_of`."""
        return self.vocab.bytes_of(token)

    def spelt_in(self, text: str) -> int:
        """See `Codec.spelt_in`."""
        return self.words.count_in(text)

    def text_parser(self, stop: Sequence[str] = ()) -> Parser:
        """See `Codec.text_parser`."""
        return TurnParser(self.vocab, Grammar(), (), stop)
