"""The objects of three jobs, as YAML to be read in a review.

`SANDGATE_GOLDEN=write pytest tests/operator/test_manifests_golden.py` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandgate.operator.manifests import example_objects
from sandgate.trainer.cli.render_manifest import to_yaml
from tests.contract.manifests import Manifest
from tests.operator.manifest_jobs import JOBS, SETTINGS, job, objects

WRITE = os.environ.get("SANDGATE_GOLDEN") == "write"
"""Looked at before tests lose such variables."""
GOLDEN = Path(__file__).parents[1] / "golden" / "manifests"


def same(name: str, text: str) -> None:
    file = GOLDEN / f"{name.replace(' ', '_')}.yaml"
    if WRITE:
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize(("name", "manifest"), JOBS.items(), ids=JOBS)
def test_the_objects_of_a_job_are_those_that_were_reviewed(name: str, manifest: Manifest) -> None:
    same(name, to_yaml(objects(job(manifest))))


def test_what_render_shows_is_what_was_reviewed() -> None:
    """With the objects of one session, and without secrets."""
    same("rendered", to_yaml(example_objects(job(JOBS["endpoints"]), SETTINGS)))
