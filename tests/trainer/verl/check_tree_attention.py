"""A forward pass over a packed tree is the forward pass over its trajectories, and so are the gradients."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from torch.nn.attention.flex_attention import create_mask  # type: ignore[import-not-found]
from transformers import Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found]

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.packed import PackedTree
from sandgate.trainer.export.packed_file import read_packed, write_packed
from sandgate.trainer.export.packing import pack_trees
from sandgate.trainer.export.tree_tensors import (
    dense_mask,
    leaf_rows,
    mask_mod,
    tree_logprobs,
    tree_tensors,
)
from scripts.parity_fp32 import logprobs
from tests.trainer.verl.rows import row

VOCABULARY = 64
CLOSE = 1e-4
"""Of logprobs and of gradients; fp32 on both sides, sums in another order."""


def model(attention: str) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, attn_implementation=attention,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).float().eval()


def ids(count: int, chance: random.Random) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


def trajectory(number: int, prompt: list[int], parts: list[tuple[list[int], int]]) -> Trajectory:
    """`parts` of the response: ids and their mask. Logprobs are told later."""
    response = [one for part, _ in parts for one in part]
    mask = [bit for part, bit in parts for _ in part]
    return row(
        number,
        prompt_ids=array("i", prompt),
        response_ids=array("i", response),
        response_logprobs=array("f", [-1.0 * bit for bit in mask]),
        loss_mask=array("b", mask),
        versions=array("i", [7 if bit else -1 for bit in mask]),
        turn_ids=(), turn_ends=(), turn_rewards=(),
        reward=float(number % 2),
    )  # fmt: skip


def group(seed: int) -> list[Trajectory]:
    """Four siblings on one prompt, of three turns each; two forked after the first turn, one had a side call."""
    chance = random.Random(seed)
    system = ids(20, chance)
    found = []
    for sibling in range(4):
        first, tool = ids(5, chance), ids(7, chance)
        found.append(
            trajectory(sibling, system, [(first, 1), (tool, 0), (ids(4, chance), 1), (ids(3, chance), 1)])
        )
        if sibling < 2:
            found.append(trajectory(sibling, system, [(first, 0), (ids(6, chance), 0), (ids(5, chance), 1)]))
    found.append(trajectory(3, ids(9, chance), [(ids(2, chance), 1)]))
    return found


def by_the_judge(judge: Any, rows: list[Trajectory]) -> list[list[float]]:
    """As scripts/parity_fp32.py computes them, row by row."""
    return [logprobs(judge, one.prompt_ids.tolist(), one.response_ids.tolist(), 1.0) for one in rows]


def forward(made: Any, tree: PackedTree, attention: str) -> Any:
    """[L, R]: logprobs of the rows, from one pass over the tree."""
    tensors, mask = tree_tensors(tree), dense_mask(tree)
    if attention == "eager":  # it adds its mask
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    logits = made(
        input_ids=tensors["input_ids"], attention_mask=mask, position_ids=tensors["position_ids"]
    ).logits
    index, _ = leaf_rows(tree)
    return tree_logprobs(logits, tensors)[0][index]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_logprobs_of_a_packed_pass_are_those_of_its_rows(attention: str, seed: int, tmp_path: Path) -> None:
    """By way of a file."""
    rows, made = group(seed), model(attention)
    saved = write_packed(tmp_path / "t", rows)
    assert saved.saved > 0.4
    (tree,) = read_packed(tmp_path / "t")
    with torch.inference_mode():
        found = forward(made, tree, attention)
    worst = 0.0
    for at, wanted in enumerate(by_the_judge(made, rows)):
        worst = max(worst, (found[at, : len(wanted)] - torch.tensor(wanted)).abs().max().item())
    assert 0 < worst < CLOSE


def test_each_turn_is_recomputed_at_its_own_temperature() -> None:
    """As recorded logprobs are: two rows of one turn each, at 0.5 and at 1.5."""
    rows = [
        replace(one, turn_ids=("a",), turn_ends=(len(one.response_ids),), sampling={"temperature": at})
        for one, at in zip((group(0)[0], group(1)[2]), (0.5, 1.5), strict=True)
    ]
    made = model("sdpa")
    (tree,) = pack_trees(rows)
    with torch.inference_mode():
        found = forward(made, tree, "sdpa")
    for at, one in enumerate(rows):
        temperature = one.sampling["temperature"]
        wanted = logprobs(made, one.prompt_ids.tolist(), one.response_ids.tolist(), temperature)
        trained = torch.tensor(one.loss_mask.tolist(), dtype=torch.bool)
        got = found[at, : len(wanted)]
        assert (got - torch.tensor(wanted))[trained].abs().max().item() < CLOSE


def test_a_wrong_mask_would_be_seen() -> None:
    """The bound is not so wide that plain causal attention over the same sequence passes."""
    rows, made = group(0), model("sdpa")
    (tree,) = pack_trees(rows)
    tensors = tree_tensors(tree)
    with torch.inference_mode():
        logits = made(input_ids=tensors["input_ids"], position_ids=tensors["position_ids"]).logits
    index, _ = leaf_rows(tree)
    found = tree_logprobs(logits, tensors)[0][index]
    wrong = max(
        (found[at, : len(wanted)] - torch.tensor(wanted)).abs().max().item()
        for at, wanted in enumerate(by_the_judge(made, rows))
    )
    assert wrong > 100 * CLOSE


def loss(new: Any, old: Any, mask: Any, advantages: Any) -> Any:
    """PPO's, clipped: not linear in the advantage, so tokens that two rows train cannot be summed before it."""
    ratio = (new - old).exp()
    worth = advantages[:, None]
    return -(torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth) * mask).sum() / mask.sum()


def test_gradients_are_those_of_the_rows() -> None:
    rows = group(1)
    # one more sibling with the very sample of another one: its tokens are stored once, and trained twice
    twin = trajectory(4, rows[0].prompt_ids.tolist(), [(rows[0].response_ids[:5].tolist(), 1)])
    rows.append(twin)
    (tree,) = pack_trees(rows)
    advantages = torch.linspace(-1.0, 1.0, len(rows))
    packed, plain = model("sdpa"), model("sdpa")
    index, mask = leaf_rows(tree)
    old = tree_tensors(tree)["logprobs"][0][index]
    loss(forward(packed, tree, "sdpa"), old, mask, advantages).backward()
    width = index.shape[1]
    new = torch.zeros(len(rows), width)
    for at, one in enumerate(rows):
        prompt, response = one.prompt_ids.tolist(), one.response_ids.tolist()
        logits = plain(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        taken = logits[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]
        new[at, : len(response)] = taken
    masks = torch.zeros(len(rows), width)
    olds = torch.zeros(len(rows), width)
    for at, one in enumerate(rows):
        masks[at, : len(one.loss_mask)] = torch.tensor(one.loss_mask.tolist())
        olds[at, : len(one.loss_mask)] = torch.tensor(one.response_logprobs.tolist())
    assert torch.equal(masks.long(), mask)
    loss(new, olds, masks, advantages).backward()
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert theirs.grad.abs().max() > 0, name
        assert torch.allclose(ours.grad, theirs.grad, rtol=CLOSE, atol=CLOSE * theirs.grad.abs().max()), name


def test_flex_attention_gets_the_same_mask() -> None:
    (tree,) = pack_trees(group(2))
    size = len(tree.input_ids)
    made = create_mask(mask_mod(tree_tensors(tree)["ends"]), 1, 1, size, size, device="cpu")
    assert torch.equal(made, dense_mask(tree))
