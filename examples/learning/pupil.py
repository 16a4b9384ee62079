"""A tiny model, made from nothing: its tokenizer, and lessons by demonstration. Shared by examples/shop and coder-rl.

Needs torch and transformers: the engine's environment has them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]  # only in the engine's environment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found, unused-ignore]

from turns import Piece

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)  # in the vocabulary, but not "special": as in Qwen3, decoding with skip_special_tokens keeps them
TEMPLATE = Path(__file__).resolve().parents[1] / "shop" / "model" / "chat_template.jinja"
WINDOW = 4096

Lessons = list[tuple[str, list[list[Piece]]]]
"""Each system turn with the conversations that follow it."""


def make_tokenizer(corpus: Iterator[str], *, vocabulary: int, split: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the pieces that the expression `split` finds, with the template of the shop's model."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(CONTROL) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(map(_plain, corpus), trainer)
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer


def _plain(text: str) -> str:
    for marker in CONTROL + MARKERS:
        text = text.replace(marker, "\n")
    return text


def make_model(tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen3ForCausalLM:
    """A Qwen3 of random weights. Embeddings are untied on purpose: with tied ones vLLM's CPU `reload_weights` keeps
    the old output head, silently."""
    size = -(-len(tokenizer) // 64) * 64
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
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
    return model


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    longest = max(len(r) for r in rows)
    return torch.tensor([[*r, *[fill] * (longest - len(r))] for r in rows])


@dataclass
class Batch:
    """A few system turns, and as many conversations after each.

    The long part (tools as JSON schemas) is computed once and its keys and values serve all conversations after it,
    which makes a step three times cheaper and means the same as computing every conversation from its start.
    """

    heads: torch.Tensor
    """[settings, longest] ids, padded at the right."""
    lengths: torch.Tensor
    """[settings]: how much of each head is not padding; 0 for a conversation without a system turn."""
    rows: torch.Tensor
    """[settings * episodes, longest] ids, padded at the right."""
    taught: torch.Tensor
    """like `rows`: True where the model itself speaks."""

    @classmethod
    def of(cls, lessons: Lessons, encode: Callable[[str], list[int]]) -> Batch:
        heads = [encode(head) for head, _ in lessons]
        pieces = [[(encode(text), own) for text, own in one] for _, episodes in lessons for one in episodes]
        return cls(
            padded(heads, 0),
            torch.tensor([len(h) for h in heads]),
            padded([[i for ids, _ in one for i in ids] for one in pieces], 0),
            padded([[own for ids, own in one for _ in ids] for one in pieces], False).bool(),
        )

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


def arguments(about: str | None, out: Path, *, steps: int, episodes: int) -> argparse.ArgumentParser:
    """What a maker of a model can be told. `episodes`: of each system turn, in a step."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--episodes", type=int, default=episodes, help="conversations per system prompt")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def make(
    told: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, lessons: Callable[[float], Lessons]
) -> None:
    """A model of `tokenizer`, taught and saved. `lessons`: see `teach`."""
    torch.set_num_threads(told.threads)
    torch.manual_seed(told.seed)
    model = make_model(tokenizer, told.layers)
    teach(model, tokenizer, lessons, steps=told.steps, rate=told.rate)
    told.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(told.out)
    model.save_pretrained(told.out)


def teach(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    lessons: Callable[[float], Lessons],
    *,
    steps: int,
    rate: float,
) -> None:
    """`lessons` is asked once a step; it is told how much of the course is behind, from 0 to 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    began = time.monotonic()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    for step in range(steps):
        loss = Batch.of(lessons(step / steps), encode).loss(model)
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
