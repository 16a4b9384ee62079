"""charts/sandgate/Chart.yaml: its two versions are the distribution's, from pyproject.toml; the rest stays as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = "charts/sandgate/Chart.yaml"


def versioned(text: str, version: str) -> str:
    """Chart.yaml with this version of chart and app. Raises ValueError where it has not one line of each."""
    text, charts = re.subn(r"^version: .*$", f"version: {version}", text, flags=re.MULTILINE)
    text, apps = re.subn(r"^appVersion: .*$", f'appVersion: "{version}"', text, flags=re.MULTILINE)
    if (charts, apps) != (1, 1):
        raise ValueError(f"{PATH} must have one line `version:` and one `appVersion:`")
    return text


def generate() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {PATH: versioned((ROOT / PATH).read_text("utf-8"), project["version"])}
