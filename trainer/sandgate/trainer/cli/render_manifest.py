"""`sandgate render JOB.yaml`: the Kubernetes objects that a job would make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from sandgate.contract.errors import BadManifest
from sandgate.contract.names import LABEL_MAX, LABEL_PATTERN
from sandgate.contract.rules import Pattern
from sandgate.trainer.cli import output

LINE_CHARS = 120
"""Longer texts are folded."""
NAMESPACE = Pattern(LABEL_PATTERN, "a namespace's name (up to 63 lower case letters, digits and dashes)")


def render(
    manifest: Annotated[
        Path, typer.Argument(metavar="JOB.yaml", help="Manifest of a RolloutJob.", show_default=False)
    ],
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="The operator's settings, as the chart writes them."),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where the manifest names none.")
    ] = "default",
    json: output.AsJson = False,
) -> None:
    """Print the Kubernetes objects a job would make, with those of its first session; secrets are not shown.

    Exit code 2: the job cannot run in a cluster; the field is named.
    """
    if NAMESPACE.wrong(namespace) or len(namespace) > LABEL_MAX:
        raise BadManifest(f"--namespace: {namespace!r} is not {NAMESPACE.says}", field="--namespace")
    from sandgate.operator.local.job import load_job
    from sandgate.operator.manifests import Settings, example_objects

    told = Settings() if settings is None else Settings.of(settings.read_bytes(), str(settings))
    found = example_objects(load_job(manifest), told, namespace=namespace)
    if json:
        output.as_json({"apiVersion": "v1", "kind": "List", "items": found})
    else:
        typer.echo(to_yaml(found), nl=False)


class _Plain(yaml.SafeDumper):
    """Every part spelled out, texts of several lines as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def to_yaml(objects: Sequence[Any]) -> str:
    """One YAML document each."""
    return yaml.dump_all(
        objects, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=LINE_CHARS, explicit_start=True
    )
