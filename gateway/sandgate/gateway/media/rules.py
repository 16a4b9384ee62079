"""Rules: what a kind of image processor makes of a picture's size: one class per kind, one protocol for all. (pure)

A rule does no arithmetic on pixels but resizing and cutting: the engine and the trainer run the processor itself, on
pictures that already are what it would make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.spans import collapse

if TYPE_CHECKING:
    from sandgate.gateway.media.spans import Span

SIDE_MAX = 1 << 13
"""Pixels of a side, and patches of a picture, that a checkpoint's settings may name."""
RESIZED_MAX = 1 << 25
"""Pixels that a picture may have on its way: a strip that is resized by its shorter side grows beyond all bounds."""


class UnknownProcessor(ValueError):
    """Why a checkpoint's image processor cannot be used."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture gets the size that the processor gives it: resized, then cut."""

    resized: tuple[tuple[int, int], ...]
    """(width, height), one after the other, as the processor does it."""
    box: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of what is kept."""


class Rule(Protocol):
    """What the gateway has to know of one kind of processor."""

    @property
    def kind(self) -> str:
        """Its name in journals and records (`media.record`)."""
        ...

    @property
    def resample(self) -> int:
        """Pillow's filter."""
        ...

    def fit(self, width: int, height: int) -> Fit:
        """How a picture of this size is resized. Raises InvalidBody for one that the processor cannot take, or would
        resize again when it gets it a second time."""
        ...

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """Of a picture that has its size already: what records keep, (tiles or frames, rows, columns)."""
        ...

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """The ids that stand for such a picture, instead of the one placeholder that templates write."""
        ...

    def reserved(self, placeholder: int) -> frozenset[int]:
        """Ids that stand for pictures only; one that does not is a client's or the model's own."""
        ...

    def told(self, placeholder: int, ids: Ids, spans: Iterable[Span]) -> Ids:
        """A prompt as an engine that expands placeholders itself is asked for it. Raises BadRequest for one that no
        engine would make so."""
        ...


class PlainRule:
    """What most rules have in common: one id stands for pictures, and engines are told it once per picture."""

    __slots__ = ()

    def reserved(self, placeholder: int) -> frozenset[int]:
        """See Rule."""
        return frozenset((placeholder,))

    def told(self, placeholder: int, ids: Ids, spans: Iterable[Span]) -> Ids:
        """See Rule."""
        return collapse(ids, spans, placeholder)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint's files say of images."""

    image: Mapping[str, Any]
    """preprocessor_config.json, or `image_processor` of processor_config.json."""
    processor: Mapping[str, Any]
    """processor_config.json."""
    model: Mapping[str, Any]
    """config.json."""
    texts: Mapping[int, str]
    """Added tokens by id."""
    encode: Callable[[str], Ids]
    video: Mapping[str, Any] = field(default_factory=dict)
    """video_preprocessor_config.json, or what stands for it."""

    def token(self, text: str) -> int:
        """The id of an added token. Raises UnknownProcessor."""
        found = next((token for token, words in self.texts.items() if words == text), None)
        if found is None:
            raise UnknownProcessor(f"its tokenizer has no token {text}")
        return found

    def number(self, name: str, given: Any, most: int = SIDE_MAX) -> int:
        """`given`, if it is a whole number from 1 to `most`. Raises UnknownProcessor."""
        if type(given) is not int or not 0 < given <= most:
            raise UnknownProcessor(f"its image processor's {name} is {given!r}, and no number up to {most}")
        return given

    def set_as(self, wanted: Mapping[str, Any]) -> None:
        """Raises UnknownProcessor unless each setting is as wanted, or left out where that is the default."""
        for name, value in wanted.items():
            given = self.image.get(name)
            if given is not None and given != value:
                raise UnknownProcessor(f"its image processor has {name} {given!r}; {value!r} is served")


RGB: Mapping[str, Any] = {"do_resize": True, "do_convert_rgb": True, "do_rescale": True, "do_normalize": True}
"""Settings that each kind has."""


def too_narrow(width: int, height: int) -> InvalidBody:
    """Why a picture of this size is refused."""
    return InvalidBody(
        f"its sides are {width} and {height}, which is too narrow for this model", field="messages"
    )
