"""History policy `template`: whether the past, as it was sampled, is what the template makes of it now. (pure)"""

from __future__ import annotations

from typing import Literal

from sandgate.contract.trajectory import Ids
from sandgate.gateway.tokens.api import Codec

History = Literal["sampled", "template"]
"""What stays in context: what was sampled, or what the template keeps of it."""


def unchanged(codec: Codec, sampled: Ids, rendered: Ids) -> bool:
    """Whether the path as it was sampled says what the template gives for all of it. A text may be sampled in other
    tokens than a tokenizer makes of it: that is no change."""
    if sampled == rendered:
        return True
    stops = frozenset(codec.stop_ids)
    ends = [[token for token in ids if token in stops] for ids in (sampled, rendered)]
    return ends[0] == ends[1] and codec.decode(sampled) == codec.decode(rendered)
