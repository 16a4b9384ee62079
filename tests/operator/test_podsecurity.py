"""The checker of the `restricted` profile notices what it is there for; tests/cluster asks the real one."""

from __future__ import annotations

import pytest

from sandgate.operator.manifests import Json
from tests.operator.broken_pods import BROKEN, GOOD_POD
from tests.support.podsecurity import violations


@pytest.mark.parametrize(("said", "pod"), BROKEN.items(), ids=BROKEN)
def test_a_pod_that_is_refused(said: str, pod: Json) -> None:
    assert said in violations(pod)


def test_a_pod_that_is_not() -> None:
    assert violations(GOOD_POD) == []
