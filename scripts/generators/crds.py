"""crds/*.yaml: what `kubectl apply --server-side -f crds/` installs. `sandgate crds` prints the same."""

from __future__ import annotations

from sandgate.contract.crd import crds
from sandgate.trainer.cli.crds import as_yaml

HEAD = "# Generated from contract/sandgate/contract by `make fix`. Do not edit.\n"


def generate() -> dict[str, str]:
    return {f"crds/{one['spec']['names']['singular']}.yaml": HEAD + as_yaml([one]) for one in crds()}
