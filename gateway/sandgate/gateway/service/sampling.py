"""Sampling parameters: the job's against the agent's, defaults, bounds, and how long an answer may be. (pure)"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, PromptTooLong
from sandgate.gateway.conversation.messages import SamplingParams

NAMES = tuple(name for name in SamplingParams.__struct_fields__ if name not in ("stop", "max_tokens"))
"""Parameters that shape the distribution. `stop` is part of how the agent works, and always the agent's own."""

FORM = "structured_outputs"
"""vLLM's name for what a turn is held to."""

ALIASES = {"maxTokens": "max_tokens", "topP": "top_p", "topK": "top_k", "minP": "min_p"}
"""Manifests say camelCase, JSON bodies snake_case; both arrive here."""


BOUNDS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 1e-6, 1),
    "top_k": (int, -1, 2**31 - 1),
    "min_p": (float, 0, 1),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "repetition_penalty": (float, 0.01, 10),
    "seed": (int, -(2**63), 2**63 - 1),
    "max_tokens": (int, 1, 2**31 - 1),
}
"""Type, lowest and highest value of each parameter: the same as a manifest's `spec.sampling` has. An agent's own may be
any that the engine takes, such as a top_p of 1e-9."""


TEMPERATURE_LEAST = 0.01
"""The lowest temperature beside 0. vLLM samples with it where less is asked for, and says so in its own log only;
SGLang takes one below 1e-6 for 0."""


def job_sampling(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The job's parameters, of which a later layer's win. Keys are those of Sampling, and `override`. Raises
    InvalidBody for unknown names and values out of bounds."""
    out: dict[str, Any] = {}
    for layer in layers:
        for raw, value in (layer or {}).items():
            name = ALIASES.get(raw, raw)
            if name not in NAMES and name not in ("max_tokens", "override", "stop"):
                raise InvalidBody(f"sampling.{raw}: no such sampling parameter", field=f"sampling.{raw}")
            if value is not None:
                _check(f"sampling.{raw}", name, value)
                out[name] = value
    return out


def _check(field: str, name: str, value: Any) -> None:
    if name == "override" and not isinstance(value, bool):
        raise InvalidBody(f"{field}: must be true or false", field=field)
    if name in BOUNDS:
        kind, low, high = BOUNDS[name]
        fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not fits or not low <= value <= high:
            word = "an integer" if kind is int else "a number"
            raise InvalidBody(f"{field}: must be {word} in [{low:g}, {high:g}]", field=field)


def effective(asked: SamplingParams, job: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the engine gets. With `override` the job's parameters replace the agent's altogether (an
    agent's top_p beside the job's temperature would be neither's policy); else the job's fill what the agent left open.
    Temperature and top_p are always set, so that no default of the engine's own can slip in unrecorded. A temperature
    that vLLM would raise is raised here: clients say 1e-6 for greedy, and a refusal would end them."""
    values: dict[str, Any] = {}
    for name in (*NAMES, "max_tokens"):
        own, jobs = getattr(asked, name), job.get(name)
        if job.get("override"):
            values[name] = jobs if name != "max_tokens" or jobs is not None else own
        else:
            values[name] = own if own is not None else jobs
    values["temperature"] = 1.0 if values["temperature"] is None else values["temperature"]
    if 0 < values["temperature"] < TEMPERATURE_LEAST:
        values["temperature"] = TEMPERATURE_LEAST
    values["top_p"] = 1.0 if values["top_p"] is None else values["top_p"]
    return SamplingParams(stop=asked.stop, **values)


def choice_seed(seed: int | None, *, task: str, sample: int, turn: int, choice: int) -> int | None:
    """The seed of one choice of one turn of one sample of a task, in whichever attempt. With the job's own seed, or the
    agent's, for all of them, the samples of a group would be the same answer again and again, and so would an agent's
    `n` choices, and tasks of one prompt."""
    if seed is None:
        return None
    text = f"{seed}:{sample}:{turn}:{choice}:{task}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1  # engines take 31 bits everywhere


def clamp(asked: int | None, *, prompt: int, window: int) -> int:
    """Tokens that may be sampled: as many as asked for, never past the window (agents ask for 128000).

    Raises PromptTooLong if not a single one fits.
    """
    room = window - prompt
    if room < 1:
        raise PromptTooLong(tokens=prompt, limit=window)
    return room if asked is None else max(1, min(asked, room))


def recorded(
    sampling: SamplingParams,
    max_tokens: int,
    template_kwargs: Mapping[str, Any],
    constraint: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The parameters as a turn's record has them: under the engine's names, and only those that were set; with the
    template's variables that the request set. Of a `constraint`, which the engine held the turn to, its kind and a
    digest: logprobs are then of what the grammar left, and a token that it forced has one of 0."""
    given = msgspec.structs.asdict(sampling)
    out = {name: value for name, value in given.items() if value is not None and value != ()}
    out["max_tokens"] = max_tokens
    if sampling.stop:
        out["stop"] = list(sampling.stop)
    if template_kwargs:
        out["chat_template_kwargs"] = dict(template_kwargs)
    if constraint is not None:
        text = json.dumps(constraint, sort_keys=True).encode()
        out[FORM] = {"kind": next(iter(constraint)), "sha256": hashlib.sha256(text).hexdigest()[:16]}
    return out
