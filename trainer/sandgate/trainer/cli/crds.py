"""`sandgate crds`: the CustomResourceDefinitions of this version, for `kubectl apply --server-side -f -`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
import yaml

from sandgate.contract.crd import crds as definitions
from sandgate.trainer.cli import output

WIDTH = 120
"""Of a line of YAML: as wide as the sources."""


def crds(json: output.AsJson = False) -> None:
    """Print the definitions of RolloutJob and AgentSession: `sandgate crds | kubectl apply --server-side -f -`."""
    made = definitions()
    if json:
        output.as_json({"apiVersion": "v1", "kind": "List", "items": made})
    else:
        typer.echo(as_yaml(made), nl=False)


def as_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """YAML documents; text of several lines is written as a person would."""
    return "---\n".join(
        yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True) for one in objects
    )


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)
