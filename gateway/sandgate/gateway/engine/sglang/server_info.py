"""What an SGLang says in /server_info, and what follows from it. (pure)

Field names and sums are 0.5.23's: managers/utils.py (what drafts reserve), managers/tp_worker.py and
mem_cache/allocator/base.py (what the cache holds). Fields that an older one lacks are as if it had not set them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sandgate.gateway.engine.labels import number_of

ADAPTIVE_DRAFTS = 8
"""Drafts that are reserved with --speculative-adaptive, by its own list of steps; another list is not told."""
INPUT_MARGIN = 6
"""The window of a server, of its context or of its cache, whichever is smaller, minus `max_req_input_len`."""


class _State(msgspec.Struct):
    """One scheduler's settings as they are now; one for each data parallel rank."""

    weight_version: str | None = None
    speculative_algorithm: str | None = None
    speculative_accept_threshold_single: float = 1.0
    speculative_accept_threshold_acc: float = 1.0


class ServerInfo(_State):
    """The settings that it was started with."""

    version: str = ""
    allow_auto_truncate: bool = False
    enable_deterministic_inference: bool = False
    incremental_streaming_output: bool = False
    stream_output: bool = False
    """Its older name."""
    nnodes: int = 1
    tokenizer_worker_num: int = 1
    speculative_eagle_topk: int | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_adaptive: bool = False
    max_req_input_len: int | None = None
    page_size: int | None = None
    internal_states: list[_State] = []

    @property
    def is_lossy(self) -> bool:
        """Speculative decoding takes drafts that the model would not have sampled so often."""
        single = min(each.speculative_accept_threshold_single for each in (self, *self.internal_states))
        factors = {each.speculative_accept_threshold_acc for each in (self, *self.internal_states)}
        return self.speculative_algorithm is not None and (single < 1 or factors != {1.0})

    @property
    def reserved(self) -> int:
        """Tokens that it counts on top of each prompt, for drafts. Not all algorithms do, nor did all versions for the
        same ones: a few too many shorten the longest answers, one too few has them refused."""
        if self.speculative_algorithm is None:
            return 0
        tree = (self.speculative_eagle_topk or 0) * (self.speculative_num_steps or 0)
        return max(
            tree, self.speculative_num_draft_tokens or 0, ADAPTIVE_DRAFTS if self.speculative_adaptive else 0
        )

    def room(self, context: int) -> int:
        """Tokens of a prompt and its answer together that are neither refused nor clipped, where the model's context
        is `context`; 0 if that is not known."""
        if not context:
            return 0
        room = context - self.reserved
        held = (self.max_req_input_len or context) + INPUT_MARGIN
        if (
            held < context
        ):  # the cache is smaller: pages are the prompt's or the answer's, and one is left free
            room = min(room, held - 2 * (self.page_size or 1))
        return max(1, room)

    @property
    def label(self) -> str | None:
        """The label by which schedulers sample: of several, the one with the lowest number, or one without any. None:
        they do not say it."""
        return _oldest([each.weight_version for each in self.internal_states])


def _oldest(labels: Sequence[str | None]) -> str | None:
    known = [label for label in labels if label is not None]
    if not known or len(known) < len(labels):
        return None
    return min(known, key=lambda label: -1 if (number := number_of(label)) is None else number)
