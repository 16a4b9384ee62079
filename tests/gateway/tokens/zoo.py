"""Real chat templates, each with a small tokenizer that has the special tokens it names."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.vocab import Vocab
from scripts.fetch_templates import fetch
from tests.gateway.tokens import lab

SPECIAL = re.compile(
    r"<\|[^<>\s'\"|]{1,40}\|?>|<[a-z_]{1,30}\|>|<｜[^｜<>\s]{1,40}｜>|\[\|[a-z]+\|\]|\[/?[A-Z_]{3,24}\]|</?s>|"
    r"<(?:start|end)_of_turn>|<bos>|<eos>|<end_of_utterance>|\[gMASK\]|<sop>"
)
"""What in a template's text is a special token of its checkpoint."""

PLAIN = re.compile(
    r"</?(?:think|tool_call|tool_response|tool_calls|arg_key|arg_value|seed:think|seed:tool_call|minimax:tool_call)>"
    r"|｜DSML｜"
)
"""What is an added token there, but not special."""

ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|END_RESPONSE|>",
    "[|endofturn|]",
    "<|eom|>",
    "<|end|>",
    "<end_of_utterance>",
)
"""eos_token of the families, by what their templates name; </s> for the others."""

GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
HARMONY_ENDS = ("<|return|>", "<|call|>")
MORE_ENDS = {
    "*/glm4moe": GLM_ENDS,
    "*/GLM-4*": GLM_ENDS,
    "*/tool_chat_template_glm4": GLM_ENDS,
    "*/gptoss": HARMONY_ENDS,
    "*/openai-gpt-oss*": HARMONY_ENDS,
    "*/*pertus*": ("<|assistant_end|>",),
    "*/ByteDance-Seed-OSS": ("<seed:eos>",),
    "*/MiniMax-M1": ("<end_of_sentence>",),
    "*/MiniMax-M[23]": ("[e~[",),
    "*/NVIDIA-Nemotron-Nano-v2": ("<SPECIAL_12>",),
    "*/Kimi-K3": ("<|end_of_msg|>",),
    "*/Reka-Edge": ("<sep>",),
    "*/poolside-Laguna*": ("</assistant>",),
    "*/*gemma4*": ("<turn|>", "<|tool_response>"),
    "*/diffusion_gemma": ("<turn|>", "<|tool_response>"),
}
"""What generation_config.json of these checkpoints lists."""

FAMILY = {
    "trl/qwen3": "qwen3",
    "trl/qwen3_instruct_2507": "qwen3",
    "trl/qwen3_5_think": "qwen3.5",
    "trl/qwen3_6": "qwen3.6",
    "trl/qwen3_8": "qwen3.8",
    "trl/qwen3_vl": "qwen3-vl",
    "trl/glm4moe": "glm-4.5",
    "trl/nemotron_3_nano": "nemotron-3",
    "trl/nemotron_3_super": "nemotron-3",
    "trl/nemotron_3_ultra": "nemotron-3-ultra",
    "trl/nemotron_3_5_lightning": "nemotron-3.5",
    "trl/gemma4_v5": "gemma4",
    "trl/llama3_2": "llama-3",
    "trl/deepseekv3": "deepseek-v3",
    "trl/gptoss": "gpt-oss",
}
"""The family of the `renderers` package that each of these templates belongs to."""

FAMILY_TOKENS = {
    "qwen": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "qwen3-vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "glm": (
        "<|endoftext|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "[gMASK]",
        "<sop>",
    ),
    "nemotron": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "gemma": ("<bos>", "<eos>", "<|image>", "<image|>", "<|image|>", "<|think|>", "<|channel>", "<channel|>"),
    "llama": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
}
"""Tokens that a family's renderer looks up although its template may not name them."""


FAMILY_PLAIN = dict.fromkeys(("qwen", "nemotron", "glm"), (*lab.QWEN_PLAIN,))
"""The same for added tokens that are not special."""


@dataclass(frozen=True)
class Specimen:
    """One template and what a checkpoint of it would say."""

    name: str
    source: str
    bos: str
    ends: tuple[str, ...]
    special: tuple[str, ...]
    plain: tuple[str, ...]

    @property
    def vocab(self) -> Vocab:
        return lab.vocab("qwen", self.special, self.plain)

    @property
    def tokenizer(self) -> bytes:
        return lab.train("qwen", self.special, self.plain)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return tuple(self.vocab.ids[end] for end in self.ends)

    @functools.cache  # noqa: B019 # the zoo's stay anyway
    def template(self) -> ChatTemplate:
        tokens = {"bos_token": self.bos, "eos_token": self.ends[0]}
        return ChatTemplate(self.source, tokens=tokens, now=lambda: datetime(2026, 1, 2, tzinfo=UTC))

    @functools.cache  # noqa: B019
    def codec(self, history: History = "sampled") -> TemplateCodec:
        return TemplateCodec(self.template(), self.vocab, eos_ids=self.eos_ids, history=history)


@functools.cache
def zoo() -> dict[str, Specimen]:
    """All templates of the pinned packages, but for variants that only add training marks."""
    paths = sorted(path for path in fetch().glob("*/*.jinja") if not path.stem.endswith("_training"))
    return {
        f"{path.parent.name}/{path.stem}": specimen(
            f"{path.parent.name}/{path.stem}", path.read_text("utf-8")
        )
        for path in paths
    }


def specimen(name: str, source: str) -> Specimen:
    """A template with its tokens."""
    ends = [end for pattern, ends in MORE_ENDS.items() if fnmatchcase(name, pattern) for end in ends]
    ends = ends or [next((end for end in ENDS if end in source), "</s>")]
    begins = ("<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>")
    bos = "<bos>" if "gemma" in name else next((bos for bos in begins if bos in source), "<s>")
    family = FAMILY.get(name, "")
    more = [
        token for prefix, tokens in FAMILY_TOKENS.items() if family.startswith(prefix) for token in tokens
    ]
    plain = [
        token for prefix, tokens in FAMILY_PLAIN.items() if family.startswith(prefix) for token in tokens
    ]
    return Specimen(
        name,
        source,
        bos,
        tuple(ends),
        special=_once([bos, *ends, *more, *SPECIAL.findall(source)]),
        plain=_once([*plain, *PLAIN.findall(source)]),
    )


def _once(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
