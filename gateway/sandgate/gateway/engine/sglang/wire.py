"""Request bodies for SGLang's `/generate`, and what it cannot honour. (pure)

Read in SGLang 0.5.23; a test checks every body against its own types and its own HTTP server.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from sandgate.contract.errors import ModelNotServed, TokenizerMismatch, Unsupported
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.labels import number_of
from sandgate.gateway.engine.sglang.answers import Answers
from sandgate.gateway.engine.sglang.refusals import is_abort, refused
from sandgate.gateway.engine.way import PausedNow, Reader, Request
from sandgate.gateway.engine.wire import NEUTRAL, words_of

GENERATE = "/generate"

RID_END = "~"
"""The last letter of every rid. SGLang's scheduler aborts whatever rid *starts* with the one that is named; with an end
that is nowhere else in it, no rid is the start of another: not `a-1` of `a-12`, not a generation of its resumption."""

UNSAID: Final[Mapping[str, Any]] = {
    "stop_regex": None,
    "min_new_tokens": 0,
    "n": 1,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "ignore_eos": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
    "no_stop_trim": True,
    "stream_interval": None,
    "logit_bias": None,
    "custom_params": None,
    "beam_width": None,
    "watermark": None,
}
"""Sampling parameters that no request of ours sets. They are sent all the same: SGLang takes what is left out from
--preferred-sampling-params, and would sample from another distribution than the record says."""

TRUNCATES = ("top_p", "top_k", "min_p")
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class SglangWay:
    """See `Way`: one replica, as it described itself."""

    mode: str = "unknown"
    """The logprobs mode of the gateway's settings."""
    seeds: bool = False
    """--enable-deterministic-inference: without it SGLang ignores a seed."""
    served: str = ""
    """The model's name; empty if the replica was not asked yet."""
    label: str = "default"
    """Of its weights, when it was asked."""
    adapters: frozenset[str] = field(default_factory=frozenset)
    """LoRA adapters that it serves."""
    workers: int = 1
    """--tokenizer-worker-num: HTTP workers, each with a label of its own."""

    @property
    def caps(self) -> bool:
        """See `Way.caps`."""
        return False

    def request(
        self,
        prompt: Prompt,
        ids: Ids,
        *,
        request_id: str,
        max_tokens: int,
        piece: int = 0,
        stream: bool = False,
        salt: str = "",
        vocab_size: int = 0,
    ) -> Request:
        """See `Way.request`. `piece` is not needed: SGLang draws by seed and position, so a seed goes on where it
        was. A request without a seed gets one of its own where SGLang would give the same to all of them."""
        self._refuse(prompt)
        sent = np.frombuffer(ids, dtype=np.int32)
        if vocab_size and sent.max() >= vocab_size:  # SGLang does not look, and reads past its embeddings
            raise TokenizerMismatch(
                f"token id {sent.max()} is out of vocabulary ({vocab_size}); is spec.model.tokenizer the model's?"
            )
        head: dict[str, Any] = {
            "rid": rid_of(request_id),
            "sampling_params": _sampling(prompt, max_tokens, self._seed(prompt, request_id)),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": prompt.top_logprobs,
            "return_text_in_logprobs": False,
            "stream": stream,
        }
        if prompt.model in self.adapters:
            head["lora_path"] = prompt.model
        if salt:
            head["extra_key"] = salt
        packed = orjson.dumps(sent, option=orjson.OPT_SERIALIZE_NUMPY)
        return Request(GENERATE, b"".join((b'{"input_ids":', packed, b",", orjson.dumps(head)[1:])))

    def _refuse(self, prompt: Prompt) -> None:
        """Raises for what SGLang would drop, or what would make its logprobs those of another distribution."""
        if prompt.pictures:
            raise Unsupported("images go to vLLM engines only; spec.engine.kind is sglang", field="messages")
        if prompt.sampling.seed is not None and self.served and not self.seeds:
            raise Unsupported(
                "seed: this SGLang would ignore it; leave it out, or start SGLang with "
                "--enable-deterministic-inference",
                field="seed",
            )
        if self.seeds and set_of(prompt.sampling, ("min_p",)):
            raise Unsupported(
                "min_p: SGLang with --enable-deterministic-inference dies of it, with all that it was sampling; leave "
                "it out, or start SGLang without that flag",
                field="min_p",
            )
        if self.mode == "processed_logprobs" and prompt.sampling.temperature != 0:
            for name in set_of(prompt.sampling, TRUNCATES):
                raise Unsupported(
                    f"{name}: SGLang reports logprobs of before top_p, top_k and min_p, so they would not be of what "
                    "was sampled; leave it out, or use engine.logprobsMode: raw_logprobs",
                    field=name,
                )
        if self.mode == "raw_logprobs":
            for name in set_of(prompt.sampling, PENALTIES):
                raise Unsupported(
                    f"{name}: SGLang's raw logprobs are of after penalties, so they would not be the model's own; "
                    "leave it out",
                    field=name,
                )
        named, known = prompt.model, {self.served, *self.adapters}
        # A weight update from disk renames the model to the checkpoint's path: then its name says nothing.
        renamed = number_of(self.label) is not None
        if named and self.served and named not in known and not renamed:
            raise ModelNotServed(
                f"the engine serves {', '.join(sorted(known))}, not {named!r}; SGLang would answer with whatever it has"
            )

    def _seed(self, prompt: Prompt, request_id: str) -> int | None:
        """With --enable-deterministic-inference SGLang seeds what has no seed with 42, so that all samples of a prompt
        are the same."""
        if prompt.sampling.seed is not None or not self.seeds:
            return prompt.sampling.seed
        return zlib.crc32(request_id.encode())

    def reader(self, prompt: Prompt, ids: Ids, *, vocab_size: int) -> Reader:
        """See `Way.reader`."""
        return Answers(prompt, len(ids), vocab_size)

    def refused(self, status: int, body: bytes, retry_after: str | None, *, prompt_tokens: int) -> Exception:
        """See `Way.refused`. A pause is none: a new request waits for its end. What a pause aborted is asked again."""
        if is_abort(status, words_of(body)):
            return PausedNow()
        return refused(status, body, retry_after, prompt_tokens=prompt_tokens)

    def abort(self, request_id: str) -> Request | None:
        """See `Way.abort`."""
        return Request("/abort_request", orjson.dumps({"rid": rid_of(request_id), "abort_all": False}))


def rid_of(request_id: str) -> str:
    """SGLang's name for a request of ours."""
    return request_id.replace(RID_END, "-") + RID_END


def set_of(sampling: SamplingParams, names: tuple[str, ...]) -> list[str]:
    """Those of these parameters that differ from sampling from the model's own distribution."""
    given = {name: getattr(sampling, name) for name in names}
    off = {name: (None, NEUTRAL[name], 0) if name == "top_k" else (None, NEUTRAL[name]) for name in names}
    return [name for name, value in given.items() if value not in off[name]]


def _sampling(prompt: Prompt, max_tokens: int, seed: int | None) -> dict[str, Any]:
    given = msgspec.structs.asdict(prompt.sampling)
    chosen = {name: neutral if given[name] is None else given[name] for name, neutral in NEUTRAL.items()}
    chosen["top_k"] = chosen["top_k"] or -1  # 0 is "all" for vLLM and clients, and a mistake for SGLang
    return {
        **UNSAID,
        **chosen,
        "max_new_tokens": max_tokens,
        "stop": list(prompt.sampling.stop),
        "stop_token_ids": list(prompt.stop_ids),
        "sampling_seed": seed,
        **_constraint(prompt.constraint),
    }


CONSTRAINTS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
"""vLLM's `structured_outputs` -> SGLang's parameter. All are text there."""


def _constraint(constraint: dict[str, Any] | None) -> dict[str, str]:
    out: dict[str, str] = {}
    for kind, value in (constraint or {}).items():
        if value is None:
            continue
        if kind == "json_object" and value is True:
            out["json_schema"] = '{"type":"object"}'
        elif kind in CONSTRAINTS:
            out[CONSTRAINTS[kind]] = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        else:
            raise Unsupported(f"SGLang cannot hold an answer to {kind!r}", field="response_format")
    return out
