"""A codec under other template variables: what a request's `chat_template_kwargs` ask for. (pure)"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.gateway.conversation.messages import TemplateValue
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.efforts import EFFORTS, UNSAID, effort_for

KEPT = 16
"""Variants that are kept, the last used. Each is probed like the codec itself: 15 to 34 ms for Qwen3 and gpt-oss over
small vocabularies."""
EFFORT = "reasoning_effort"
"""SDKs send it to every model, so it is no mistake to send it to one whose template does not read it."""


class Variants:
    """Makes codecs that differ in their template's variables, and keeps the last ones used. May be used in threads: two
    that ask for a new variant at once both make it."""

    def __init__(
        self,
        takes: frozenset[str],
        make: Callable[[dict[str, TemplateValue]], Codec],
        efforts: frozenset[str] = frozenset(),
    ) -> None:
        """`takes`: variables that the template reads, and that a request may set. `make` raises BadManifest.
        `efforts`: those that the template has a word for."""
        self.takes = takes
        self.efforts = efforts
        self._make = make
        self._made: dict[str, Codec] = {}

    def of(self, values: Mapping[str, TemplateValue]) -> Codec:
        """The codec under these values. Raises Unsupported where the template cannot be used with them."""
        key = json.dumps(dict(values), sort_keys=True)
        made = self._made.pop(key, None)
        if made is None:
            try:
                made = self._make(dict(values))
            except BadManifest as error:
                raise Unsupported(
                    f"chat_template_kwargs: the chat template cannot be used with them: {error}",
                    field="chat_template_kwargs",
                ) from error
        self._made[key] = made
        for oldest in list(self._made)[:-KEPT]:
            self._made.pop(oldest, None)
        return made


class Varied:
    """A codec that may have variants."""

    variants: Variants | None = None

    def takes(self, asked: Mapping[str, TemplateValue]) -> dict[str, TemplateValue]:
        """See `Codec.takes`."""
        known = self.variants.takes if self.variants is not None else frozenset[str]()
        for name in asked:
            if name not in known and name != EFFORT:
                read = ", ".join(sorted(known)) or "none"
                raise Unsupported(
                    f"chat_template_kwargs.{name}: this model's chat template does not read it; it reads {read}",
                    field=f"chat_template_kwargs.{name}",
                )
        return {name: self._told(name, value) for name, value in asked.items() if name in known}

    def _told(self, name: str, value: TemplateValue) -> TemplateValue:
        if name != EFFORT or not isinstance(value, str) or self.variants is None:
            return value
        if value in UNSAID:
            raise Unsupported(
                f'{EFFORT} is "{value}"; this model\'s chat template reads efforts: name one, or send none',
                field=EFFORT,
            )
        if value not in EFFORTS:
            return value
        told = effort_for(value, self.variants.efforts)
        if told is None:
            raise Unsupported(
                f"{EFFORT} is {value}, which this model's chat template does not know", field=EFFORT
            )
        return told

    def variant(self, values: Mapping[str, TemplateValue]) -> Codec:
        """See `Codec.variant`."""
        if self.variants is None:
            raise Unsupported(
                "chat_template_kwargs: this codec has no variants", field="chat_template_kwargs"
            )
        return self.variants.of(values)
