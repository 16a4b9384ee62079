"""The names that `sandgate.trainer` promises: each is there, and costs nothing until it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sandgate.trainer

PROMISED = (
    "RolloutClient",
    "AsyncRolloutClient",
    "submit",
    "groups",
    "weight_update",
    "local",
    "fleet",
    "cluster_fleet",
)


@pytest.mark.parametrize("name", sorted({*PROMISED, *sandgate.trainer.__all__}))
def test_a_promised_name_is_imported_from_the_room(name: str) -> None:
    assert name in sandgate.trainer.__all__
    found = getattr(sandgate.trainer, name)
    assert callable(found) or found.__name__ == f"sandgate.trainer.client.{name}"


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grops'"):
        sandgate.trainer.grops  # noqa: B018


def test_importing_the_room_loads_no_http_client() -> None:
    program = (
        "import sandgate.trainer, sys; print(*sorted({'httpx', 'pyarrow', 'kubernetes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
