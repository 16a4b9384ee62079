"""docs/reference/packed.md from the packed tree's classes and its Arrow schema."""

from __future__ import annotations

import re

from sandgate.trainer.export import packed, packed_file
from scripts.generators.reasons import section
from scripts.generators.records import compatibility, docs, shown

PATH = "docs/reference/packed.md"
INTRO = f"""\
<!-- Generated from trainer/sandgate/trainer/export/packed.py and packed_file.py by `make fix`. Do not edit. -->
# The packed tree

Version {packed_file.PACKED_VERSION}. `sandgate export --format packed` writes it: one row is one group's trajectories,
what they share stored once. It is how prefix-shared tree attention wants them, and it gives back every trajectory to
the bit. How to train on it: [`../trainers/arrow.md`](../trainers/arrow.md).

T stored tokens, in S segments: a segment is a stretch of tokens that the same trajectories share, and the same train.
Segments lie one after another, each before what is below it, and that before its next sibling.
"""
LAWS = """\
## Laws

* A token is shared if all before it is, the ids are equal, and at most one trajectory trains it, or all that train it
  captured the same logprob of the same version, to the bit. Rows share only if their `multimodal` is the same.
* The path of a trajectory: its leaf's `segment`, that one's parent, and so on to a root, in reverse. Its first
  `prompt_tokens` tokens are the prompt. It trains the tokens of its `trained` segments; of every other token its own
  mask is 0, its logprob 0.0, its version -1.
* Attention: query `q` sees key `k` where `k <= q < ends[k]`; `ends[k]` is one past the last token of `k`'s segment and
  all below it. The logits that predict a token are those of the token before it on its path.
* Rows of one task of one job that come one after another are packed together, up to `--max-tokens` stored tokens.
* The file's metadata `sandgate.savings` say what was saved (JSON): `trajectories`, `trees`, `tokens` (of the
  trajectories, each by itself), `packed_tokens` (stored), `saved` (part of the tokens, 0..1).
"""
SHAPED = re.compile(r"(?:(\[\w\]): )?(.*)")
"""A docstring: shape, meaning."""
UNITS = {
    "input_ids": "token id",
    "position_ids": "token",
    "loss_mask": "0 or 1",
    "logprobs": "nat",
    "versions": "policy version",
    "starts": "index of input_ids",
    "parents": "index of starts",
}


def generate() -> dict[str, str]:
    said = docs(packed.PackedTree) | {
        "job": "as in the record.",
        "uid": "as in the record.",
        "leaves": "[L]: one struct for each trajectory, in the order in which they were packed.",
    }
    tree = []
    for field in packed_file.SCHEMA:
        found = SHAPED.fullmatch(said[field.name])
        assert found is not None
        shape, meaning = found.groups("")
        kind = "list<struct>" if field.name == "leaves" else shown(field)
        tree.append((f"`{field.name}`", f"`{kind}`", shape, UNITS.get(field.name, ""), sentence(meaning)))
    leaf = docs(packed.Leaf)
    fields = [
        (f"`{field.name}`", f"`{shown(field)}`", "yes" if field.nullable else "", leaf[field.name])
        for field in packed_file.LEAVES.value_type
        if field.name in packed_file.LEAF_COLUMNS
    ]
    rest = ", ".join(f"`{name}`" for name in packed_file.RECORD_COLUMNS)
    parts = [
        INTRO,
        section("Columns", "None is null.", ("column", "Arrow type", "shape", "unit", "meaning"), tree),
        section("A leaf", "One trajectory. Of the tree:", ("field", "Arrow type", "null", "meaning"), fields),
        f"As in [the record](records.md): {rest}.\n",
        LAWS,
        compatibility(packed_file, "Compatibility rule."),
    ]
    return {PATH: "\n".join(parts)}


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
