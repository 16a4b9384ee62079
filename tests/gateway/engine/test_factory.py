"""What a manifest may name is what a gateway can reach."""

from __future__ import annotations

from sandgate.contract.choices import EngineKind
from sandgate.gateway.engine.factory import ENGINES


def test_every_kind_of_the_contract_has_its_engine() -> None:
    assert set(ENGINES) == set(EngineKind)
