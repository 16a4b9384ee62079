"""What a manifest takes for a sampling parameter, the gateways of its job take, and the other way round."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.contract.rules import Bounds
from sandgate.contract.work import SamplingSpec
from sandgate.gateway.service.sampling import BOUNDS, NAMES, job_sampling

MANIFEST: dict[str, Any] = get_type_hints(SamplingSpec, include_extras=True)
BOUNDED = sorted(BOUNDS.keys() - {"seed"})  # a manifest's integers have 64 bits at most


def test_a_manifest_has_every_parameter_that_a_gateway_has() -> None:
    names = {one.name for one in dataclasses.fields(SamplingSpec)}
    assert names == {*NAMES, "max_tokens", "override"} == BOUNDS.keys() | {"override"}


@pytest.mark.parametrize("name", BOUNDED)
def test_both_have_the_same_bounds(name: str) -> None:
    bounds = [one for one in MANIFEST[name].__metadata__ if isinstance(one, Bounds)]
    _, low, high = BOUNDS[name]
    assert bounds == [Bounds(low, high)]


@pytest.mark.parametrize("name", BOUNDED)
def test_a_gateway_takes_what_a_manifest_may_say(name: str) -> None:
    kind, low, high = BOUNDS[name]
    for value in (low, high):
        assert job_sampling({name: kind(value)}) == {name: value}
    with pytest.raises(InvalidBody, match=f"sampling.{name}: must be "):
        job_sampling({name: kind(high) + 1})
