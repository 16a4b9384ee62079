"""What counters of the trainer's side have in common as Prometheus text. No Prometheus library."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "sandgate_trainer_"


def labels_of(labels: Mapping[str, str]) -> str:
    """`{name="text",...}`; nothing for none."""
    told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{{{told}}}" if told else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
