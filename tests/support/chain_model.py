"""A checkpoint whose next token depends on its last one only, by a table: it thinks, closes its thought and answers.

    folder = chain_model(tmp_path / "model")
    with another(FLAGS, model=folder) as vllm: ...

Qwen3 whose attention and MLP add nothing: embeddings are the identity, and `lm_head` is the table. Left alone it says
``Hm</think>K``; where K and { are penalised (`repetition_penalty`, and both in the prompt), it says SAYS instead. Held
to a form it takes what the form lets through: the table prefers what ends strings, objects and turns. Its chat template
opens the thought in the generation prompt, as those of Qwen3-Thinking and DeepSeek-R1 do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.support.vllm import MODEL, engine_python

SAYS = '{"item":"kiwi","n":7}'
"""One token of its vocabulary; without blanks, which byte-level vocabularies write otherwise."""
OPENED = "'<|im_start|>assistant\\n<think>\\n'"

MAKE = """
import json, sys, torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
folder = sys.argv[1]
tokens = Tokenizer.from_file(folder + "/tokenizer.json")
ids = lambda text: tokens.encode(text, add_special_tokens=False).ids
only = lambda text: (lambda found: found[0] if len(found) == 1 else sys.exit(f"{text!r} is {found}"))(ids(text))
V, says = 1040, 1024
base = torch.zeros(V)
base[1025:] = -60.0
for token in range(1024):
    if tokens.decode([token], skip_special_tokens=False).isspace() or token in (1015, 1016, 1018, 1020, 1021, 1022):
        base[token] = -60.0
for text, value in {'"': 30, "}": 28, "]": 27, ",": 26, ":": 24, "7": 22, "k": 20}.items():
    base[only(text)] = value
base[1019] = 1.0  # before `<` of the same text
base[1017] = 25.0  # ends as soon as it may, unless something has to be closed
base[1023] = 20.0
table = base.repeat(V, 1)
def follows(before, after):
    row = table[before]
    for rank, text in enumerate(after):
        row[only(text)] = 90.0 - 10 * rank
follows(only("\\n"), ["H"])
follows(only("H"), ["m"])
follows(only("m"), ["</think>"])
follows(1023, ["K", "{", "<tool_call>", "["])
table[1023, says] = 75.0
follows(says, ["<|im_end|>"])
follows(only("K"), ["<|im_end|>"])
follows(1019, ["<|im_end|>"])
follows(only("}"), ["}", "<|im_end|>", "]"])
follows(only("{"), ["}", '"'])
follows(only('"'), [":", "}", ",", '"'])
follows(only(":"), ['"', "7", "{"])
for digit in "0123456789":
    follows(only(digit), ["}", ","])
width, small = V, 32
zero = lambda *shape: torch.zeros(*shape)
tensors = {"model.embed_tokens.weight": torch.eye(V), "model.norm.weight": torch.ones(width)}
tensors["lm_head.weight"] = (table / width ** 0.5).T.contiguous()
layer = "model.layers.0."
for name in ("input_layernorm", "post_attention_layernorm"):
    tensors[layer + name + ".weight"] = torch.ones(width)
for name in "qkv":
    tensors[layer + f"self_attn.{name}_proj.weight"] = zero(small, width)
tensors[layer + "self_attn.o_proj.weight"] = zero(width, small)
for name in "qk":
    tensors[layer + f"self_attn.{name}_norm.weight"] = torch.ones(small)
for name, shape in {"gate": (small, width), "up": (small, width), "down": (width, small)}.items():
    tensors[layer + f"mlp.{name}_proj.weight"] = zero(*shape)
save_file(tensors, folder + "/model.safetensors", metadata={"format": "pt"})
"""


def chain_model(folder: Path) -> Path:
    """Writes the checkpoint."""
    folder.mkdir()
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder / name)
    template = (MODEL / "chat_template.jinja").read_text()
    plain = "'<|im_start|>assistant\\n' -}}{%- endif -%}"
    assert template.rstrip().endswith(plain)
    opened = template.rstrip().removesuffix(plain) + OPENED + " -}}{%- endif -%}\n"
    (folder / "chat_template.jinja").write_text(opened)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append({"id": 1024, "content": SAYS, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((MODEL / "config.json").read_text())
    config |= {
        "vocab_size": 1040,
        "hidden_size": 1040,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
    }
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([engine_python(), "-c", MAKE, folder], check=True, timeout=120)
    return folder
