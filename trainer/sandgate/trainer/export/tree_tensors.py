"""A packed tree as tensors, and what a trainer computes on it. torch at the first use.

    tensors = tree_tensors(tree)
    logits = model(tensors["input_ids"], attention_mask=dense, position_ids=tensors["position_ids"]).logits
    index, mask = leaf_rows(tree)
    new = tree_logprobs(logits, tensors)[0][index]          # [L, R]: as if every trajectory had been a row
    old = tensors["logprobs"][0][index]                     # count where mask is 1

One forward pass over the stored tokens, then rows of trajectories as any loss knows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sandgate.trainer.export.packed import PackedTree

INT64 = ("input_ids", "position_ids", "loss_mask", "versions")


def tree_tensors(tree: PackedTree) -> dict[str, Any]:
    """A batch of one: `input_ids`, `position_ids`, `loss_mask`, `versions`, `parents` (index of the token whose logits
    predict this one, -1 for a first token) and `ends` (see `mask_mod`) int64[1, T]; `logprobs`, `temperatures` (see
    `temperatures`) float32[1, T]; `rewards`, `advantages` float32[L], NaN where there is none."""
    import torch  # type: ignore[import-not-found]

    found = {name: getattr(tree, name).astype(np.int64)[None] for name in INT64}
    found["parents"] = tree.token_parents().astype(np.int64)[None]
    found["ends"] = tree.ends().astype(np.int64)[None]
    found["logprobs"] = tree.logprobs.copy()[None]
    found["temperatures"] = temperatures(tree)[None]
    for name, values in (
        ("rewards", [leaf.record.reward for leaf in tree.leaves]),
        ("advantages", [leaf.advantage for leaf in tree.leaves]),
    ):
        found[name] = np.array([np.nan if value is None else value for value in values], np.float32)
    return {name: torch.from_numpy(value) for name, value in found.items()}


def temperatures(tree: PackedTree) -> npt.NDArray[np.float32]:
    """[T]: by which logits are divided to recompute each trained token's logprob, as its turn was sampled; elsewhere
    that of some turn, or 1.0."""
    found = np.ones(len(tree.input_ids), np.float32)
    for leaf in tree.leaves:
        record = leaf.record
        told = [record.settings(turn).temperature for turn in range(len(record.turn_ends))]
        if all(each == 1.0 for each in told):
            continue
        places = tree.indices(leaf)[leaf.prompt_tokens :]
        trains = tree.trains(leaf)[leaf.prompt_tokens :]
        turn = np.searchsorted(np.asarray(record.turn_ends), np.arange(len(places)), side="right")
        mine = trains & (turn < len(told))
        found[places[mine]] = np.asarray(told, np.float32)[turn[mine]]
    if len(trained := np.unique(found[tree.loss_mask > 0])) == 1:
        found[:] = trained[0]  # of what is not trained nobody asks: one number for all costs a trainer less
    return found


def dense_mask(tree: PackedTree) -> Any:
    """bool[1, 1, T, T], True where attention may look: for scaled_dot_product_attention, and for transformers' models
    with `attn_implementation="sdpa"`. Raises InvalidBody over `packed.MASK_TOKENS_MAX` tokens."""
    import torch

    return torch.from_numpy(tree.attention_mask())[None, None]


def mask_mod(ends: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """For FlexAttention's `create_block_mask`: the same mask in four bytes a token. `ends`: int64[B, T]."""

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[batch, key])

    return sees


def tree_logprobs(logits: Any, tensors: dict[str, Any], temperature: float | None = None) -> Any:
    """float32[1, T]: natural log of what the model gives each stored token after its path; 0.0 for a first token.
    `logits`: [1, T, vocabulary]. `temperature`: of all tokens; without one each has its own (`temperatures`), as the
    recorded logprobs do. Engines that sampled with top_p, top_k or min_p told those of what was left."""
    import torch

    ids, parents = tensors["input_ids"][0], tensors["parents"][0]
    before = parents.clamp(min=0)
    own = tensors["temperatures"][0] if temperature is None else torch.full(ids.shape, temperature)
    own = own.to(logits.device)
    if bool((own == own[:1]).all()):  # as most often: no copy of the logits is made
        values = (logits[0].float() / own[:1, None]).log_softmax(-1)[before, ids]
    else:
        values = (logits[0].float()[before] / own[:, None]).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    return torch.where(parents >= 0, values, torch.zeros_like(values))[None]


def leaf_rows(tree: PackedTree) -> tuple[Any, Any]:
    """int64[L, R] twice: which stored token each response token of each trajectory is, and its loss_mask; the longest
    response is R, padding on the right is index 0 with mask 0."""
    import torch

    rows = [tree.indices(leaf)[leaf.prompt_tokens :] for leaf in tree.leaves]
    width = max(map(len, rows), default=0)
    index, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for at, (leaf, row) in enumerate(zip(tree.leaves, rows, strict=True)):
        index[at, : len(row)] = row
        mask[at, : len(row)] = tree.trains(leaf)[leaf.prompt_tokens :]
    return torch.from_numpy(index), torch.from_numpy(mask)
