"""Make the tiny model of the shop example: `make model`, or this file with the engine venv's python.

A Qwen3 of well under 1M parameters, trained from scratch on demonstrations (`lesson.py`) in six minutes
on two idle CPU threads. The first 70 % of the steps show no mistakes, the rest do: so it knows the skill, and
fails about every second time, which is what a reinforcement-learning example needs. The checked-in `model/`
was made by this program with its defaults. Same seed, same machine, same result; another CPU rounds
differently, which changes the weights but not what the model can do.

Embeddings are untied on purpose: with tied ones vLLM's CPU `reload_weights` keeps the old output head,
silently.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]  # only in the engine's environment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found, unused-ignore]

import clients
import lesson

HERE = Path(__file__).resolve().parent
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)  # in the vocabulary, but not "special": as in Qwen3, decoding with skip_special_tokens keeps them
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
VOCABULARY = 1024
WINDOW = 4096
KINDS = (("functions", 0.61), ("shell", 0.35), ("chat", 0.04))


def kind(rnd: random.Random) -> str:
    return rnd.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]


def corpus(seed: int) -> Iterator[str]:
    rnd = random.Random(seed)
    for _ in range(4000):
        k = kind(rnd)
        text = clients.setting(rnd, k) + "".join(
            p for _ in range(3) for p, _ in lesson.episode(rnd, k, lesson.NONE, 0.1)
        )
        for marker in CONTROL + MARKERS:
            text = text.replace(marker, "\n")
        yield text


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    added = len(CONTROL) + len(MARKERS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus(seed), trainer)
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (HERE / "model" / "chat_template.jinja").read_text()
    return tokenizer


def check_template(tokenizer: PreTrainedTokenizerFast) -> None:
    """The lesson's hand-written turns must be the template's, or the model learns a language that nobody
    will speak to it.
    """
    rnd = random.Random(5)
    tools = clients.tools_for(rnd, shell=False)
    arguments = {"item": "kiwi", "n": 7}
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "buy 7 kiwi"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "buy", "arguments": json.dumps(arguments)}}],
        },
        {"role": "tool", "content": "receipt 44"},
    ]
    block = clients.tools_block([json.dumps(t, ensure_ascii=False) for t in tools])
    want = (
        f"<|im_start|>system\nUse the tools.\n\n{block}<|im_end|>\n"
        "<|im_start|>user\nbuy 7 kiwi<|im_end|>\n<|im_start|>assistant\n"
        f"{lesson.call('buy', arguments)}{lesson.tool_turn('receipt 44')}"
    )
    got = tokenizer.apply_chat_template(history, tools=tools, add_generation_prompt=True, tokenize=False)
    if got != want:
        raise SystemExit(f"the chat template and lesson.py differ:\n--- template\n{got}\n--- lesson\n{want}")


class Class:
    """Batches of lessons: a few settings, and many episodes in each.

    The long part (tools as JSON schemas) is computed once and its keys and values serve all episodes of its
    setting, which makes a step three times cheaper and means the same as computing every conversation from
    its start.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, settings: int, episodes: int) -> None:
        self.rnd = random.Random(seed)
        self.settings, self.episodes = settings, episodes
        self.encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(
            text, add_special_tokens=False
        )

    def batch(self, mistakes: lesson.Mistakes) -> Batch:
        heads: list[list[int]] = []
        rows: list[list[int]] = []
        taught: list[list[bool]] = []
        returns = 0.5 if self.rnd.random() < 0.15 else 0.0  # by batch: one long row would make all rows long
        for _ in range(self.settings):
            k = kind(self.rnd)
            heads.append(self.encode(clients.setting(self.rnd, k)))
            for _ in range(self.episodes):
                pieces = [
                    (self.encode(text), own) for text, own in lesson.episode(self.rnd, k, mistakes, returns)
                ]
                rows.append([i for ids, _ in pieces for i in ids])
                taught.append([own for ids, own in pieces for _ in ids])
        return Batch(
            padded(heads, 0),
            torch.tensor([len(h) for h in heads]),
            padded(rows, 0),
            padded(taught, False).bool(),
        )


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    longest = max(len(r) for r in rows)
    return torch.tensor([[*r, *[fill] * (longest - len(r))] for r in rows])


@dataclass
class Batch:
    heads: torch.Tensor
    """[settings, longest] ids, padded at the right."""
    lengths: torch.Tensor
    """[settings]: how much of each head is not padding; 0 for a conversation without a system turn."""
    rows: torch.Tensor
    """[settings * episodes, longest] ids, padded at the right."""
    taught: torch.Tensor
    """like `rows`: True where the model itself speaks."""

    def loss(self, model: Qwen3ForCausalLM) -> torch.Tensor:
        """Mean cross-entropy of the taught tokens. (The first token of a row is never taught.)"""
        many = len(self.rows) // len(self.heads)
        cache = DynamicCache(config=model.config)
        model.model(input_ids=self.heads, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(many)
        lengths = self.lengths.repeat_interleave(many)[:, None]
        width, own = self.heads.shape[1], self.rows.shape[1]
        seen_head = (torch.arange(width) < lengths)[:, None].expand(-1, own, -1)
        seen_own = torch.ones(own, own, dtype=torch.bool).tril().expand(len(self.rows), -1, -1)
        hidden = model.model(
            input_ids=self.rows,
            position_ids=lengths + torch.arange(own),
            attention_mask=torch.cat([seen_head, seen_own], dim=-1)[:, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, :-1]
        taught = self.taught[:, 1:]
        return torch.nn.functional.cross_entropy(model.lm_head(hidden[taught]), self.rows[:, 1:][taught])


def train(model: Qwen3ForCausalLM, pupils: Class, steps: int, rate: float, clean: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    began = time.monotonic()
    for step in range(steps):
        loss = pupils.batch(lesson.NONE if step < clean * steps else lesson.SOME).loss(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 49 or step == steps - 1:
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.4f}  {time.monotonic() - began:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the tiny model of the shop example.")
    parser.add_argument("--out", type=Path, default=HERE / "model")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--settings", type=int, default=6, help="system prompts per step")
    parser.add_argument("--episodes", type=int, default=8, help="conversations per system prompt")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--clean", type=float, default=0.7, help="share of the steps without mistakes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    tokenizer = make_tokenizer(args.seed)
    check_template(tokenizer)
    size = -(-len(tokenizer) // 64) * 64
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)} padded to {size}"
    )
    train(
        model,
        Class(tokenizer, args.seed + 1, args.settings, args.episodes),
        args.steps,
        args.rate,
        args.clean,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(args.out)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
