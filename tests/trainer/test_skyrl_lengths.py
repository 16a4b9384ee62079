"""A job inside SkyRL holds its conversations to SkyRL's lengths, before anything is sampled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.trainer.skyrl.jobs import BatchKind, JobLengths, LocalJobs
from tests.contract.manifests import GONE, spoilt


def config(**generator: Any) -> Any:
    """SkyRL's, of 0.3.0, as far as it says lengths."""
    fields = {
        "max_input_length": 600,
        "sampling_params": SimpleNamespace(max_generate_length=100),
        "eval_sampling_params": SimpleNamespace(max_generate_length=50),
    }
    said = SimpleNamespace(**{**fields, **generator})
    return SimpleNamespace(generator=said, trainer=SimpleNamespace(max_prompt_length=512))


def written(window: Any = GONE) -> RolloutJob:
    return decode(
        RolloutJob,
        spoilt(
            ("spec.tasks", {"queue": {}}),
            ("spec.model.maxModelLen", window),
            ("spec.limits", {"turns": 7, "responseTokens": 9}),
        ),
    )


def made(
    lengths: JobLengths | None, *, evaluation: bool = False, window: Any = GONE
) -> tuple[int, int, int, int]:
    jobs = LocalJobs(Path("job.yaml"), Path("out"), ("http://127.0.0.1:9",), lengths)
    job = jobs.of(written(window), BatchKind(evaluation=evaluation, n=4, sampling={"max_tokens": 100}))
    limits = job.spec.limits
    return limits.prompt_tokens, limits.response_tokens, job.spec.model.max_model_len, limits.turns


LENGTHS: dict[str, tuple[dict[str, Any], bool, Any, tuple[int, int, int, int]]] = {
    "of training": ({}, False, GONE, (600, 700, 700, 7)),
    "of evaluation": ({}, True, GONE, (600, 650, 650, 7)),
    "evaluation says nothing": ({"eval_sampling_params": None}, True, GONE, (600, 700, 700, 7)),
    "one turn has the prompts' length": ({"max_input_length": None}, False, GONE, (512, 612, 612, 7)),
    "a window that is smaller stays": ({}, False, 640, (600, 700, 640, 7)),
    "a window that is larger does not": ({}, False, 4096, (600, 700, 700, 7)),
}


@pytest.mark.parametrize(("said", "evaluation", "window", "limits"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_are_skyrls(
    said: dict[str, Any], evaluation: bool, window: Any, limits: tuple[int, int, int, int]
) -> None:
    assert made(JobLengths.of(config(**said)), evaluation=evaluation, window=window) == limits


def test_without_its_config_they_are_the_manifests() -> None:
    assert made(None, window=4096) == (0, 9, 4096, 7)


def test_what_is_no_length_is_refused() -> None:
    with pytest.raises(InvalidBody, match="prompt"):
        JobLengths.of(config(max_input_length=-1))
