"""A checkpoint made by hand that does an agent's small task on a real engine: it calls a tool, calls another, answers.

    folder = caller_model(tmp_path / "model", {"가": calls_of_one_agent, "나": calls_of_another}, "It says kiwi.")

Qwen3 with room for long prompts, embeddings that are the identity, and `lm_head` as a table: what comes next depends on
the last token, and on five things that its attention heads look for anywhere in the prompt: the letter that says whose
tools it has (in the task's text), whether it has called the first tool, and the second. A call, like the answer, is one
token of its vocabulary; before it one of three words is said by chance, so logprobs are not all 0. Everything that an
engine does with a model's weights it does here; it has learned nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.vllm import MODEL, engine_python

WINDOW = 131_072
"""Tokens: prompts of real agents have 20,000 to 45,000 in this vocabulary."""
FIRST_ADDED = 1024

MAKE = """
import json, sys, torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
asked = json.load(sys.stdin)
folder, letters = asked["folder"], asked["letters"]
tokens = Tokenizer.from_file(folder + "/tokenizer.json")
ids = lambda text: tokens.encode(text, add_special_tokens=False).ids
only = lambda text: (lambda found: found[0] if len(found) == 1 else sys.exit(f"{text!r} is {found}"))(ids(text))
calls = [[1024 + 2 * at, 1025 + 2 * at] for at in range(len(letters))]  # by agent: the first and the second
answer = 1024 + 2 * len(letters)
V = asked["vocabulary"]
# Heads: 0 and 1 find a first or second call, 2... the letters (by a byte that only they have).
looks = [[pair[0] for pair in calls], [pair[1] for pair in calls], *[[ids(letter)[0]] for letter in letters]]
heads, size, W = len(looks), 32, V + 16
flag = lambda number: V + number
table = torch.full((W, V), 0.0)
table[:, :] = -400.0
END, CALL, CLOSE = only("<|im_end|>"), only("<tool_call>"), only("</tool_call>")
words = {only("H"): 100.0, only("m"): 99.5, only("K"): 99.0}
table[:V, END] = 0.0  # whatever was not foreseen ends
for word, value in words.items():
    table[only("\\n"), word] = value
    table[word, CALL], table[word, answer] = 100.0, 60.0
for pair in calls:
    table[CALL, pair[0]], table[CALL, pair[1]] = 20.0, 0.0
    for call in pair:
        table[call, CLOSE] = 100.0
table[CLOSE, END] = table[answer, END] = 100.0
table[V:, :] = 0.0
for first, second in calls:
    table[flag(0), first], table[flag(0), second] = -100.0, 100.0
table[flag(1), answer], table[flag(1), CALL] = 100.0, -100.0
for at, pair in enumerate(calls):
    for call in pair:
        table[flag(2 + at), call] = 150.0
embed = torch.zeros(V, W)
embed[:, :V] = torch.eye(V)
tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": torch.ones(W)}
tensors["lm_head.weight"] = (table / W ** 0.5).T.contiguous()
layer = "model.layers.0."
for name in ("input_layernorm", "post_attention_layernorm"):
    tensors[layer + name + ".weight"] = torch.ones(W)
q, k, v = (torch.zeros(heads * size, W) for _ in "qkv")
o = torch.zeros(W, heads * size)
slow = size // 2 - 1  # the pair of dimensions that a position hardly turns
for head, found in enumerate(looks):
    q[head * size + slow, :V] = 1.0
    for token in found:
        k[head * size + slow, token] = 1.0
        v[head * size, token] = W ** -0.5  # the norm before makes it sqrt(W)
    o[flag(head), head * size] = 1.0
for name, weight in {"q": q, "k": k, "v": v, "o": o}.items():
    tensors[layer + f"self_attn.{name}_proj.weight"] = weight
for name in "qk":
    tensors[layer + f"self_attn.{name}_norm.weight"] = torch.full((size,), 4.0)
for name, shape in {"gate": (32, W), "up": (32, W), "down": (W, 32)}.items():
    tensors[layer + f"mlp.{name}_proj.weight"] = torch.zeros(*shape)
save_file(tensors, folder + "/model.safetensors", metadata={"format": "pt"})
config = json.load(open(folder + "/config.json"))
config |= {"vocab_size": V, "hidden_size": W, "intermediate_size": 32, "num_hidden_layers": 1}
config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size}
json.dump(config, open(folder + "/config.json", "w"))
"""


def caller_model(folder: Path, calls: Mapping[str, tuple[str, str]], answer: str) -> Path:
    """Writes the checkpoint. `calls`: letter in the task -> JSON of the first and second call. A letter is of one byte
    first that no prompt has otherwise."""
    folder.mkdir()
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder / name)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    texts = [f"\n{said}\n" for pair in calls.values() for said in pair] + [answer]
    tokenizer["added_tokens"] += [
        {"id": FIRST_ADDED + at, "content": text, **flags} for at, text in enumerate(texts)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((MODEL / "config.json").read_text())
    config |= {
        "layer_types": ["full_attention"],
        "max_position_embeddings": WINDOW,
        "rope_parameters": {"rope_theta": 1e12, "rope_type": "default"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "model_max_length": WINDOW}))
    asked = {
        "folder": str(folder),
        "letters": list(calls),
        "vocabulary": -(-(FIRST_ADDED + len(texts)) // 16) * 16,
    }
    subprocess.run([engine_python(), "-c", MAKE], input=json.dumps(asked), text=True, check=True, timeout=120)
    return folder
